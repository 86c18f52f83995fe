"""The typed parts that travel between a device and the server, besides tensors and plain numbers.

Each has a message of its own in `proto/fed/v1/payload.proto`. The constructors check what they are given,
so that every part is a valid one, whichever side made it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from shoal.core.errors import BadPayload
from shoal.core.exchange.privacy_modes import PrivacyMode, mode_of
from shoal.core.types import DeviceId

FloatArray = npt.NDArray[np.float64]
"""Real numbers, as an array of any rank: docstrings give the shape."""
Integers = npt.NDArray[np.int64]

MAX_LATENTS, MAX_ROWS, MAX_DIMS, MAX_MODELS = 1 << 17, 4097, 1024, 1024
MAX_GROUP, MAX_SUM, MAX_CLUSTER, MAX_LETTER = 1 << 20, 1 << 61, 256, 8192
MIN_SCALE, MAX_SCALE = 1e-9, 1e9
"""Of noise and radius: squares and quotients of such numbers neither vanish nor overflow."""


@dataclass(frozen=True)
class PrivacySettings:
    """How a descriptor is protected: what the server asks for, and what the device says it did.

    Args:
        mode: one of `shoal.core.exchange.privacy_modes.MODES`: "off"; "paper", the mechanism of the FLUX
            and FEROMA papers, which is NOT a guarantee (docs/proofs.md) and is kept only for comparisons;
            "balanced", "strict" or, with numbers of your own, "explicit".
        epsilon: of the guarantee; 0 where the mode has none. For "paper", what the papers claim for each
            coordinate, and not what holds.
        delta: the most that it may be; 0 for "off" and "paper". A device with many samples uses less.
        group_size: samples that may stem from one person; the guarantee is for all of them together.

    Raises:
        BadPayload: for an unknown mode, or numbers that do not belong to it.

    Example:
        >>> PrivacySettings("balanced", 5.0, 1e-6).calibrated
        True
    """

    mode: str = "off"
    epsilon: float = 0.0
    delta: float = 0.0
    group_size: int = 1

    def __post_init__(self) -> None:
        mode = mode_of(self.mode)
        if not 0.0 <= self.epsilon < float("inf") or (not mode.exact and self.epsilon == 0.0):
            raise BadPayload(
                f"privacy mode {self.mode}: {self.epsilon} is no epsilon", "a finite one, above 0 unless off"
            )
        if not (0.0 < self.delta < 1.0 if mode.calibrated else self.delta == 0.0):
            raise BadPayload(
                f"privacy mode {self.mode}: {self.delta} is no delta",
                "between 0 and 1, or 0 without guarantee",
            )
        if not 1 <= self.group_size <= (MAX_GROUP if mode.calibrated else 1):
            raise BadPayload(f"privacy mode {self.mode}: a group of {self.group_size} samples", "at least 1")
        if mode.guarantee not in (None, (self.epsilon, self.delta)):
            epsilon, delta = mode.guarantee
            raise BadPayload(
                f"privacy mode {self.mode} has epsilon {epsilon} and delta {delta}", "or use explicit"
            )

    @property
    def rules(self) -> PrivacyMode:
        """The record of the mode."""
        return mode_of(self.mode)

    @property
    def calibrated(self) -> bool:
        """Whether there is a guarantee: sums with calibrated noise, and not moments, are released."""
        return self.rules.calibrated


@dataclass(frozen=True, eq=False)
class NoisySums:
    """What a calibrated mode releases: `shoal.core.privacy.sums`, with discrete Gaussian noise on every
    number.

    values: (rows, 2 l + 1) int64, in steps of 2^-20 of the sensitivity, which is 1.
    sigma: the noise's standard deviation, in the same units; public. radius: to which latents were shortened.
    """

    values: Integers
    sigma: float
    radius: float

    def __post_init__(self) -> None:
        if self.values.dtype != np.int64 or self.values.ndim != 2 or self.values.shape[1] % 2 == 0:
            raise BadPayload(f"noisy sums: {self.values.dtype} of shape {self.values.shape}")
        if self.values.shape[0] == 0 or self.values.shape[1] < 3:
            raise BadPayload("noisy sums: they are empty")
        if (np.abs(self.values) > MAX_SUM).any() or (self.values == np.iinfo(np.int64).min).any():
            raise BadPayload("noisy sums: more than a device's samples can sum to")
        for name in ("sigma", "radius"):
            if not MIN_SCALE <= getattr(self, name) <= MAX_SCALE:
                raise BadPayload(f"noisy sums: {name} is {getattr(self, name)}", "a finite one, above 0")

    @property
    def rows(self) -> int:
        """1 + U: one over all samples, and one for each class."""
        return len(self.values)

    @property
    def dims(self) -> int:
        """l, the coordinates of a projected latent."""
        return int(self.values.shape[1]) // 2


@dataclass(frozen=True, eq=False)
class LatentBounds:
    """Lowest and highest latent value, coordinate by coordinate, or one pair for all coordinates.

    low, high: (v,) or (1,) float64, low <= high, finite (FLUX appendix C.1.1, step S1).
    provenance: "raw" (exact extremes: they give away values of real records), "public" or "private".
    epoch: counts the encoders of a run; bounds of another encoder mean nothing.
    """

    low: FloatArray
    high: FloatArray
    provenance: str = "raw"
    epoch: int = 0

    def __post_init__(self) -> None:
        _check_array("latent bounds", self.low, 1, MAX_LATENTS)
        _check_array("latent bounds", self.high, 1, MAX_LATENTS)
        if self.low.shape != self.high.shape or self.low.size == 0:
            raise BadPayload(f"latent bounds: {self.low.size} low values and {self.high.size} high ones")
        if (self.low > self.high).any():
            raise BadPayload("latent bounds: a low value is above its high value")
        if self.provenance not in ("raw", "public", "private"):
            raise BadPayload(f"latent bounds: provenance {self.provenance!r} is not known")
        if self.epoch < 0:
            raise BadPayload(f"latent bounds: epoch {self.epoch} is below 0")


@dataclass(frozen=True, eq=False)
class Moments:
    """Means and standard deviations of projected latents, as a mode without a guarantee releases them.

    Args:
        means, deviations: (rows, l) float64, in projected latent units. Row 0 is over all samples, P(X); rows
            1..U, when present, are over the samples of class 0..U-1. A label-free descriptor has only row 0.
            The rows of a class with fewer than two samples carry no meaning; `counts` says which.
        counts: (rows,) float64, the samples behind each row. A repeated sample is worth less than a new one,
            so counts need not be whole numbers.

    Raises:
        BadPayload: for another dtype, shapes that do not fit together, or numbers that are not finite.
    """

    means: FloatArray
    deviations: FloatArray
    counts: FloatArray

    def __post_init__(self) -> None:
        for array in (self.means, self.deviations):
            _check_array("descriptor", array, 2, MAX_ROWS * MAX_DIMS)
        _check_array("descriptor", self.counts, 1, MAX_ROWS)
        if self.means.shape != self.deviations.shape or self.counts.shape != self.means.shape[:1]:
            raise BadPayload(
                f"descriptor: means {self.means.shape}, deviations {self.deviations.shape} and counts "
                f"{self.counts.shape} do not fit together"
            )
        if self.means.size == 0:
            raise BadPayload("descriptor: it is empty")

    @property
    def rows(self) -> int:
        """1 + U."""
        return len(self.means)

    @property
    def dims(self) -> int:
        """l, the coordinates of a projected latent."""
        return int(self.means.shape[1])

    def first(self, rows: int) -> "Moments":
        """Only the first `rows` rows; 1 leaves out the classes."""
        return Moments(self.means[:rows], self.deviations[:rows], self.counts[:rows])


@dataclass(frozen=True, eq=False)
class Descriptor:
    """What a device reports about its data: released statistics of its projected latents (FLUX eq. 7).

    Args:
        statistics: `Moments` in the modes "off" and "paper"; `NoisySums` in the modes with a guarantee.
            Estimates of the moments are made from noisy sums on the server
            (`shoal.core.server_kit.estimates`), and never travel.
        projector: SHA-256 of the projector that was used, 64 hex digits.
        privacy: what the device did before this left it.

    Raises:
        BadPayload: when the kind of statistics does not belong to the privacy mode, or the projector's name
            is not 64 hex digits.

    Example:
        >>> moments = Moments(np.zeros((3, 10)), np.ones((3, 10)), np.array([40.0, 25.0, 15.0]))
        >>> descriptor = Descriptor(moments, projector="0" * 64)
        >>> descriptor.classes, descriptor.dims
        (2, 10)
    """

    statistics: Moments | NoisySums
    projector: str
    privacy: PrivacySettings = field(default_factory=PrivacySettings)

    def __post_init__(self) -> None:
        if self.noisy != self.privacy.calibrated:
            kind = type(self.statistics).__name__
            raise BadPayload(f"descriptor: privacy mode {self.privacy.mode} does not release {kind}")
        if not is_sha256(self.projector):
            raise BadPayload("descriptor: a projector is named by 64 hex digits")

    @property
    def noisy(self) -> bool:
        """Whether it holds sums with noise of a known size, and not moments."""
        return isinstance(self.statistics, NoisySums)

    @property
    def classes(self) -> int:
        """The number of classes that have a row; 0 for a label-free descriptor."""
        return self.statistics.rows - 1

    @property
    def dims(self) -> int:
        """The number of coordinates of a projected latent, l."""
        return self.statistics.dims


@dataclass(frozen=True)
class ClusterAssignment:
    """Which cluster a device was put in, and how sure that is.

    distance, runner_up_distance: in the algorithm's own descriptor space; NaN where there is no such thing.
    confidence: 0 (the runner-up is as near) to 1 (it is infinitely farther).
    abstained: no cluster fits; `cluster` then names the nearest all the same, and `reason` says why not.
    """

    cluster: str
    distance: float = float("nan")
    runner_up: str = ""
    runner_up_distance: float = float("nan")
    confidence: float = 1.0
    abstained: bool = False
    reason: str = ""

    def __post_init__(self) -> None:
        if not 0.0 <= self.confidence <= 1.0:
            raise BadPayload(f"cluster assignment: confidence {self.confidence} is not between 0 and 1")
        if np.isinf((self.distance, self.runner_up_distance)).any():
            raise BadPayload("cluster assignment: a distance is infinite")


@dataclass(frozen=True, eq=False)
class Scores:
    """Mean loss of each of K models on a device's own data. losses: (K,) float64; examples: how many."""

    losses: FloatArray
    examples: int

    def __post_init__(self) -> None:
        _check_array("scores", self.losses, 1, MAX_MODELS)
        if self.examples < 0:
            raise BadPayload(f"scores: {self.examples} examples")


