"""The card of an algorithm: its name, its parameters and its two halves; and the rules that every card
follows."""

import ast
import importlib
import importlib.util
import inspect
import re
import sys
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, is_dataclass, replace
from typing import Any

from shoal.core.algorithm.halves import DeviceHalf, ServerHalf
from shoal.core.algorithm.parameters import NOISED, ends_by_itself, most_rounds
from shoal.core.algorithm.settings import Setting, Written, checked, settings_of
from shoal.core.errors import ConfigError, near
from shoal.core.exchange.encoding.messages import ENCODED
from shoal.core.exchange.messages import STANDARD, Message
from shoal.core.exchange.summing import SECURE
from shoal.core.privacy.asks import WORD

STANDARD_DEVICE = "shoal.core.device_kit.standard"
"""The device half of an algorithm that needs only the standard messages."""
SERVER_FUNCTIONS = ("start", "plan", "reduce", "place")
NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")


SHARED = "shoal.core.algorithm.parameters"
"""Where the parameters are declared that algorithms share."""
PUBLISHED: Mapping[str, Any] = {
    "rounds": 10,
    "epochs": 2,
    "batch_size": 64,
    "learning_rate": 0.005,
    "optimizer": "sgd",
    "weight_decay": 0.0,
    "schedule": "constant",
    "inputs": "raw",
}
"""How the papers' common code trained, wherever a preset does not say otherwise."""
MIN_CLUSTERED_ROUNDS = 3
"""Fewer rounds than this hardly train the models of clusters, which begin as that of all devices."""


