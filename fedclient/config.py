"""The settings of a device: one YAML file, which command-line options override.

    learner: {builtin: lenet5, options: {classes: 10}}
    data: {npz: train.npz, test: test.npz, shape: [1, 28, 28], divide_by: 255}

A device that has joined has the address of its server and its own name in its identity. Without an identity,
in plain text, `server` and `insecure_loopback: true` are required. Paths are relative to the settings file.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Literal
from urllib.parse import urlsplit

from fedclient.agent.allowance import ALL_DAY, Allowance, Hours
from fedclient.store.consent import Consents
from shoal.core.algorithm import Written
from shoal.core.data.views import HELD_OUT
from shoal.core.errors import ConfigError
from shoal.core.identity.joining import check_name
from shoal.core.privacy.budget import Budget
from shoal.shell.config import read_settings

SelfCheck = Literal["none", "quick", "full"]
"""How the learner is tried on the data once both are loaded; see `fedclient/work/selfcheck.py`."""

MIN_BANDWIDTH = 1 << 15
"""Bytes a second. With less, a chunk would take so long that the server could take the transfer for one that
stands still."""
KINDS = ("npz", "csv", "parquet", "idx", "images", "module")
TABLES = ("csv", "parquet")


@dataclass(frozen=True)
class LearnerConfig:
    """The network: exactly one of the three.

    builtin: the name of a network of Shoal.
    options: its arguments.
    file: the author's own [Python file](api/learner.md).
    module: the name of an installed module with the same content.
    """

    builtin: str | None = None
    file: Path | None = None
    module: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        given = [name for name in ("builtin", "file", "module") if getattr(self, name) is not None]
        if len(given) != 1:
            raise ConfigError(
                f"set exactly one of builtin, file, module ({_are_set(given)})",
                "learner: {file: learner.py}",
            )
        if self.options and self.builtin is None:
            raise ConfigError("options are only for a builtin learner", "write them into your build()")

    @property
    def where(self) -> str:
        """The file or the module, for errors."""
        return str(self.file or self.module or self.builtin)


@dataclass(frozen=True)
class DataConfig:
    """Where the device's data are: exactly one of npz, csv, parquet, idx, images and module.

    npz: a file with the arrays x, and y with classes from 0.
    csv: a table.
    parquet: a table; needs the extra `data`.
    images: a folder or a tar archive, without links, with a folder for each class; the same extra.
    idx: a file of images in MNIST's format.
    module: the author's own function, as in `mydata:load`.
    test: a second file of the same kind, to measure on at the end of a run.
    labels, test_labels: the idx files of classes for `idx` and `test`.
    label: the column of the class in csv or parquet; unset: the data are unlabeled.
    columns: the columns to take as x, in this order; unset: all but `label`, in the order of the file.
    ignore: columns to leave out, whatever they contain; if `columns` is set, all others are left out.
    classes: the names of all classes, in the same order on every device; a class is numbered by its place.
    Needed where labels, or the folders of `images`, are words, or numbers that do not begin at 0.
    shape: of one sample, such as [1, 28, 28] for images with one channel; unset: as in the file. Pictures are
    brought into it.
    divide_by: a number to divide every value by; unset: bytes are divided by 255, other numbers are not.
    regression: whether labels are numbers to predict and not classes.
    held_out: the share of the samples to measure on during a run instead of training on them; with 0, a run
    that needs such a part, as flux does, fails on this device. A module that returns Views has its own.
    """

    npz: Path | None = None
    csv: Path | None = None
    parquet: Path | None = None
    images: Path | None = None
    idx: Path | None = None
    module: str | None = None
    test: Path | None = None
    labels: Path | None = None
    test_labels: Path | None = None
    label: str | None = None
    columns: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    classes: tuple[str | Written, ...] = ()
    shape: tuple[int, ...] = ()
    divide_by: float | None = None
    held_out: float = HELD_OUT
    regression: bool = False

    def __post_init__(self) -> None:
        given = [name for name in KINDS if getattr(self, name) is not None]
        if len(given) != 1:
            raise ConfigError(
                f"set exactly one of {', '.join(KINDS)} ({_are_set(given)})",
                "data: {npz: train.npz}",
            )
        for name, owners in (("labels", ("idx",)), ("test_labels", ("idx",)), ("label", TABLES)):
            if getattr(self, name) is not None and self.kind not in owners:
                raise ConfigError(
                    f"{name} goes with {' or '.join(owners)}, not with {self.kind}", f"remove {name}"
                )
        # As they are written: YAML reads no and 1 as something else, and both are names here.
        object.__setattr__(self, "classes", tuple(map(str, self.classes)))
        if self.classes and self.regression:
            raise ConfigError("classes have names, and numbers to predict have not", "remove classes")
        if len(set(self.classes)) < len(self.classes):
            raise ConfigError(f"classes {list(self.classes)} contains a name twice", "name each class once")
        self._check_columns()
        if self.kind == "module" and (self.test is not None or self.shape or self.divide_by is not None):
            raise ConfigError("test, shape and divide_by are for files", "do the same in your function")
        if self.test_labels is not None and self.test is None:
            raise ConfigError("test_labels is set, but test is not", "set test to the idx file of images")
        if self.divide_by is not None and self.divide_by <= 0.0:
            raise ConfigError(f"divide_by is {self.divide_by}", "use a number above 0, such as 255")
        if self.regression and self.kind == "images":
            raise ConfigError("the folders of images are classes, not numbers", "remove regression")
        if not 0.0 <= self.held_out < 1.0:
            raise ConfigError(f"held_out is {self.held_out}", "use a share from 0 to below 1, such as 0.2")
        if any(size < 1 for size in self.shape):
            raise ConfigError(f"shape {list(self.shape)} is impossible", "use sizes of at least 1")

    def _check_columns(self) -> None:
        for name in ("columns", "ignore"):
            given = getattr(self, name)
            if given and self.kind not in TABLES:
                raise ConfigError(f"{name} goes with csv or parquet, not with {self.kind}", f"remove {name}")
            if self.label is not None and self.label in given:
                raise ConfigError(
                    f"{name} contains {self.label!r}, which is the label", f"remove it from {name}"
                )
        if len(set(self.columns)) < len(self.columns):
            raise ConfigError(f"columns {list(self.columns)} contains a name twice", "name each column once")
        if both := [name for name in self.columns if name in self.ignore]:
            raise ConfigError(f"columns and ignore both contain {both[0]!r}", "remove it from one of the two")

    @property
    def kind(self) -> str:
        """Which of `KINDS` was given."""
        return next(name for name in KINDS if getattr(self, name) is not None)

    @property
    def path(self) -> Path:
        """The file; not for `module`."""
        path = getattr(self, self.kind)
        assert isinstance(path, Path)
        return path


@dataclass(frozen=True)
class ComputeConfig:
    """Where training computes, and how much it takes.

    device: where to train.
    threads: CPU threads; more are faster, and a different number gives results that differ in the last bits.
    nice: how much training yields to other programs, 0 to 19.
    """

    device: Literal["auto", "cpu", "cuda"] = "auto"
    threads: int = 1
    nice: int = 0

    def __post_init__(self) -> None:
        if not 1 <= self.threads <= 1024:
            raise ConfigError(f"threads is {self.threads}", "use at least 1 and at most 1024")
        if not 0 <= self.nice <= 19:
            raise ConfigError(f"nice is {self.nice}", "use 0 to 19; 19 yields the most")


@dataclass(frozen=True)
class LimitsConfig:
    """The owner's limits.

    download_bytes: size of one model.
    kept_bytes: size of all stored models and results.
    memory_bytes: memory of the process that runs a graph, on a device without a learner.
    bandwidth: bytes a second, in both directions together, 32,768 or more; unset: no limit.
    hours: when it asks for tasks, in local time, such as `22:00-06:00`; what it has begun it finishes.
    """

    download_bytes: int = 2 << 30
    kept_bytes: int = 8 << 30
    memory_bytes: int = 1 << 30
    bandwidth: int | None = None
    hours: str = ALL_DAY

    def __post_init__(self) -> None:
        if self.bandwidth is not None and self.bandwidth < MIN_BANDWIDTH:
            raise ConfigError(
                f"bandwidth is {self.bandwidth} bytes a second, and the least is {MIN_BANDWIDTH}",
                "use more, or remove it for no limit",
            )
        if min(self.download_bytes, self.kept_bytes, self.memory_bytes) < 1:
            raise ConfigError("limits are numbers of bytes, 1 or more", "remove them to get the defaults")
        Hours.read(self.hours)

    def allowance(self, give_up_after: float) -> Allowance:
        """The same for what acts. give_up_after: seconds without a server."""
        bandwidth = math.inf if self.bandwidth is None else self.bandwidth
        return Allowance(
            self.download_bytes, self.kept_bytes, give_up_after, bandwidth, Hours.read(self.hours)
        )


@dataclass(frozen=True)
class PrivacyConfig(Budget):
    """The owner's budget. What may leave in the open is asked for each run unless a rule is set.

    allow_unprotected: whether descriptors, bounds of latents and the like may leave without a guarantee:
    `true` for all runs, `false` for none; unset: asked for each run.
    allow_plain_weights: the same for weights without DP-SGD, and for exact accuracies and losses.
    """

    allow_unprotected: bool | None = None
    allow_plain_weights: bool | None = None

    def towards(self, joined: bool) -> Budget:
        """The budget toward a server. joined: whether it is another's.

        In plain text the server is on this machine, so what leaves the device does not leave its owner, and
        nothing has to be asked.
        """
        if joined:
            return self
        rules = (self.allow_unprotected is not False, self.allow_plain_weights is not False)
        return replace(self, allow_unprotected=rules[0], allow_plain_weights=rules[1])


@dataclass(frozen=True)
class UpdatesConfig:
    """Whether this device [updates itself](device.md#let-it-update-itself): with a source, it does.

    source: the https address, or the absolute path, of the folder that they are published in.
    key: the public key of who makes them, Ed25519 in PEM; unset: this project's.
    """

    source: str
    key: Path | None = None

    def __post_init__(self) -> None:
        try:
            address = urlsplit(self.source)
            is_address = address.scheme == "https" and bool(address.hostname) and (address.port or 443) > 0
        except ValueError:
            is_address = False
        if not is_address and not self.source.startswith("/"):
            raise ConfigError(
                f"source {self.source!r} is neither an https address nor an absolute path",
                "updates: {source: https://shoal.example/releases}",
            )


@dataclass(frozen=True)
class ClientConfig:
    """Without a learner, the graph that the run gives is used, with ONNX Runtime instead of PyTorch.

    state: the device's folder.
    server: HOST:PORT; unset: the one in the identity.
    device: its name, kept in its folder; unset: the one in the identity, or a generated one.
    insecure_loopback: whether to use plain text, without an identity, to a server on this machine.
    ledger: the folder of the privacy ledger; unset: in `state`. Devices on one machine that have the same
    records share one, so that what they spend adds up.
    """

    FORMER: ClassVar[Mapping[str, str]] = {"blob_hosts": "models come from the server"}

    server: str | None = None
    device: str | None = None
    state: Path = Path("state")
    insecure_loopback: bool = False
    learner: LearnerConfig | None = None
    data: DataConfig | None = None
    compute: ComputeConfig = field(default_factory=ComputeConfig)
    limits: LimitsConfig = field(default_factory=LimitsConfig)
    privacy: PrivacyConfig = field(default_factory=PrivacyConfig)
    updates: UpdatesConfig | None = None
    ledger: Path | None = None

    @property
    def account(self) -> Path:
        """The folder of the privacy ledger."""
        return self.ledger or self.state / "privacy"

    @property
    def consents(self) -> Consents:
        """What the owner has allowed single runs."""
        return Consents(self.state / "consent")

    def __post_init__(self) -> None:
        if self.device is not None:
            check_name(self.device, "a device")


@dataclass(frozen=True)
class WorkConfig:
    """The settings of the training process. blobs: the folder of models that come and go. account: the folder
    of the ledger; privacy: what its owner allows. consent: the folder of what was allowed to single runs.

    data: the device's data. file: one file to use instead, read as `data` says; its labels do not matter.
    labels: False if labels are not needed. selfcheck: what to try before the first task. newcomer: whether
    the process may choose among models, which is for the device itself: no task of a server may ask for it.
    identity: the folder of the device's key, with which it signs what it announces to other devices; None in
    plain text, where names are believed.
    learner: None where the run's graph is used instead, without PyTorch. memory_bytes: of that process.
    """

    blobs: Path
    account: Path
    learner: LearnerConfig | None = None
    data: DataConfig | None = None
    file: Path | None = None
    labels: bool = True
    compute: ComputeConfig = field(default_factory=ComputeConfig)
    privacy: Budget = field(default_factory=Budget)
    consent: Path | None = None
    selfcheck: SelfCheck = "none"
    newcomer: bool = False
    identity: Path | None = None
    memory_bytes: int = 1 << 30


def read(path: Path | None, flags: Mapping[str, Any]) -> ClientConfig:
    """The settings of the file `path`, if any, overridden by the `flags` that are not None.

    Raises ConfigError, naming the file and the setting.
    """
    return read_settings(path, ClientConfig, flags)[0]


def host_of(address: str) -> str:
    """The host in "host:port". Raises ConfigError."""
    found = re.fullmatch(r"(?:\[([0-9a-fA-F:]+)\]|([^\s:\[\]/]+)):([0-9]{1,5})", address)
    if found is None or not 1 <= int(found[3]) <= 65535:
        raise ConfigError(
            f"{address!r} is not an address", "write host:port, or [::1]:port, with a port from 1 to 65535"
        )
    return found[1] or found[2]


def _are_set(names: list[str]) -> str:
    """Which of some exclusive settings are set, for an error."""
    return f"{' and '.join(names)} are set" if names else "none is set"
