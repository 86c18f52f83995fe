"""The settings of a server and of a run: YAML files, which command-line options override.

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
from typing import Any, Literal

from fedserver.addresses import host_and_port
from fedserver.store.engines import Elsewhere, place
from fedserver.store.records import RunSpec
from shoal.core.algorithm import Written, find
from shoal.core.engine.rounds import RoundPolicy
from shoal.core.engine.timeouts import GRACE
from shoal.core.errors import ConfigError
from shoal.core.exchange.link import MAX_ADDRESSES
from shoal.core.types import Scalar
from shoal.shell.config import read_settings

SETTINGS = "fedserver.yaml"
"""The settings file in a state folder."""


@dataclass(frozen=True)
class Settings:
    """How often something happens on a server, and how much it takes at a time.

    poll: seconds that a device may wait for a task in one call. In a fleet of more than 500 longer, for 25
    ends a second: 10,000 devices wait 225 s.
    heartbeat: seconds between the signs of life of a working device.
    tick: seconds between checks of deadlines; nothing else waits for it.
    model: bytes of the largest set of initial weights from a device.
    grace: seconds that a stop waits for calls and for a round that is being combined.
    low_water: bytes that stay free on the state folder's disk, and more where the models need it; uploads
    that would take them are refused.
    placements: how often a day a device that only infers may be placed; later versions of the same models are
    not counted.
    clusters: the models of how many clusters of a run such a device may have in a day; 0: of all.
    age: seconds after which a device has to make a new connection; a sixth more for what is under way.
    waiting: how many calls may wait for a task at a time; each device needs one, with a file descriptor and
    about 110 KB.
    arrivals: how many devices may arrive in a second.
    """

    poll: float = 20.0
    heartbeat: float = 10.0
    tick: float = 0.25
    model: int = 1 << 30
    grace: float = GRACE
    age: float = 1800.0
    low_water: int = 64 << 20
    placements: int = 10
    clusters: int = 0
    waiting: int = 20_000
    arrivals: float = 50.0

    def __post_init__(self) -> None:
        above = (self.poll, self.heartbeat, self.tick, self.age, self.model, self.waiting, self.arrivals)
        if min(above) <= 0.0:
            raise ConfigError("poll, heartbeat, tick, age, model, waiting and arrivals are above 0")
        if min(self.grace, self.low_water, self.placements, self.clusters) < 0:
            raise ConfigError("grace, low_water, placements and clusters are 0 or more")


@dataclass(frozen=True)
class ServerConfig:
    """The settings of a server.

    state: the server's folder; in the file that `init` writes, the folder of that file.
    listen: HOST:PORT where devices call; port 0 takes any port that is free, and `init` writes 0.0.0.0:50051.
    insecure_loopback: whether to use plain text, on a loopback address only.
    join_listen: HOST:PORT where devices join.
    hosts: names and addresses of this server; join strings have the first.
    log_level: of the server's log: `debug`, `info`, `warning` or `error`.
    log_format: lines for people, or one JSON object each (`json`).
    metrics: HOST:PORT for [Prometheus](operations.md#metrics); unset: none.
    traces: the address of a collector of OpenTelemetry, for [traces](operations.md#traces) of rounds; unset:
    none.
    operator_listen: HOST:PORT where [operators elsewhere](operations.md#operators-on-other-machines) call
    over TLS, besides the socket in the folder; unset: none.
    database: where the rows are if not in the folder: `postgresql://USER@HOST/NAME`, see [more than one
    machine](scaling.md).
    blobs: with it, a folder or a bucket, `s3://BUCKET/PREFIX`, that all servers of that database reach.
    addresses: HOST:PORT of each of these servers, this one included.
    """

    state: Path = Path("server")
    listen: str = "127.0.0.1:50051"
    insecure_loopback: bool = False
    join_listen: str = "127.0.0.1:50052"
    hosts: tuple[str, ...] = ()
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["text", "json"] = "text"
    metrics: str = ""
    traces: str = ""
    cadence: Settings = field(default_factory=Settings)
    operator_listen: str = ""
    database: str = ""
    blobs: str = ""
    addresses: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if bool(self.database) != bool(self.blobs):
            raise ConfigError(
                "database and blobs belong together: only one of them is set",
                "set both, or neither to keep everything in the state folder",
            )
        if self.operator_listen and self.insecure_loopback:
            raise ConfigError(
                "operator_listen needs certificates, and insecure_loopback is set",
                "leave out one of them; on this machine, operators use the socket in the state folder",
            )
        for name in ("listen", "join_listen", "operator_listen", "metrics"):
            if (address := getattr(self, name)) or name in ("listen", "join_listen"):
                host_and_port(name, address)
        if len(self.addresses) > MAX_ADDRESSES:
            raise ConfigError(f"addresses has more than {MAX_ADDRESSES} entries", "name fewer servers")
        for address in self.addresses:
            host_and_port("addresses", address, lowest=1)

    @property
    def elsewhere(self) -> Elsewhere | None:
        """Where the store is, if it is not in the state folder."""
        return Elsewhere(self.database, place(self.blobs, self.state)) if self.blobs else None


@dataclass(frozen=True)
class LearnerConfig:
    """Where a run's initial weights come from: a built-in network, or the author's own file.

    builtin: the name of a network of Shoal.
    file: the author's `learner.py`, as an alternative.
    options: the arguments of a built-in network.
    seed: the random seed of the weights.
    """

    builtin: str | None = None
    file: Path | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 42

    def __post_init__(self) -> None:
        if (self.builtin is None) == (self.file is None):
            found = "none is set" if self.file is None else "both are set"
            raise ConfigError(f"set exactly one of builtin and file ({found})", "learner: {file: learner.py}")
        if self.options and self.file is not None:
            raise ConfigError("options are only for a built-in learner", "write them into your build()")


@dataclass(frozen=True)
class RunConfig:
    """A run to start. Without initial_weights and learner, devices are asked for them.

    name: not taken by another run; unset: made of the algorithm's.
    algorithm: as `fedserver algorithm ls` lists them.
    preset: a named set of the algorithm's parameters.
    parameters: as `fedserver algorithm show NAME` lists them.
    policy: when rounds open and close, with the keys of [RoundPolicy](api/engine.md).
    seed: of the sampling of devices.
    initial_weights: a safetensors file.
    graph: the network for devices without a learner of their own, as `fedclient export` writes it.
    labels: of the devices that take part; unset: all.
    evaluate: a release to be measured, or empty for the initial weights; unset: the run trains.
    base: the release or channel to go on from.
    every: seconds after which another such run starts from the channel; 0: never.
    """

    name: str = ""
    algorithm: str = "flux"
    preset: str = "default"
    parameters: Mapping[str, bool | int | float | str | Written] = field(default_factory=dict)
    policy: RoundPolicy = field(default_factory=RoundPolicy)
    seed: int = 0
    initial_weights: Path | None = None
    learner: LearnerConfig | None = None
    graph: Path | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    evaluate: str | None = None
    base: str = ""
    every: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.seed < 1 << 63:
            raise ConfigError(f"seed is {self.seed}", "it must be at least 0 and below 2^63")

    def spec(self) -> RunSpec:
        """What the server is asked for, apart from the weights. Raises ConfigError: no such algorithm."""
        learner, options, seed = "", {}, None
        if self.learner is not None:
            learner = self.learner.builtin or str(self.learner.file)
            options = {name: _scalar(value) for name, value in self.learner.options.items()}
            seed = self.learner.seed
        return RunSpec(
            self.name,
            self.algorithm,
            self.preset,
            find(self.algorithm)[0].typed(self.parameters),
            self.policy,
            self.seed,
            learner,
            options,
            seed,
            labels=self.labels,
            evaluate=self.evaluate,
            base=self.base,
            every=self.every,
        )


def read_server(flags: Mapping[str, Any]) -> ServerConfig:
    """The settings of the file that `fedserver init` wrote into the state folder, if there is one.

    flags: what overrides the file. Raises ConfigError.
    """
    made = (flags.get("state") or Path("server")) / SETTINGS
    config, folder = read_settings(made if made.is_file() else None, ServerConfig, flags)
    return replace(config, blobs=str(place(config.blobs, folder)) if config.blobs else "")


def read_run(path: Path | None, flags: Mapping[str, Any], like: Mapping[str, Any] | None = None) -> RunConfig:
    """The run in the file `path`, if any, overridden by `flags`. Raises ConfigError.

    like: in place of a file, what another run was asked for.
    """
    return read_settings(path, RunConfig, flags, like or {})[0]


def _scalar(value: Any) -> Scalar:
    return value if isinstance(value, bool | int | float | str) else str(value)