@dataclass(frozen=True, eq=False)
class Prototypes:
    """Mean embedding of each class that a device holds (FMCL).

    classes: (c,) float64 whole numbers, ascending; means: (c, d) float64; counts: (c,) float64. encoder: its
    SHA-256, 64 hex digits; "" where the device does not say. Those of two encoders cannot be compared.
    """

    classes: FloatArray
    means: FloatArray
    counts: FloatArray
    encoder: str = ""

    def __post_init__(self) -> None:
        _check_array("prototypes", self.classes, 1, MAX_ROWS)
        _check_array("prototypes", self.means, 2, MAX_ROWS * MAX_DIMS)
        _check_array("prototypes", self.counts, 1, MAX_ROWS)
        if not len(self.classes) == len(self.means) == len(self.counts):
            raise BadPayload("prototypes: classes, means and counts differ in length")
        if self.means.size == 0:
            raise BadPayload("prototypes: there are none")
        whole = (self.classes == np.floor(self.classes)).all() and self.classes[0] >= 0
        if not whole or (np.diff(self.classes) <= 0).any() or self.classes[-1] >= 1 << 32:
            raise BadPayload("prototypes: classes are whole numbers from 0 on, ascending")
        if self.encoder and not is_sha256(self.encoder):
            raise BadPayload("prototypes: an encoder is named by 64 hex digits")


