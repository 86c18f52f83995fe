"""What an algorithm is. One lives in one folder of `shoal/core/algorithms/` (or in another distribution,
under the entry point group `shoal.algorithms`), and is found there: no list is edited.

    algorithms/<name>/__init__.py   ALGORITHM = Algorithm(...), its parameters and presets
                      server.py     the server half: start, plan, reduce, place
                      device.py     the device half: perform
                      messages.py   what they say to each other, where the standard messages do not do

A half is loaded by name and only where it runs: a device never imports scikit-learn, a server never torch.
"""

import importlib
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any, Protocol

from shoal.core.errors import ConfigError, near
from shoal.core.exchange.messages import STANDARD, Evaluate, Evaluated, Message
from shoal.core.exchange.parts import ClusterAssignment, Evidence
from shoal.core.types import DeviceId, ModelKey, Scalar, Tensors

if TYPE_CHECKING:
    from shoal.core.device_kit.context import DeviceContext


class Written(str):
    """What stands in a text, where YAML reads something else in it: `off` is false, and 12:30 is 750.

    meant: what YAML reads. Settings mean that; a parameter, whose type is known later, may want the text.
    """

    meant: Any

    def __new__(cls, text: str, meant: Any) -> "Written":
        written = super().__new__(cls, text)
        written.meant = meant
        return written


LASTING: Mapping[str, bool] = {"lasting": True}
"""Metadata of a field of a state that stays as it is when a run goes back to an earlier one."""


@dataclass(frozen=True)
class RoundParameters:
    """What an algorithm's parameters may begin with.

    rounds: of training. epochs to restart_momentum: see `shoal.core.exchange.messages.TrainingSettings`.
    aggregation: how updates become a model, and what a hostile one can do; see
    `shoal.core.server_kit.robust`. evaluate: measure on the devices' test parts, as the last exchange, what
    they then use.
    """

    rounds: int = 10
    epochs: int = 2
    batch_size: int = 64
    learning_rate: float = 0.005
    momentum: float = 0.9
    weight_decay: float = 0.0
    restart_momentum: bool = False
    aggregation: str = "clipped"
    evaluate: bool = True


@dataclass(frozen=True)
class TrainingParameters(RoundParameters):
    """Those of an algorithm whose devices train by the standard messages alone.

    dp_epsilon, dp_delta, dp_clip, dp_noise: DP-SGD on the devices, see
    `shoal.core.exchange.messages.PrivateTraining`;
        dp_epsilon 0 and dp_noise 0: without.
    """

    dp_epsilon: float = 0.0
    dp_delta: float = 1e-6
    dp_clip: float = 1.0
    dp_noise: float = 0.0


class State(Protocol):
    """What every algorithm's state shows. A frozen dataclass, and all there is to resume from.

    models: the models of the run by key. assignments: which of them each device is trained with.
    metrics: what each device measured last, for reports. progress: rounds of training done.
    facts: what else people may want to know, such as the round that formed the clusters.
    remarks: what an operator should be told of how the models came to be; the run's log gets each when it is
        new, so one that holds on is written once.
    """

    @property
    def models(self) -> Mapping[ModelKey, Tensors]: ...
    @property
    def assignments(self) -> Mapping[DeviceId, ModelKey]: ...
    @property
    def metrics(self) -> Mapping[DeviceId, Evaluated]: ...
    @property
    def progress(self) -> int: ...
    @property
    def facts(self) -> Mapping[str, Scalar]: ...
    @property
    def remarks(self) -> Sequence[str]: ...


@dataclass(frozen=True)
class Plan:
    """One round: a task for each device that is to take part, and a title for people."""

    tasks: Mapping[DeviceId, Message]
    title: str


@dataclass(frozen=True, eq=False)
class Report:
    """What a device answered. Tensors in it may be views of a spooled file: never write to them. As they are
    they may become part of the next state, and the file then stays; a view of them may not."""

    device: DeviceId
    message: Message


class ServerHalf(Protocol):
    """The server half, a module: pure functions over one frozen value, whose type it names `State`.

    One whose devices use more than a model of the run has a fifth function, `measure`: see `measurement`.
    """

    def start(self, model: Tensors, parameters: Any, *others: Tensors) -> Any:
        """The first state of a run. others: the further initial models, where the card asks for several; none
        where an operator gave the weights to start from. Who asks for one need not take them."""
        ...

    def plan(self, state: Any, present: Sequence[DeviceId]) -> Plan | None:
        """The next round for these devices (sorted), or None when the run is done. Cheap."""
        ...

    def reduce(self, state: Any, reports: Sequence[Report]) -> Any:
        """The next state, from at least one report, in device-id order. May be slow; may read twice.

        The reports were admitted (`shoal.core.exchange.admit`): each answers its task, is finite and of the
        right shape.
        """
        ...

    def place(self, state: Any, evidence: Evidence | None) -> ClusterAssignment | Message:
        """Which model fits a device that was never seen: the answer, or what it must compute first.

        That is a standard message whose answer is evidence: Describe, Score or Represent. The evidence was
        admitted: it answers what was asked of this state.

        Raises Refused when the run cannot place yet, or cannot without labels; says what would work.
        """
        ...


