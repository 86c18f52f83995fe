"""The state of a FedRC run: one frozen value, which is also its checkpoint."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from fedcore.algorithms.fedrc import Parameters
from fedcore.central.averaging import Guard
from fedcore.central.robust import SHARE, capped
from fedcore.messages import Evaluated
from fedcore.parts import MixtureCounts, Vector
from fedcore.types import DeviceId, ModelKey, Scalar, Tensors

LEAST = 1e-8
"""Samples: what a class counts at least with a model, without smoothing (the authors' code)."""


@dataclass(frozen=True, eq=False)
class State:
    """phase: train, evaluate or done. progress: rounds of training done.

    tables: the last class counts of every device, (K, C) in samples, rows in the order of `models`.
    low: for how many rounds in a row a model has explained less than `remove_below`. removed: what was said
    of those that are gone. figures: mean accuracies in the end, by the way of predicting.
    """

    parameters: Parameters
    models: Mapping[ModelKey, Tensors]
    phase: str = "train"
    progress: int = 0
    tables: Mapping[DeviceId, Vector] = field(default_factory=dict)
    low: Mapping[ModelKey, int] = field(default_factory=dict)
    removed: tuple[str, ...] = ()
    figures: Mapping[str, float] = field(default_factory=dict)
    assignments: Mapping[DeviceId, ModelKey] = field(default_factory=dict)
    metrics: Mapping[DeviceId, Evaluated] = field(default_factory=dict)
    guard: Guard = field(default_factory=Guard)

    @property
    def facts(self) -> Mapping[str, Scalar]:
        return {"clusters": len(self.models), **self.figures}

    @property
    def remarks(self) -> Sequence[str]:
        return (*self.removed, *self.guard.remarks)


def table(state: State) -> MixtureCounts | None:
    """(K, C), rows that sum to 1: how usual each class is with each model (eq. 2), by what devices said last.

    None in the first round, when all classes are as usual with all models.
    """
    if not state.tables or not state.parameters.table:
        return None
    counts = np.maximum(_all_counts(state) + state.parameters.smoothing, LEAST)
    return MixtureCounts(counts / counts.sum(axis=1, keepdims=True))


def _all_counts(state: State) -> Vector:
    """(K, C), in samples. How many a device has is its own word: so where updates are bounded, none counts
    for more than its share of all, as in `fedcore.central.robust`."""
    total = np.zeros_like(next(iter(state.tables.values())))
    sizes = {device: float(each.sum()) for device, each in state.tables.items()}
    bounded = state.parameters.aggregation != "mean"
    allowed = capped(sizes, max(SHARE, 2.0 / len(sizes))) if bounded else sizes
    for device, each in sorted(state.tables.items()):
        total += each * (allowed[device] / sizes[device] if bounded else 1.0)
    return total


def heaviest(tables: Mapping[DeviceId, Vector], keys: Sequence[ModelKey]) -> dict[DeviceId, ModelKey]:
    """The model that explains most of each device's data; the first of several."""
    return {device: keys[int(np.argmax(each.sum(axis=1)))] for device, each in tables.items()}


def without_idle_models(state: State) -> State:
    """The models that have explained too little for too long are gone (Algorithm 3).

    The heaviest model stays whatever it explains. Devices share the weight of those that are gone among the
    others when they hear of it.
    """
    parameters = state.parameters
    if not parameters.remove_below:
        return state
    masses = np.maximum(_all_counts(state).sum(axis=1), LEAST)
    shares = dict(zip(state.models, (masses / masses.sum()).tolist(), strict=True))
    low = {
        key: state.low.get(key, 0) + 1
        for key, share in shares.items()
        if share < min(parameters.remove_below, max(shares.values()))
    }
    gone = [key for key, rounds in low.items() if rounds >= parameters.remove_after]
    if not gone:
        return replace(state, low=low)
    models = {key: model for key, model in state.models.items() if key not in gone}
    rows = [number for number, key in enumerate(state.models) if key not in gone]
    tables = {device: each[rows] for device, each in state.tables.items()}
    said = tuple(
        f"model {key} was removed after round {state.progress}: it explained {shares[key]:.1%} of all samples"
        for key in gone
    )
    return replace(
        state,
        models=models,
        tables=tables,
        low={key: rounds for key, rounds in low.items() if key not in gone},
        removed=(*state.removed, *said),
        assignments={**state.assignments, **heaviest(tables, list(models))},
        guard=replace(
            state.guard,
            references={key: size for key, size in state.guard.references.items() if key in models},
            of_round={key: texts for key, texts in state.guard.of_round.items() if key in models},
        ),
    )