@dataclass(frozen=True)
class Algorithm:
    """The card of an algorithm.

    parameters: a frozen dataclass type, whose defaults are what we recommend.
    server_module, device_module: the halves. Each is the name of a module, which is imported where it runs,
    or any object that has the half's functions: a module, a class or a namespace.
    presets: named changes to the defaults, of published experiments: what they and the algorithm leave open
    about training is `PUBLISHED`. variants: such changes under a name of their own ("flux-soft").
    initial: how many models, each with initial weights of its own, a run with these parameters starts from;
    0: it trains no network.
    clustered_rounds: for given parameters, the fewest and the most rounds of training that train clusters;
    None if every round does, or if only the run itself can know.
    liars: for given parameters, what lying devices, fewer than a quarter of a group, can do to the others
    although updates are bounded (`server_kit.aggregation.influence`), in words; empty if nothing.
    about: text that begins with the citation; if it is empty, the docstring of the module that has
    `parameters`.
    """

    name: str
    summary: str
    parameters: type
    server_module: str | Any
    device_module: str | Any = STANDARD_DEVICE
    presets: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    variants: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    messages: Sequence[type[Message]] = ()
    initial: Callable[[Any], int] = lambda parameters: 1
    clustered_rounds: Callable[[Any], tuple[int, int]] | None = None
    liars: Callable[[Any], str] = lambda parameters: ""
    about: str = ""

    def server(self) -> ServerHalf:
        """The server half. Raises ConfigError if it lacks a function."""
        half = _loaded(self.server_module)
        for name in SERVER_FUNCTIONS:
            if not callable(getattr(half, name, None)):
                raise ConfigError(
                    f"the server half of algorithm {self.name} has no function {name}",
                    f"a server half has the functions {', '.join(SERVER_FUNCTIONS)}",
                )
        return typing.cast(ServerHalf, half)

    def device(self) -> DeviceHalf:
        """The device half. Raises ConfigError if it has no `perform`."""
        half = _loaded(self.device_module)
        if not callable(getattr(half, "perform", None)):
            raise ConfigError(f"the device half of algorithm {self.name} has no function perform")
        return typing.cast(DeviceHalf, half)

    def state_type(self) -> type:
        """The type of its states: the return annotation of `start`. States are stored by that type.

        Raises ConfigError if `start` has no such annotation.
        """
        half = self.server()
        found = typing.get_type_hints(half.start).get("return")
        if found is None or found is Any or not is_dataclass(found):
            raise ConfigError(
                f"algorithm {self.name} does not declare the type of its state",
                "annotate the return value of start with the state's type, a frozen dataclass",
            )
        return typing.cast(type, found)

    def messages_by_kind(self) -> dict[str, type[Message]]:
        return {message.kind: message for message in (*STANDARD, *SECURE, *ENCODED, *self.messages)}

    @property
    def own_tasks(self) -> tuple[str, ...]:
        """The kinds of the tasks that only its own device half can do, so that devices need it, too."""
        return tuple(message.kind for message in self.messages if hasattr(message, "reply"))

    @property
    def settings(self) -> dict[str, Setting]:
        """Every parameter by name: type, legal values, unit, default and meaning."""
        return settings_of(self.parameters)

    @property
    def documentation(self) -> str:
        """The description, which begins with the citation of the paper."""
        return self.about or (sys.modules[self.parameters.__module__].__doc__ or "").strip()

    @property
    def citation(self) -> str:
        """The first paragraph of the documentation, on one line."""
        return " ".join(self.documentation.split("\n\n")[0].split())

    def configure(self, preset: str = "default", changes: Mapping[str, Any] | None = None) -> Any:
        """The parameters of a preset with `changes` on top.

        Raises ConfigError, which names the parameter, its value and the legal values.

            Example:
                >>> find("ifca")[0].configure("paper", {"clusters": 3}).clusters
                3
        """
        values = {**self.preset(preset), **self.typed(changes or {})}
        return self.parameters(**checked(self.name, self.parameters, values))

    def preset(self, name: str) -> dict[str, Any]:
        """What a preset changes of the defaults. Raises ConfigError if there is none of that name.

        Example:
            >>> find("ifca")[0].preset("paper")["epochs"]
            2
        """
        if name == "default":
            return {}
        if name not in self.presets:
            raise ConfigError(
                f"algorithm {self.name} has no preset {name!r}", near(name, ["default", *self.presets])
            )
        shared = {key: value for key, value in PUBLISHED.items() if self._declares(key) == SHARED}
        return {**shared, **self.presets[name]}

    def _declares(self, parameter: str) -> str:
        """The module of the class that gives a parameter its default; "" if there is no such parameter."""
        own = (base for base in self.parameters.__mro__ if parameter in inspect.get_annotations(base))
        return next((base.__module__ for base in own), "")

    def clustering(self, parameters: Any) -> str:
        """How many of the rounds of training will train clusters, in words; "" if that is not known before.

        If they may be fewer than `MIN_CLUSTERED_ROUNDS`, it says how many rounds would leave that many.

            Example:
                >>> flux.clustering(flux.configure("default", {"rounds": 6}))
                '1 to 2 of 6 rounds of training are on clusters; give at least rounds=15 for 3 of them'
        """
        if self.clustered_rounds is None:
            return ""
        least, most = self.clustered_rounds(parameters)
        span = f"{least}" if least == most else f"{least} to {most}"
        most = most_rounds(parameters)
        some = f"at most {most}" if ends_by_itself(parameters) else f"{most}"
        found = f"{span} of {some} rounds of training are on clusters"
        if least >= MIN_CLUSTERED_ROUNDS:
            return found
        more = range(most, 100 * most)
        better = (
            n for n in more if self.clustered_rounds(replace(parameters, rounds=n))[0] >= MIN_CLUSTERED_ROUNDS
        )
        rounds = next(better, None)
        return (
            found
            if rounds is None
            else f"{found}; give at least rounds={rounds} for {MIN_CLUSTERED_ROUNDS} of them"
        )

    def influence(self, parameters: Any) -> str:
        """What a lying device can do in a run with these parameters beyond a share of a model's step, in
        words; "" if nothing.

        Example:
            >>> find("fedavg")[0].influence(find("fedavg")[0].configure("paper"))
            'aggregation=mean bounds nothing: one lying device can make any model of the others'
        """
        if getattr(parameters, "secure_aggregation", False):
            return "the server sees no single update: a device that was changed can send any numbers"
        if getattr(parameters, "aggregation", "") == "mean":
            return "aggregation=mean bounds nothing: one lying device can make any model of the others"
        if getattr(parameters, "aggregation", "") == NOISED:
            return "a lying device pulls a model by central_clip / n in each round, and is never left out"
        return self.liars(parameters)

    def typed(self, changes: Mapping[str, Any]) -> dict[str, Any]:
        """Changes with values of the parameters' types: for a `Written` value, the text itself where the
        parameter is a string, and what YAML reads in it otherwise."""
        types = {name: each.type for name, each in self.settings.items()}
        return {
            name: (str(value) if types.get(name) is str else value.meant)
            if isinstance(value, Written)
            else value
            for name, value in changes.items()
        }