def measurement(server_half: ServerHalf, state: Any, cluster: ModelKey) -> Message:
    """The task by which a device of a cluster measures, on its test part, what it uses; Evaluated answers.

    That is the cluster's model, unless the server half says otherwise by `measure(state, cluster)`: where
    devices have personal models, say. Without a memory the same task measures what a newcomer would use.
    """
    own = getattr(server_half, "measure", None)
    task: Message = own(state, cluster) if own else Evaluate(state.models[cluster], "test", cluster)
    return task


class DeviceHalf(Protocol):
    """The device half, a module."""

    def perform(self, message: Message, context: "DeviceContext") -> Message:
        """Do what a message asks, with what the bench holds."""
        ...


@dataclass(frozen=True)
class Algorithm:
    """The card of an algorithm. parameters: a frozen dataclass type whose defaults are what we recommend.

    presets: named changes to the defaults. variants: names of their own for such changes ("flux-soft").
    initial: how many models with initial weights of their own a run with these parameters starts from.
    clustered_rounds: for parameters, the fewest and the most rounds of training that are on clusters; None
        where every round is, or where only the run can tell.
    """

    name: str
    summary: str
    parameters: type
    server_module: str
    device_module: str
    presets: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    variants: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    messages: Sequence[type[Message]] = ()
    initial: Callable[[Any], int] = lambda parameters: 1
    clustered_rounds: Callable[[Any], tuple[int, int]] | None = None

    def server(self) -> ServerHalf:
        return importlib.import_module(self.server_module)

    def device(self) -> DeviceHalf:
        return importlib.import_module(self.device_module)

    def messages_by_kind(self) -> dict[str, type[Message]]:
        return {message.kind: message for message in (*STANDARD, *self.messages)}

    def configure(self, preset: str = "default", changes: Mapping[str, Any] | None = None) -> Any:
        """The parameters of a preset with `changes` on top; a wrong name or type is a ConfigError."""
        if preset != "default" and preset not in self.presets:
            known = ["default", *self.presets]
            raise ConfigError(f"algorithm {self.name} has no preset {preset!r}", near(preset, known))
        parameters = replace(self.parameters(), **self.presets.get(preset, {}))
        names = [item.name for item in fields(self.parameters)]
        for name, value in self.typed(changes or {}).items():
            if name not in names:
                raise ConfigError(f"algorithm {self.name} has no parameter {name!r}", near(name, names))
            default = getattr(parameters, name)
            if type(default) is float and type(value) is int:
                value = float(value)
            if type(value) is not type(default):
                wanted = type(default).__name__
                raise ConfigError(f"parameter {name} of {self.name}: {wanted} is due, not {value!r}")
            parameters = replace(parameters, **{name: value})
        return parameters

    def typed(self, changes: Mapping[str, Any]) -> dict[str, Any]:
        """Changes as the parameters want them: a text is what was written, anything else what it means."""
        defaults = self.parameters()
        return {
            name: (str(value) if isinstance(getattr(defaults, name, None), str) else value.meant)
            if isinstance(value, Written)
            else value
            for name, value in changes.items()
        }


def find(name: str) -> tuple[Algorithm, Mapping[str, Any]]:
    """The algorithm of that name, and the changes to its parameters that a variant's name stands for."""
    algorithms = discover()
    for algorithm in algorithms.values():
        if name == algorithm.name:
            return algorithm, {}
        if name in algorithm.variants:
            return algorithm, algorithm.variants[name]
    known = [*algorithms, *(variant for a in algorithms.values() for variant in a.variants)]
    raise ConfigError(f"there is no algorithm {name!r}", near(name, known))


def discover() -> dict[str, Algorithm]:
    """Every installed algorithm by name: the folders here, then other distributions' entry points."""
    package = importlib.import_module("shoal.core.algorithms")
    cards = [
        importlib.import_module(f"{package.__name__}.{module.name}").ALGORITHM
        for module in pkgutil.iter_modules(package.__path__)
    ]
    cards += [point.load() for point in entry_points(group="shoal.algorithms")]
    return {card.name: card for card in cards}