@dataclass(frozen=True, eq=False)
class MixtureCounts:
    """Responsibility mass of each of K models for each of C classes (FedRC). counts: (K, C) float64."""

    counts: FloatArray

    def __post_init__(self) -> None:
        _check_array("mixture counts", self.counts, 2, MAX_MODELS * MAX_ROWS)
        if self.counts.size == 0:
            raise BadPayload("mixture counts: there are none")


@dataclass(frozen=True)
class Ballot:
    """The cluster for which a newcomer has voted. epsilon: what the vote has cost each of its samples."""

    cluster: str
    epsilon: float

    def __post_init__(self) -> None:
        if not 1 <= len(self.cluster) <= MAX_CLUSTER:
            raise BadPayload(f"ballot: a cluster's name has 1 to {MAX_CLUSTER} characters")
        if not 0.0 < self.epsilon < float("inf"):
            raise BadPayload(f"ballot: epsilon is {self.epsilon}", "a finite one, above 0")


Evidence = Descriptor | Scores | Prototypes | Ballot
"""What a newcomer can show of its data."""


@dataclass(frozen=True)
class Letters:
    """What devices of a secure sum have for each other: bytes by device, in the order of names. The empty
    name has what is of no one device."""

    by_device: Mapping[DeviceId, bytes]

    def __post_init__(self) -> None:
        for device, data in self.by_device.items():
            if len(device) > MAX_CLUSTER or len(data) > MAX_LETTER:
                raise BadPayload(f"letters: {len(data)} bytes for a name of {len(device)} characters")
        object.__setattr__(self, "by_device", dict(sorted(self.by_device.items())))


@dataclass(frozen=True)
class Extension:
    """Bytes of an algorithm outside this tree; `type` names their meaning, such as "acme.nova.v1.Sketch"."""

    type: str
    data: bytes


def is_sha256(name: str) -> bool:
    """Whether this is 64 lower-case hex digits."""
    return len(name) == 64 and not set(name) - set("0123456789abcdef")


def _check_array(what: str, array: FloatArray, rank: int, most: int) -> None:
    if array.dtype != np.float64 or array.ndim != rank:
        raise BadPayload(
            f"{what}: expected a {rank}-D float64 array, got a {array.ndim}-D {array.dtype} array"
        )
    if array.size > most:
        raise BadPayload(f"{what}: {array.size} numbers, at most {most} are taken")
    if not np.isfinite(array).all():
        raise BadPayload(f"{what}: it holds NaN or infinity", "look at the device's data and its model")
