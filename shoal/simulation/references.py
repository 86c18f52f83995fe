"""What a fleet's accuracy is held against: each device by itself, and all data in one place.

Neither is an algorithm for real devices. `local` is what a device has that takes part in nothing, and
`pooled` is what would be if the data could leave the devices.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from shoal.core.algorithm import find, measurement
from shoal.core.data.dataset import Dataset
from shoal.core.server_kit.clustered import GLOBAL
from shoal.core.types import Tensors
from shoal.result import Accuracy, Result, Round
from shoal.simulation.fleet import Holding
from shoal.simulation.recorder import Progress
from shoal.simulation.simulated import SimulatedDevices

if TYPE_CHECKING:
    from shoal.simulation.simulate import SimulationResult

LOCAL, POOLED = "local", "pooled"
NAMES = (LOCAL, POOLED)
EVERYONE = "everyone"


class Reference(Result):
    """Accuracies of a way to train in which nothing travels, so that it has no rounds."""

    def __init__(
        self,
        name: str,
        accuracy: Accuracy,
        clusters: Mapping[str, str],
        models: Mapping[str, Tensors],
    ) -> None:
        self.algorithm, self.clusters, self.models = name, clusters, models
        self.history: tuple[Round, ...] = ()
        self.facts: dict[str, Any] = {}
        self._accuracy = accuracy

    @property
    def accuracy(self) -> Accuracy:
        return self._accuracy


def reference(name: str, result: "SimulationResult", say: Progress) -> Reference:
    """`local` or `pooled` for a result's fleet, learner, seed and rounds, trained as FedAvg trains."""
    return _local(result, say) if name == LOCAL else _pooled(result, say)


def _local(result: "SimulationResult", say: Progress) -> Reference:
    fleet, found, models = result.fleet, Accuracy(), dict[str, Tensors]()
    for number, (name, holding) in enumerate(fleet.items(), 1):
        say(f"local: {name}, device {number} of {len(fleet)}")
        alone = result.again("fedavg", fleet.like({name: holding}))
        found[name], models[name] = alone.accuracy[name], alone.models[GLOBAL]
    return Reference(LOCAL, found, {name: name for name in fleet}, models)


def _pooled(result: "SimulationResult", say: Progress) -> Reference:
    fleet, holdings = result.fleet, list(result.fleet.values())
    say("pooled: one device with the data of all")
    stages = max(holdings, key=lambda one: len(one.begins)).begins
    everyone = Holding(
        lambda stage: _together([one.stage(min(stage, len(one.begins) - 1)) for one in holdings]),
        stages,
        _together([one.test for one in holdings]),
    )
    pooled = result.again("fedavg", fleet.like({EVERYONE: everyone}))
    card, _ = find("fedavg")
    devices = SimulatedDevices(card, fleet.arranged(result.layout), result.learner, "cpu", result.seed)
    task = measurement(card.server(), pooled.state, GLOBAL)
    found = Accuracy({name: devices.accuracy(name, task) for name in fleet})
    return Reference(POOLED, found, dict.fromkeys(fleet, GLOBAL), pooled.models)


def _together(parts: list[Dataset]) -> Dataset:
    labels = [part.y for part in parts if part.y is not None]
    return Dataset(np.concatenate([part.x for part in parts]), np.concatenate(labels))