def check_rules(card: Algorithm) -> None:
    """Check what can be checked without importing a half: the names, the parameters, the presets and, if
    their source can be read, the functions of the halves. Raises ConfigError."""
    for name in (card.name, *card.variants):
        if not (isinstance(name, str) and NAME.fullmatch(name)):
            raise ConfigError(
                f"{name!r} is not a legal name", "use lowercase letters, digits and single hyphens"
            )
    kind = card.parameters
    if not (is_dataclass(kind) and kind.__dataclass_params__.frozen):  # type: ignore[attr-defined]
        raise ConfigError("the parameters are not a frozen dataclass", "use @dataclass(frozen=True)")
    settings_of(kind)
    for changes in card.presets.values():
        checked(card.name, kind, changes)
    for message in card.messages:
        if not WORD.fullmatch(message.kind):
            raise ConfigError(
                f"{message.kind!r} is not a legal kind of messages", "use letters, digits and _, at most 100"
            )
    if card.device_module != STANDARD_DEVICE and not card.own_tasks:
        raise ConfigError(
            "it has a device half, and no task that asks for it: devices answer the standard messages by the "
            "standard half",
            "put a message of its own, with a reply, into `messages`, or leave the device half out",
        )
    _check_half(card.server_module, SERVER_FUNCTIONS)
    if card.device_module != STANDARD_DEVICE:  # a server must not load even the package around ours
        _check_half(card.device_module, ("perform",))


def _loaded(half: Any) -> Any:
    return importlib.import_module(half) if isinstance(half, str) else half


def _check_half(half: Any, functions: Sequence[str]) -> None:
    if not isinstance(half, str):
        missing = [name for name in functions if not callable(getattr(half, name, None))]
        annotated = "start" not in functions or "return" in getattr(
            getattr(half, "start", None), "__annotations__", {}
        )
    else:
        # The source is read instead of imported: a half may load PyTorch or scikit-learn, which is too slow
        # for a list of algorithms, and which the other side may not even have installed.
        defined = _defined(half)
        missing = [] if defined is None else [name for name in functions if name not in defined]
        start = (defined or {}).get("start")
        annotated = not isinstance(start, ast.FunctionDef) or start.returns is not None
    if missing:
        raise ConfigError(f"the half {_name_of(half)} has no function {missing[0]}")
    if not annotated:
        raise ConfigError(
            f"start of {_name_of(half)} does not declare the type of its state",
            "annotate its return value with the state's type, a frozen dataclass",
        )


def _name_of(half: Any) -> str:
    return half if isinstance(half, str) else getattr(half, "__name__", type(half).__name__)


def _defined(module: str) -> dict[str, ast.stmt] | None:
    """The names that a module's source binds at its top level; None if the source cannot be read."""
    try:
        spec = importlib.util.find_spec(module)
    except ImportError:
        spec = None
    if spec is None:
        raise ConfigError(
            f"there is no module {module}", "correct server_module or device_module of the card"
        )
    source = getattr(spec.loader, "get_source", lambda name: None)(module)
    if source is None:
        return None
    found: dict[str, ast.stmt] = {}
    for statement in ast.parse(source).body:
        match statement:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                found[name] = statement
            case ast.Assign(targets=targets):
                for node in (node for target in targets for node in ast.walk(target)):
                    if isinstance(node, ast.Name):
                        found[node.id] = statement
            case ast.ImportFrom(names=names) | ast.Import(names=names):
                for each in names:
                    if each.name == "*":
                        return None
                    found[each.asname or each.name] = statement
    return found
