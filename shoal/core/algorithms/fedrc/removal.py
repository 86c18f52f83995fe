"""Models that go while a run goes on: those that explain too little, or that the others can replace."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from shoal.core.algorithms.fedrc.state import LEAST, State, all_counts, bounded_tables, heaviest
from shoal.core.types import ModelKey


def without_idle_models(state: State) -> State:
    """The models that have explained too little for too long are gone (Algorithm 3).

    The heaviest model stays whatever it explains. Devices share the weight of those that are gone among the
    others when they hear of it.
    """
    parameters = state.parameters
    if not parameters.remove_below:
        return state
    masses = np.maximum(all_counts(state).sum(axis=1), LEAST)
    shares = dict(zip(state.models, (masses / masses.sum()).tolist(), strict=True))
    low = {
        key: state.low.get(key, 0) + 1
        for key, share in shares.items()
        if share < min(parameters.remove_below, max(shares.values()))
    }
    gone = [key for key, rounds in low.items() if rounds >= parameters.remove_after]
    return _without(replace(state, low=low), gone, lambda key: f"explained {shares[key]:.1%} of all samples")


def without_spare_models(state: State) -> State:
    """One model less, where the others have explained its devices' data nearly as well for long enough.

    One at a time: of two that are alike, each can be replaced by the other. The counting begins when models
    have had `settle` rounds to part.
    """
    parameters = state.parameters
    if not parameters.replaceable or state.progress < parameters.settle or len(state.models) == 1:
        return state
    needs = _needs(state)
    spare = {key: state.spare.get(key, 0) + 1 for key, need in needs.items() if need < parameters.replaceable}
    due = [key for key, rounds in spare.items() if rounds >= parameters.remove_after]
    if not due:
        return replace(state, spare=spare)
    least = min(due, key=lambda key: needs[key])
    said = f"was needed for {needs[least]:.2g} nats a sample"
    return _without(replace(state, spare={}), [least], lambda key: said)


def _needs(state: State) -> dict[ModelKey, float]:
    """How much worse the next best model explains what each does, in nats a sample, by the devices' word.

    A device that lies can keep a model in the run. To take one out that others need takes a large part of
    what the model explains, and no device counts for more than its share of all.
    """
    gains, masses = np.zeros(len(state.models)), np.zeros(len(state.models))
    tables = bounded_tables(state)
    for device, costs in sorted(state.scores.items()):
        mass = tables[device].sum(axis=1)
        others = np.where(np.eye(len(costs), dtype=bool), np.inf, costs).min(axis=1)
        gains += mass * np.maximum(others - costs, 0.0)
        masses += mass
    return dict(zip(state.models, (gains / np.maximum(masses, LEAST)).tolist(), strict=True))


def _without(state: State, gone: Sequence[ModelKey], said: Callable[[ModelKey], str]) -> State:
    if not gone:
        return state
    models = {key: model for key, model in state.models.items() if key not in gone}
    rows = [number for number, key in enumerate(state.models) if key not in gone]
    tables = {device: each[rows] for device, each in state.tables.items()}
    remarks = tuple(f"model {key} was removed after round {state.progress}: it {said(key)}" for key in gone)
    return replace(
        state,
        models=models,
        tables=tables,
        scores={device: each[rows] for device, each in state.scores.items()},
        low={key: rounds for key, rounds in state.low.items() if key not in gone},
        removed=(*state.removed, *remarks),
        assignments={**state.assignments, **heaviest(tables, list(models))},
        guard=replace(
            state.guard,
            references={key: size for key, size in state.guard.references.items() if key in models},
            of_round={key: texts for key, texts in state.guard.of_round.items() if key in models},
        ),
    )
