"""The scale of a fleet's inputs, which a run asks its devices for before anything else.

    is_due --> ask --> take --> carried, after each round

`shoal.core.data.scale` says what it is. No algorithm knows of it: the exchange comes before the algorithm's
first phase, and what a round makes of the models is given the same scale again, whatever devices have sent.
Clusters that are formed later get those of their own groups as they begin, where these differ much.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol, TypeVar, cast

from shoal.core.algorithm import Plan, Report, State, basis_of
from shoal.core.algorithm.training import leaves_inputs_raw, scales_inputs
from shoal.core.data.scale import MEAN, Summary, merged, of_group, scale_of, with_scale
from shoal.core.exchange.messages import Summarize, Summarized
from shoal.core.types import DeviceId, ModelKey, Tensors


class Scaled(State, Protocol):
    """A state that has a scale; None: it was not asked for yet."""

    @property
    def parameters(self) -> Any: ...
    @property
    def scale(self) -> Tensors | None: ...
    @property
    def summaries(self) -> Mapping[DeviceId, Summary] | None: ...


S = TypeVar("S", bound=Scaled)


def is_due(state: Scaled) -> bool:
    """Whether the next exchange is to ask for the scale, which a run may have been given with its first
    model, or have of an earlier run."""
    return state.scale is None and scales_inputs(state.parameters) and not given(state)


def stayed_raw(state: Any) -> str:
    """In one sentence, that inputs have no scale as the run protects weights, and the way out; else "".
    Pixels need none."""
    if not leaves_inputs_raw(getattr(state, "parameters", None)) or given(state) or _of_images(state):
        return ""
    return (
        "inputs stay in their own units, as this run protects weights: where columns are in different units, "
        "count them in a run of `statistics` that protects data likewise, and give its name to `inputs`"
    )


def _of_images(state: Scaled) -> bool:
    """Whether the network has convolutions of two dimensions."""
    return any(array.ndim == 4 for model in state.models.values() for array in model.values())


def ask(present: Sequence[DeviceId]) -> Plan:
    task = Summarize()
    return Plan(dict.fromkeys(present, task), "mean and deviation of the inputs", others=task)


def take(state: S, reports: Sequence[Report], forms: bool) -> S:
    """forms: whether the run forms clusters later, for which what each device said is kept until then."""
    heard = {each.device: each.message.summary for each in reports if isinstance(each.message, Summarized)}
    scale = merged(list(heard.values()))
    # One model that is a mixture of those of several clusters can have one scale only.
    kept = forms and MEAN in scale and getattr(state.parameters, "mixing", "hard") != "soft"
    taken: S = replace(cast(Any, state), scale=scale, summaries=heard if kept else None)
    return taken


def carried(before: Scaled, state: S) -> S:
    """The state after a round, whose models have the scales that they had before it, and those of new
    clusters their own, or that of the model with which they begin. A model that several clusters share stays
    one object."""
    scale = given(state) if state.scale is None else state.scale
    if not scale:
        return state
    had = {key: scale_of(model) for key, model in before.models.items()}
    new = [key for key in state.models if key not in had]
    own, heard = {}, state.summaries
    if heard and new:
        own, heard = _of_groups(new, state.assignments, scale, heard), None
    models = dict(state.models)  # which keeps them, so that no two have one identity
    same = {id(model): had[key] for key, model in before.models.items()}
    scales = {
        key: own.get(key) or same.get(id(model)) or had.get(key) or scale for key, model in models.items()
    }
    made: dict[tuple[int, int], Tensors] = {}
    after = {
        key: made.setdefault((id(model), id(scales[key])), with_scale(model, scales[key]))
        for key, model in models.items()
    }
    found: S = replace(cast(Any, state), scale=scale, models=after, summaries=heard)
    first: Tensors | None = getattr(state, "initial", None)  # of algorithms that begin clusters later
    return found if first is None else replace(cast(Any, found), initial=with_scale(first, scale))


def _of_groups(
    keys: Collection[ModelKey],
    assignments: Mapping[DeviceId, ModelKey],
    scale: Tensors,
    heard: Mapping[DeviceId, Summary],
) -> dict[ModelKey, Tensors]:
    groups: dict[ModelKey, list[Summary]] = {key: [] for key in keys}
    for device, key in sorted(assignments.items()):
        if key in groups:
            groups[key].append(heard.get(device, Summary((), ())))
    return {key: of_group(scale, group) for key, group in groups.items()}


def given(state: Scaled) -> Tensors:
    """The scale that a model of the run brought with it, or the encoder of an earlier run; else empty."""
    basis = basis_of(state) if scales_inputs(state.parameters) else None
    models = [*state.models.values(), *([] if basis is None else [basis.encoder])]
    return next((found for found in map(scale_of, models) if found), {})
