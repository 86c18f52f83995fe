"""The state of a FedRC run: one frozen value, which is also its checkpoint."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np

from shoal.core.algorithms.fedrc import Parameters
from shoal.core.errors import ConfigError
from shoal.core.exchange.parts import FloatArray, MixtureCounts
from shoal.core.server_kit.aggregation.influence import believed
from shoal.core.server_kit.clustered import Clustered
from shoal.core.types import DeviceId, ModelKey, Scalar

MIN_COUNT = 1e-8
"""In samples: the least count of a class with a model, without smoothing (the authors' code)."""


@dataclass(frozen=True, eq=False, kw_only=True)
class State(Clustered):
    """phase: train, evaluate or done. progress: the number of completed rounds of training.

    tables: the last class counts of every device, (K, C) in samples, with rows in the order of `models`.
    scores: how badly each model explains a device's data, as last reported, (K,) in nats per sample.
    low: for how many rounds in a row a model has explained less than `remove_below`. spare: for how many it
    could have been replaced at a cost below `replaceable`. removed: remarks on the removed models. figures:
    mean accuracies at the end, by the kind of prediction.
    """

    GOES_ON_IN: ClassVar[str] = "train"

    parameters: Parameters
    phase: str = "train"
    tables: Mapping[DeviceId, FloatArray] = field(default_factory=dict)
    scores: Mapping[DeviceId, FloatArray] = field(default_factory=dict)
    low: Mapping[ModelKey, int] = field(default_factory=dict)
    spare: Mapping[ModelKey, int] = field(default_factory=dict)
    removed: tuple[str, ...] = ()
    figures: Mapping[str, float] = field(default_factory=dict)

    def again(self, parameters: Parameters) -> "State":
        """See `Clustered`. The models differ already, so devices begin with equal weights. Raises ConfigError
        for another number of classes than the tables have."""
        if parameters.classes != (classes := self.parameters.classes):
            raise ConfigError(
                f"the run goes on from how many samples of {classes} classes each model explains",
                f"set classes={classes}, or start a run from initial weights",
            )
        parameters = replace(parameters, first="equal", as_one=0)
        return replace(super().again(parameters), low={}, spare={}, removed=(), figures={})

    @property
    def facts(self) -> Mapping[str, Scalar]:
        return {"clusters": len(self.models), **self.figures}

    @property
    def remarks(self) -> Sequence[str]:
        return (*self.removed, *self.guard.remarks)


def table(state: State) -> MixtureCounts | None:
    """(K, C), rows that sum to 1: how common each class is with each model (eq. 2), from the devices' last
    reports.

    None in the first round, when all classes are equally common with all models.
    """
    if not state.tables or not state.parameters.table:
        return None
    counts = np.maximum(all_counts(state) + state.parameters.smoothing, MIN_COUNT)
    return MixtureCounts(counts / counts.sum(axis=1, keepdims=True))


def all_counts(state: State) -> FloatArray:
    """(K, C), in samples."""
    total = np.zeros_like(next(iter(state.tables.values())))
    for _, each in sorted(bounded_tables(state).items()):
        total += each
    return total


def bounded_tables(state: State) -> dict[DeviceId, FloatArray]:
    """By device, (K, C), in samples. A device reports its number of samples itself, so unless the rule is
    "mean" none counts for more than `influence.believed` allows."""
    if state.parameters.aggregation == "mean":
        return dict(state.tables)
    sizes = {device: float(each.sum()) for device, each in state.tables.items()}
    allowed = believed(sizes)
    return {device: each * (allowed[device] / sizes[device]) for device, each in state.tables.items()}


def heaviest(tables: Mapping[DeviceId, FloatArray], keys: Sequence[ModelKey]) -> dict[DeviceId, ModelKey]:
    """The model that explains most of each device's data; the first one of equal models."""
    return {device: keys[int(np.argmax(each.sum(axis=1)))] for device, each in tables.items()}
