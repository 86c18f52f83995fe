"""How the algorithm of a run is run: its server half, its parameters and the type of its states."""

import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, cast

from fedserver.store.records import RunSpec
from shoal.core.algorithm import Basis, ServerHalf, State, basis_of, begun_with, find, most_rounds
from shoal.core.algorithm.asks import terms_of, terms_of_measuring
from shoal.core.data.scale import with_scale
from shoal.core.engine.bootstrap import Bootstrap, Unstarted
from shoal.core.errors import ConfigError, Refused
from shoal.core.exchange.tensors import check_finite
from shoal.core.privacy.secure.cohort import MIN_COHORT
from shoal.core.server_kit import going_on, measuring
from shoal.core.server_kit.aggregation import encoded
from shoal.core.server_kit.aggregation.guard import Guard
from shoal.core.server_kit.clustered import DONE, EVALUATE, LAST_CHOICE
from shoal.core.server_kit.measuring import Measuring
from shoal.core.server_kit.standard import accuracy_cost
from shoal.core.server_kit.summing import Summing
from shoal.core.types import DeviceId, ModelKey, Tensors


@dataclass(frozen=True)
class Recipe:
    """How to run an algorithm. server_half: its server half. state: the type of its states, for the
    checkpoints."""

    server_half: Bootstrap
    state: Any

    def start(
        self,
        model: Tensors | None,
        bases: Sequence[Basis] = (),
        groups: Mapping[DeviceId, ModelKey] | None = None,
        scale: Tensors | None = None,
    ) -> State:
        """The first state. Without an initial model, the run first asks a device for one. bases: of
        earlier runs, see `shoal.core.algorithm.basis`. groups: the clusters of the run that the parameter
        `of` names. scale: of the inputs, by the run that `inputs` names."""
        if model is None and self.server_half.models:
            return Unstarted(bases=tuple(bases), scale=scale or {})
        model = {} if model is None else with_scale(model, scale or {})
        check_finite(model, "the initial model")
        encoded.check(model, self.server_half.parameters)  # refused now or never
        started: State = self.server_half.start(model, self.server_half.parameters)
        if groups is not None:
            started = cast(Any, started).begun_for(groups)
        return begun_with(started, *bases)

    def goes_on_from(self, state: State) -> State:
        """The first state of a run that goes on from a release of this state."""
        return cast(State, going_on.first_state(self.server_half.inner, state, self.server_half.parameters))


def recipe_of(spec: RunSpec) -> Recipe:
    """The recipe of a specification. Raises ConfigError if an algorithm, preset or parameter is unknown, or
    if the policy does not suit them."""
    algorithm, variant = find(spec.algorithm)
    parameters = algorithm.configure(spec.preset, {**variant, **spec.parameters})
    server_half = algorithm.server()
    state = algorithm.state_type()
    if spec.evaluate is not None:
        return Recipe(Bootstrap(cast(ServerHalf, measuring), parameters), typing.Union[Measuring, Unstarted])  # noqa: UP007
    bootstrap = Bootstrap(server_half, parameters, algorithm.initial(parameters))
    if getattr(parameters, "secure_aggregation", False):
        _check_cohorts(spec)
    return Recipe(bootstrap, typing.Union[state, Unstarted])  # noqa: UP007


def terms_of_run(spec: RunSpec, state: State) -> str:
    """What devices get to know of a run before their first task of it."""
    card, parameters = find(spec.algorithm)[0], recipe_of(spec).server_half.parameters
    if spec.evaluate is not None:
        return terms_of_measuring(card, accuracy_cost(parameters))
    return terms_of(card, parameters, basis_of(state), spec.series)


def may_share(spec: RunSpec, other: RunSpec) -> bool:
    """Whether a device may take part in both runs, by its labels."""
    return all(spec.labels.get(name, value) == value for name, value in other.labels.items())


def _check_cohorts(spec: RunSpec) -> None:
    """Raise ConfigError for a policy with which no round of secure aggregation could be completed: its four
    exchanges need the same devices."""
    if spec.policy.devices:
        raise ConfigError(
            f"with secure aggregation all devices take part in each round, and not {spec.policy.devices}",
            "set devices to 0",
        )
    if spec.policy.minimum < MIN_COHORT:
        raise ConfigError(
            f"secure aggregation needs {MIN_COHORT} devices, and the minimum of the run is "
            f"{spec.policy.minimum}",
            f"set minimum to {MIN_COHORT} or more",
        )


def with_rounds(state: State, rounds: int) -> State:
    """The state of a run that has this many rounds of training in all.

    Raises Refused if the state does not know the number, if its training is over, or if noise was scaled for
    the present number.
    """
    parameters: Any = getattr(state, "parameters", None)
    if parameters is None or "rounds" not in {each.name for each in fields(parameters)}:
        raise Refused(
            "this run has no number of rounds that can be changed", "try again after its first round"
        )
    if getattr(state, "phase", "") in (LAST_CHOICE, EVALUATE, DONE):
        raise Refused(
            "the training of this run is over, and it only measures its models now",
            "let it finish, and go on from its release: fedserver run start NAME --from RELEASE",
        )
    if rounds <= state.progress:
        raise ConfigError(f"{state.progress} rounds are complete already", "use a larger number of rounds")
    most, epsilon = most_rounds(parameters), getattr(parameters, "dp_epsilon", 0.0)
    if rounds > most and epsilon:
        raise Refused(
            f"its devices add the noise for {most} rounds at epsilon {epsilon:g}",
            "start another run, with the number of rounds that you need",
        )
    return cast(State, replace(cast(Any, state), parameters=replace(parameters, rounds=rounds)))


def with_rounds_of(present: State, earlier: State) -> State:
    """An earlier state of a run with the number of rounds that it has now, which an operator may have changed
    since."""
    now, then = getattr(present, "parameters", None), getattr(earlier, "parameters", None)
    if now is None or then is None or getattr(now, "rounds", 0) == getattr(then, "rounds", 0):
        return earlier
    return cast(State, replace(cast(Any, earlier), parameters=replace(then, rounds=now.rounds)))


def with_readmitted(state: State, devices: Sequence[DeviceId]) -> State:
    """The state of a run in which quarantined devices are asked, and their updates count, again.

    Raises Refused if one of them is not quarantined.
    """
    guard: Guard = getattr(state, "guard", Guard())
    summing: Summing | None = getattr(state, "summing", None)
    held = {*guard.quarantined, *(summing.excluded if summing else ())}
    for device in devices:
        if device not in held:
            others = f"these are: {', '.join(sorted(held))}" if held else "no device of this run is"
            raise Refused(f"{device!r} is not quarantined in this run", others)
    found = replace(cast(Any, state), guard=guard.readmitted(devices))
    return cast(State, replace(found, summing=summing.readmitted(devices)) if summing else found)
