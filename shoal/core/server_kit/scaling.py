"""The scale of a fleet's inputs, which a run asks its devices for before anything else.

    is_due --> ask --> take --> carried, after each round

`shoal.core.data.scale` says what it is. No algorithm knows of it: the exchange comes before the algorithm's
first phase, and what a round makes of the models is given the same scale again, whatever devices have sent.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Protocol, TypeVar, cast

from shoal.core.algorithm import Plan, Report, State, basis_of
from shoal.core.algorithm.training import scales_inputs
from shoal.core.data.scale import merged, scale_of, with_scale
from shoal.core.exchange.messages import Summarize, Summarized
from shoal.core.types import DeviceId, Tensors


class Scaled(State, Protocol):
    """A state that has a scale; None: it was not asked for yet."""

    @property
    def parameters(self) -> Any: ...
    @property
    def scale(self) -> Tensors | None: ...


S = TypeVar("S", bound=Scaled)


def is_due(state: Scaled) -> bool:
    """Whether the next exchange is to ask for the scale, which a run may have been given with its first
    model, or have of an earlier run."""
    return state.scale is None and scales_inputs(state.parameters) and not _given(state)


def ask(present: Sequence[DeviceId]) -> Plan:
    return Plan(dict.fromkeys(present, Summarize()), "mean and deviation of the inputs")


def take(state: S, reports: Sequence[Report]) -> S:
    found: S = replace(
        cast(Any, state),
        scale=merged([each.message.summary for each in reports if isinstance(each.message, Summarized)]),
    )
    return found


def carried(state: S) -> S:
    """The state whose models have the run's scale. A model that several clusters share stays one object."""
    scale = _given(state) if state.scale is None else state.scale
    if not scale:
        return state
    before = dict(state.models)  # which keeps them, so that no two have one identity
    made = {id(model): with_scale(model, scale) for model in before.values()}
    after = {key: made[id(model)] for key, model in before.items()}
    found: S = replace(cast(Any, state), scale=scale, models=after)
    first: Tensors | None = getattr(state, "initial", None)  # of algorithms that begin clusters later
    return found if first is None else replace(cast(Any, found), initial=with_scale(first, scale))


def _given(state: Scaled) -> Tensors:
    """The scale that a model of the run brought with it, or the encoder of an earlier run; else empty."""
    basis = basis_of(state) if scales_inputs(state.parameters) else None
    models = [*state.models.values(), *([] if basis is None else [basis.encoder])]
    return next((found for found in map(scale_of, models) if found), {})
