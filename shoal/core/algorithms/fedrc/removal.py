"""Removal of models during a run: of those that explain too little, and of those that the others can
replace."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from shoal.core.algorithms.fedrc.state import MIN_COUNT, State, all_counts, bounded_tables, heaviest
from shoal.core.types import ModelKey


def without_idle_models(state: State) -> State:
    """The state without the models that have explained too little for too long (Algorithm 3).

    The heaviest model stays, whatever it explains. Devices distribute the weight of removed models over the
    others in their next round.
    """
    parameters = state.parameters
    if not parameters.remove_below:
        return state
    masses = np.maximum(all_counts(state).sum(axis=1), MIN_COUNT)
    shares = dict(zip(state.models, (masses / masses.sum()).tolist(), strict=True))
    low = {
        key: state.low.get(key, 0) + 1
        for key, share in shares.items()
        if share < min(parameters.remove_below, max(shares.values()))
    }
    gone = [key for key, rounds in low.items() if rounds >= parameters.remove_after]
    return _without(replace(state, low=low), gone, lambda key: f"explained {shares[key]:.1%} of all samples")


def without_spare_models(state: State) -> State:
    """The state with one model less, if the others have explained its devices' data nearly as well for long
    enough.

    Only one model is removed at a time: if two are alike, each can be replaced by the other, and removing
    both would lose their concept. Counting begins when the models have had `settle` rounds to separate.
    """
    parameters = state.parameters
    if not parameters.replaceable or state.progress < parameters.settle or len(state.models) == 1:
        return state
    needs = _needs(state)
    spare = {key: state.spare.get(key, 0) + 1 for key, need in needs.items() if need < parameters.replaceable}
    removable = [key for key, rounds in spare.items() if rounds >= parameters.remove_after]
    if not removable:
        return replace(state, spare=spare)
    least = min(removable, key=lambda key: needs[key])
    reason = f"was needed for only {needs[least]:.2g} nats per sample"
    # Without the removed model the needs of the others change, so all of them are counted from 0 again.
    return _without(replace(state, spare={}), [least], lambda key: reason)


def _needs(state: State) -> dict[ModelKey, float]:
    """How much worse the next best model explains what each model explains, in nats per sample, as the
    devices report it.

    A device that lies can keep a model in the run. Removing a model that others need takes a large part of
    what the model explains, and no device counts for more than its share of the total.
    """
    gains, masses = np.zeros(len(state.models)), np.zeros(len(state.models))
    tables = bounded_tables(state)
    for device, costs in sorted(state.scores.items()):
        mass = tables[device].sum(axis=1)
        others = np.where(np.eye(len(costs), dtype=bool), np.inf, costs).min(axis=1)
        gains += mass * np.maximum(others - costs, 0.0)
        masses += mass
    return dict(zip(state.models, (gains / np.maximum(masses, MIN_COUNT)).tolist(), strict=True))


def _without(state: State, gone: Sequence[ModelKey], reason: Callable[[ModelKey], str]) -> State:
    if not gone:
        return state
    models = {key: model for key, model in state.models.items() if key not in gone}
    rows = [number for number, key in enumerate(state.models) if key not in gone]
    tables = {device: each[rows] for device, each in state.tables.items()}
    remarks = tuple(f"model {key} was removed after round {state.progress}: it {reason(key)}" for key in gone)
    return replace(
        state,
        models=models,
        tables=tables,
        scores={device: each[rows] for device, each in state.scores.items()},
        low={key: rounds for key, rounds in state.low.items() if key not in gone},
        removed=(*state.removed, *remarks),
        assignments={**state.assignments, **heaviest(tables, list(models))},
        guard=state.guard.only(models),
    )
