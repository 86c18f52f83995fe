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
from shoal.result import Accuracy, Comparison, NotKnown, Placement, Result, Round
from shoal.simulation.fleet import Fleet, Holding
from shoal.simulation.progress import Progress

LOCAL, POOLED = "local", "pooled"
NAMES = (LOCAL, POOLED)
EVERYONE = "everyone"
OF_RUN = "ask the result that was compared"

Train = Callable[[Fleet], Result]
"""FedAvg on a fleet, with the model, seed and parameters of the run that is compared."""
Measure = Callable[[Tensors], Accuracy]
"""The accuracy of a model on the test part of each device."""


class Reference(Result):
    """Accuracies of a way to train in which nothing travels, so that it has no rounds."""

    def __init__(
        self,
        name: str,
        accuracy: Accuracy,
        clusters: Mapping[str, str],
        models: Mapping[str, Tensors],
        network: Any,
    ) -> None:
        """network: what the models are weights of."""
        self.algorithm, self.clusters, self.models = name, clusters, models
        self._network = network
        self.history: tuple[Round, ...] = ()
        self.facts: dict[str, Any] = {}
        self._accuracy = accuracy

    @property
    def accuracy(self) -> Accuracy:
        return self._accuracy

    def place(self, x: Any, y: Any = None) -> Placement:
        raise NotKnown(f"{self.algorithm} has no clusters for newcomers", OF_RUN)

    def compare(self, *algorithms: str, progress: bool | Progress | None = None) -> Comparison:
        raise NotKnown(f"{self.algorithm} is what other results are compared with", OF_RUN)

    def _model(self) -> Any:
        return self._network


def local(fleet: Fleet, train: Train, say: Progress) -> Reference:
    """Each device by itself."""
    found, models, network = Accuracy(), dict[str, Tensors](), None
    for number, (name, holding) in enumerate(fleet.items(), 1):
        say(f"local: {name}, device {number} of {len(fleet)}")
        alone = train(fleet.like({name: holding}))
        found[name], models[name], network = alone.accuracy[name], alone.models[GLOBAL], alone._model()
    return Reference(LOCAL, found, {name: name for name in fleet}, models, network)


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
    found = train(fleet.like({EVERYONE: everyone}))
    accuracy = measure(found.models[GLOBAL])
    return Reference(POOLED, accuracy, dict.fromkeys(fleet, GLOBAL), found.models, found._model())


def _together(parts: list[Dataset]) -> Dataset:
    labels = [part.y for part in parts if part.y is not None]
    return Dataset(np.concatenate([part.x for part in parts]), np.concatenate(labels))
