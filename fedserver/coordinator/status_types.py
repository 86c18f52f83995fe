"""The status types that operators see. `proto/fed/v1/operator_service.proto` explains their fields."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from fedserver.store.records import Rollout, RunSpec
from shoal.core.exchange.payload import BlobRef, Weights
from shoal.core.privacy.report import CentralNoise, Statement
from shoal.core.rollout import Sum
from shoal.core.types import DeviceId, ModelKey, RunId
from shoal.core.verdict import Verdict

STAGES = ("waiting", "open", "reducing", "finished", "failed", "stopped")
PRESENCES = ("absent", "idle", "working", "expected")


@dataclass(frozen=True)
class RunSummary:
    """A run in one line of a list.

    stage: one of STAGES. time_left: in seconds, or None if there is no limit. created: seconds since 1970.
    cluster_count: how many clusters have devices. accuracy: mean over the devices of the held-out accuracy
    that each measured last, from 0 to 1, or None if none has measured it yet. ended: as created, None if it
    is not over. progress, rounds: how many rounds of training are complete, and how many it has in all; 0 if
    the algorithm does not say. pace: how many seconds a round of training takes, by the latest ones; None if
    the run is over, or none was complete since the server's start. next_run: in how many seconds the run
    starts that follows this one; None if none does. numbers: whether labels are numbers, as far as is known:
    then accuracies are shares of their variance that are explained.
    """

    run: RunId
    name: str
    algorithm: str
    preset: str
    stage: str
    round: int
    title: str = ""
    waiting_for: str = ""
    waiting_devices: tuple[DeviceId, ...] = ()
    time_left: float | None = None
    created: float | None = None
    cluster_count: int = 0
    accuracy: float | None = None
    ended: float | None = None
    progress: int = 0
    rounds: int = 0
    pace: float | None = None
    next_run: float | None = None
    numbers: bool = False

    @property
    def over(self) -> bool:
        return self.stage in ("finished", "failed", "stopped")


@dataclass(frozen=True)
class DeviceFigures:
    """A device in a run. accuracy: from 0 to 1, or None if it was not measured yet."""

    device: DeviceId
    cluster: ModelKey = ""
    accuracy: float | None = None
    loss: float | None = None
    examples: int = 0
    bytes_up: int = 0
    bytes_down: int = 0


@dataclass(frozen=True)
class RunStatus:
    """The full status of a run.

    abandoned: for each abandoned round, why it has no result. missing: the devices that are missing in the
    last round, and why. models: the models of the clusters at present. released: what devices have
    released in this run. central: the guarantee of noise that the server adds. spec: what the operator asked
    for: parameters, seed, policy, learner. accuracies: the mean held-out accuracy after each round of
    training after which devices measured it. verdict: whether anything was learned; None
    until devices have measured what they use. answers: see `fedserver.coordinator.answers`.
    """

    summary: RunSummary
    clusters: Mapping[ModelKey, tuple[DeviceId, ...]] = field(default_factory=dict)
    devices: tuple[DeviceFigures, ...] = ()
    abandoned: Mapping[int, str] = field(default_factory=dict)
    missing: Mapping[DeviceId, str] = field(default_factory=dict)
    models: Mapping[ModelKey, Weights] = field(default_factory=dict)
    released: Mapping[DeviceId, Statement] = field(default_factory=dict)
    central: CentralNoise | None = None
    spec: RunSpec | None = None
    accuracies: Mapping[int, float] = field(default_factory=dict)
    verdict: Verdict | None = None
    answers: Mapping[DeviceId, str] = field(default_factory=dict)


@dataclass(frozen=True)
class RunChange:
    """What an operator changes in a run that goes on.

    policy: fields of RoundPolicy, by name. rounds: how many rounds of training it has in all; None: as
    before. readmit: quarantined devices whose updates count again.
    """

    policy: Mapping[str, Any] = field(default_factory=dict)
    rounds: int | None = None
    readmit: tuple[DeviceId, ...] = ()

    def __str__(self) -> str:
        rounds = {} if self.rounds is None else {"rounds": self.rounds}
        settings = [f"{name}={value:g}" for name, value in {**rounds, **self.policy}.items()]
        return ", ".join([*settings, *(f"readmit={device}" for device in self.readmit)])


@dataclass(frozen=True)
class ClusterVersions:
    """A cluster, and its model at the start of each stored round; the last is the current one."""

    key: ModelKey
    members: tuple[DeviceId, ...]
    versions: Mapping[int, BlobRef]


@dataclass(frozen=True)
class DeviceStatus:
    """A device. presence: one of PRESENCES; "expected" is one that may call and never has.

    last_seen: how many seconds ago it called, or None if it has not called since the server started. lease:
    run, round and attempt of the task that it works on.
    """

    device: DeviceId
    presence: str
    last_seen: float | None = None
    software: str = ""
    lease: tuple[RunId, int, int] | None = None


@dataclass(frozen=True)
class ServerStatus:
    """The current state of the daemon.

    runs: those that are not over. notices: problems that keep it from working. released: what devices have
    released in all runs.
    """

    version: str
    devices: tuple[DeviceStatus, ...]
    runs: tuple[RunSummary, ...]
    notices: tuple[str, ...] = ()
    released: Mapping[DeviceId, Statement] = field(default_factory=dict)


@dataclass(frozen=True)
class ReleaseGroup:
    """The devices that share a model of a release. accuracy: the mean of what they measured, from 0 to 1, or
    None if none did. error: its standard error."""

    key: ModelKey
    devices: int
    accuracy: float | None = None
    error: float = 0.0


@dataclass(frozen=True)
class WatchedCluster:
    """What devices say of their data that use a cluster's model: see `Movement` of
    `shoal.core.server_kit.drift_answers`.

    key: of the cluster; "" for devices that have chosen a model of the release by themselves. since: seconds
    since 1970; None: no more have moved than chance explains.
    """

    key: ModelKey
    answers: int
    share: float = 0.0
    error: float = 0.0
    since: float | None = None


@dataclass(frozen=True)
class ReleaseSummary:
    """A release in one line of a list.

    made: seconds since 1970; 0 if it cannot be read. progress: the rounds of training that were complete.
    devices: how many took part. accuracy, error: as in ReleaseGroup, over all devices. authority: whose key
    signed the card; "" if none did. channels: those that have it now. revoked, withdrawn: devices that took
    part in its training and are revoked, or whose data are to count no more. wrong: why it cannot be used; ""
    if it can. watched: what devices say that use it. numbers: as in RunSummary.
    """

    release: str
    run: RunId = ""
    made: float = 0.0
    progress: int = 0
    devices: int = 0
    groups: tuple[ReleaseGroup, ...] = ()
    accuracy: float | None = None
    error: float = 0.0
    authority: str = ""
    channels: tuple[str, ...] = ()
    revoked: tuple[DeviceId, ...] = ()
    withdrawn: tuple[DeviceId, ...] = ()
    wrong: str = ""
    watched: tuple[WatchedCluster, ...] = ()
    numbers: bool = False


@dataclass(frozen=True)
class WithdrawnRun:
    """A run that has a device in it, and what it takes to have it in none of its models.

    with_it, without_it: its present models with reports of the device, and those without. grouped: whether
    newcomers are placed by data of it. inherited: the run with the device in it that this one began with.
    back_to: the round with the last models before its first report; 0: none is stored, and the run has to be
    started again. rounds, devices: of training to repeat, and how many others are asked again. epsilon: what
    each of them pays for that at most; infinite where that depends on how many samples it has. unknown: why
    not all of this is known; "": it is. replayed: whether the run went back.
    """

    run: RunId
    with_it: tuple[ModelKey, ...] = ()
    without_it: tuple[ModelKey, ...] = ()
    grouped: bool = False
    inherited: RunId = ""
    back_to: int = 0
    rounds: int = 0
    devices: int = 0
    epsilon: float = 0.0
    unknown: str = ""
    replayed: bool = False


@dataclass(frozen=True)
class WithdrawnRelease:
    """A release of such a run. Fields as of WithdrawnRun; both empty where it cannot be read. channels: those
    that have it now."""

    release: str
    with_it: tuple[ModelKey, ...] = ()
    without_it: tuple[ModelKey, ...] = ()
    grouped: bool = False
    channels: tuple[str, ...] = ()


@dataclass(frozen=True)
class Withdrawal:
    """Where a device is: runs and releases, oldest first."""

    device: DeviceId
    runs: tuple[WithdrawnRun, ...] = ()
    releases: tuple[WithdrawnRelease, ...] = ()

    def since(self, before: "Withdrawal", replay: Collection[RunId]) -> "Withdrawal":
        """What is left of what there was before, with the runs that have gone back to models without it."""
        left = {each.run: each for each in self.runs}
        runs = [
            replace(left.get(each.run, WithdrawnRun(each.run)), replayed=each.run in replay)
            for each in before.runs
        ]
        return replace(self, runs=tuple(runs))


@dataclass(frozen=True)
class RolloutStatus(Rollout):
    """A rollout, with what the devices of each cluster have counted so far. why: why it ended, or what it
    waits for."""

    clusters: Mapping[ModelKey, Sum] = field(default_factory=dict)


@dataclass(frozen=True)
class ReleaseEvaluation:
    """How good a release was when a run measured it. ended: seconds since 1970. accuracy, error: as in
    ReleaseSummary."""

    run: RunId
    ended: float
    groups: tuple[ReleaseGroup, ...] = ()
    accuracy: float | None = None
    error: float = 0.0


@dataclass(frozen=True)
class ReleaseStatus:
    """All of a release. status: the run as it was, with the models of the release. card: what is signed.

    signature: see `fedserver.coordinator.published`; b"" without certificates. certificate: the server's,
    PEM, with the proofs that lead to its key. evaluations: by runs that have measured it since, as long as
    these are kept. rollouts: in which it was tried, or had another beside it, newest first.
    """

    summary: ReleaseSummary
    status: RunStatus
    card: bytes
    signature: bytes = b""
    certificate: bytes = b""
    evaluations: tuple[ReleaseEvaluation, ...] = ()
    rollouts: tuple[RolloutStatus, ...] = ()
