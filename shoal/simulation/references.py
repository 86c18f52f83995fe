"""What a fleet's accuracy is held against: each device by itself, and all data in one place.

Neither is an algorithm for real devices. `local` is what a device has that takes part in nothing, and
`pooled` is what would be if the data could leave the devices. Both are trained as FedAvg trains.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from shoal.core.data.dataset import Dataset
from shoal.core.server_kit.clustered import GLOBAL
from shoal.core.types import Tensors
from shoal.result import Accuracy, Result, Round
from shoal.simulation.fleet import Fleet, Holding
from shoal.simulation.progress import Progress

LOCAL, POOLED = "local", "pooled"
NAMES = (LOCAL, POOLED)
EVERYONE = "everyone"

Train = Callable[[Fleet], Result]
"""FedAvg on a fleet, with the model, seed and parameters of the run that is compared."""
Measure = Callable[[Tensors], Accuracy]
"""The accuracy of a model on the test part of each device."""


class Reference(Result):
    """Accuracies of a way to train in which nothing travels, so that it has no rounds."""

    def __init__(
        self, name: str, accuracy: Accuracy, clusters: Mapping[str, str], models: Mapping[str, Tensors]
    ) -> None:
        self.algorithm, self.clusters, self.models = name, clusters, models
        self.history: tuple[Round, ...] = ()
        self.facts: dict[str, Any] = {}
        self._accuracy = accuracy

    @property
    def accuracy(self) -> Accuracy:
        return self._accuracy


def local(fleet: Fleet, train: Train, say: Progress) -> Reference:
    """Each device by itself."""
    found, models = Accuracy(), dict[str, Tensors]()
    for number, (name, holding) in enumerate(fleet.items(), 1):
        say(f"local: {name}, device {number} of {len(fleet)}")
        alone = train(fleet.like({name: holding}))
        found[name], models[name] = alone.accuracy[name], alone.models[GLOBAL]
    return Reference(LOCAL, found, {name: name for name in fleet}, models)


def pooled(fleet: Fleet, train: Train, measure: Measure, say: Progress) -> Reference:
    """One device with the data of all."""
    say("pooled: one device with the data of all")
    holdings = list(fleet.values())
    stages = max(holdings, key=lambda one: len(one.begins)).begins
    everyone = Holding(
        lambda stage: _together([one.stage(min(stage, len(one.begins) - 1)) for one in holdings]),
        stages,
        _together([one.test for one in holdings]),
    )
    models = train(fleet.like({EVERYONE: everyone})).models
    return Reference(POOLED, measure(models[GLOBAL]), dict.fromkeys(fleet, GLOBAL), models)


def _together(parts: list[Dataset]) -> Dataset:
    labels = [part.y for part in parts if part.y is not None]
    return Dataset(np.concatenate([part.x for part in parts]), np.concatenate(labels))
