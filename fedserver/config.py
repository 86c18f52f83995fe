"""The settings of a server and of a run: YAML files; the flags of the command line come before them.

    state: /var/lib/shoal                  name: handwriting
    listen: 127.0.0.1:50051                algorithm: flux
    insecure_loopback: true                parameters: {rounds: 20}
    cadence: {poll: 20, heartbeat: 10}     policy: {devices: 8, minimum: 6, deadline: 600}
                                           learner: {builtin: lenet5, options: {classes: 10}}

Paths are relative to the file that names them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

from fedserver.coordinator.settings import Settings
from fedserver.store.records import RunSpec
from shoal.core.algorithm import Written, find
from shoal.core.engine.rounds import RoundPolicy
from shoal.core.errors import ConfigError
from shoal.core.types import Scalar
from shoal.shell.config import MAX_TEXT, convert, load

T = TypeVar("T")

SETTINGS = "fedserver.yaml"
"""The settings file in a state folder."""


@dataclass(frozen=True)
class ServerConfig:
    """state: the server's folder. listen: where devices call; port 0 takes any that is free.

    enroll: where they join. hosts: names and addresses of this server; devices are told the first.
    """

    state: Path = Path("server")
    listen: str = "127.0.0.1:50051"
    insecure_loopback: bool = False
    enroll: str = "127.0.0.1:50052"
    hosts: tuple[str, ...] = ()
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    cadence: Settings = field(default_factory=Settings)


@dataclass(frozen=True)
class LearnerConfig:
    """Where a run's initial weights come from: a network of ours, or the author's own file.

    options: the arguments of a builtin one. seed: of the weights.
    """

    builtin: str | None = None
    file: Path | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 42

    def __post_init__(self) -> None:
        if (self.builtin is None) == (self.file is None):
            raise ConfigError("one of builtin and file is due", "learner: {file: learner.py}")
        if self.options and self.file is not None:
            raise ConfigError("options are for a builtin learner alone", "write them into your build()")


@dataclass(frozen=True)
class RunConfig:
    """A run that is to be. Without initial_weights and learner the first device is asked for its weights."""

    name: str = ""
    algorithm: str | None = None
    preset: str = "default"
    parameters: Mapping[str, bool | int | float | str | Written] = field(default_factory=dict)
    policy: RoundPolicy = field(default_factory=RoundPolicy)
    seed: int = 0
    initial_weights: Path | None = None
    learner: LearnerConfig | None = None

    def __post_init__(self) -> None:
        if self.algorithm is None:
            raise ConfigError(
                "no algorithm is given", "use --algorithm flux, or `algorithm: flux` in the file"
            )
        if not 0 <= self.seed < 1 << 63:
            raise ConfigError(f"seed is {self.seed}", "use 0 or more, below 2^63")

    def spec(self) -> RunSpec:
        """What the server is asked for, apart from the weights. Raises ConfigError: no such algorithm."""
        assert self.algorithm is not None
        learner, options = "", {}
        if self.learner is not None:
            learner = self.learner.builtin or str(self.learner.file)
            options = {name: _scalar(value) for name, value in self.learner.options.items()}
        return RunSpec(
            self.name,
            self.algorithm,
            self.preset,
            find(self.algorithm)[0].typed(self.parameters),
            self.policy,
            self.seed,
            learner,
            options,
        )


def read_server(path: Path | None, flags: Mapping[str, Any]) -> ServerConfig:
    """The settings of the file `path`, with `flags` before them. Raises ConfigError.

    Without a path they are those that `fedserver init` wrote into the state folder, if it did.
    """
    if path is None:
        made = (flags.get("state") or Path("server")) / SETTINGS
        path = made if made.is_file() else None
    config, folder = _read(path, ServerConfig, flags)
    return replace(config, state=folder / config.state)


def read_run(path: Path | None, flags: Mapping[str, Any]) -> RunConfig:
    """The run in the file `path`, if any, with `flags` before it. Raises ConfigError."""
    config, folder = _read(path, RunConfig, flags)
    if config.learner is not None and config.learner.file is not None:
        config = replace(config, learner=replace(config.learner, file=folder / config.learner.file))
    if config.initial_weights is not None:
        config = replace(config, initial_weights=folder / config.initial_weights)
    return config


def _read(path: Path | None, cls: type[T], flags: Mapping[str, Any]) -> tuple[T, Path]:
    """The settings, and the folder that relative paths in them are meant from."""
    given = _absolute(flags)
    if path is None:
        return convert(given, cls, "the command line"), Path.cwd()
    try:
        with path.open("rb") as file:
            text = file.read(MAX_TEXT + 1).decode()
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}", "give the path of a settings file") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not UTF-8 text", "give the path of a settings file") from None
    return convert(_merged(load(text, str(path)), given), cls, str(path)), path.absolute().parent


def _absolute(flags: Mapping[str, Any]) -> dict[str, Any]:
    """The flags that were given, as a settings file would have them: paths on the command line are the
    caller's own."""
    found: dict[str, Any] = {}
    for name, value in flags.items():
        if isinstance(value, Mapping):
            value = _absolute(value) or None
        if value is not None:
            found[name] = str(value.absolute()) if isinstance(value, Path) else value
    return found


def _merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """`below` with what `above` says in its place, setting by setting."""
    merged = dict(below)
    for name, value in above.items():
        under = merged.get(name)
        merged[name] = (
            _merged(under, value) if isinstance(value, Mapping) and isinstance(under, Mapping) else value
        )
    return merged


def _scalar(value: Any) -> Scalar:
    return value if isinstance(value, bool | int | float | str) else str(value)
