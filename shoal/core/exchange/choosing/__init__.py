"""What a newcomer is given to choose for itself, and what it finds: of this, nothing leaves the device.

The server never gets the answer to `Choose`, which travels as `ChooseCompact` (see `compact` beside it). So
it is no task, and a device that trains does not know it: only a device that asked for a placement answers it,
and only to itself.
"""

import math
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from shoal.core.errors import BadPayload
from shoal.core.exchange.choosing.watching import Moved
from shoal.core.exchange.messages import Message
from shoal.core.exchange.parts import MAX_DIMS, MAX_MODELS, MAX_ROWS, ClusterAssignment
from shoal.core.rollout import Counts
from shoal.core.types import ModelKey, Tensors

HINT = "update the older of the two sides"
NO_CLASSIFIER = "no-classifier"
"""The code of the failure that a device's network gives no probabilities of classes."""


@dataclass(frozen=True)
class Counted:
    """What a device that follows a channel has counted in a rollout. rollout: "" if it takes part in none,
    and could. cluster: of the release that the channel has, whose model it uses."""

    rollout: str = ""
    cluster: ModelKey = ""
    counts: Counts = field(default_factory=Counts)


@dataclass(frozen=True)
class Wish:
    """The newcomer shows nothing of its data, and wishes to try models itself. models: the most it takes.

    graph: whether it has no learner of its own and needs the run's graph. own: whether it is about the data
    on which the device trains, so that a run that knows its cluster need not ask (see `tuning` beside it).
    counted: of a device that can take part in a rollout; else None. moved: what it says of its data, with a
    guarantee that is paid for (see `watching`); None where it says nothing.
    """

    models: int
    graph: bool = False
    own: bool = False
    counted: Counted | None = None
    moved: Moved | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.models <= MAX_MODELS:
            raise BadPayload(f"a wish for {self.models} models", f"1 to {MAX_MODELS} can be wished for")


@dataclass(frozen=True, eq=False)
class ClusterDensities:
    """Where the data of each of K clusters lie, as a mixture of R normal distributions without correlations.

    encoder: the model whose latents are meant. projector: as in `Describe`, to l dimensions. clusters: the
    tensors "shares" (K, R), at least 0 and not all 0 in a row, "means" and "variances" (K, R, l), above 0;
    all float64. kin: for each cluster, the number of a group of clusters that only name the classes
    differently; empty where that is not known.

    Raises BadPayload for anything else.
    """

    encoder: Tensors
    projector: Tensors
    clusters: Tensors
    kin: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        found = {name: self.clusters.get(name) for name in ("shares", "means", "variances")}
        if len(self.clusters) != 3 or any(each is None for each in found.values()):
            raise BadPayload(f"densities of clusters have the tensors {', '.join(found)}", HINT)
        shares, means, variances = (np.asarray(self.clusters[name]) for name in found)
        whole = shares.ndim == 2 and means.ndim == 3 and means.shape == variances.shape
        if not whole or means.shape[:2] != shares.shape or not means.size:
            raise BadPayload(
                f"densities of clusters: shares {shares.shape}, means {means.shape} and variances "
                f"{variances.shape} do not fit together",
                HINT,
            )
        if means.shape[1] > MAX_ROWS or means.shape[2] > MAX_DIMS:
            raise BadPayload(f"densities of clusters: {means.shape} numbers are too many", HINT)
        if {each.dtype for each in (shares, means, variances)} != {np.dtype(np.float64)}:
            raise BadPayload("densities of clusters are float64", HINT)
        sane = np.isfinite(shares).all() and np.isfinite(means).all() and np.isfinite(variances).all()
        if not sane or (shares < 0.0).any() or (variances <= 0.0).any() or not shares.any(axis=1).all():
            raise BadPayload("densities of clusters: a share or a variance is not a positive number", HINT)


@dataclass(frozen=True, eq=False)
class Chosen(Message):
    """What a newcomer found. One number for each model, in the order of the question, the common model last.

    information: the mutual information of the device's samples and the model's predictions, in nats; with
    labels, the mean logarithm of what the model gives to a sample's label. errors: the standard error of its
    difference from the best cluster's; 0 for that one. odds: the probability that the model is the right
    one; 0 for the common model. agreement: the share of samples on which the model is expected to say what
    the right one says.
    likelihood: by the clusters' densities, the mean logarithm of how much less likely a sample is in each
    cluster than in the likeliest one; None without densities. spread: by which factor the samples scatter
    more than those of the run's devices; 1 if they are like them.
    mixture: the share of each model in the device's predictions; they sum to 1. None where only the chosen
    model predicts. A mixture need not have the chosen model in it, which may be the common one.
    model, others: the chosen one, and those of the mixture besides, in the order of the question, if they
    came in few bits.
    """

    kind: ClassVar[str] = "chosen"
    assignment: ClusterAssignment
    information: tuple[float, ...]
    errors: tuple[float, ...]
    odds: tuple[float, ...]
    agreement: tuple[float, ...]
    examples: int
    likelihood: tuple[float, ...] | None = None
    spread: float | None = None
    model: Tensors | None = None
    mixture: tuple[float, ...] | None = None
    others: tuple[Tensors, ...] | None = None


@dataclass(frozen=True, eq=False)
class Choose(Message):
    """Choose one of `models` by the device's own samples.

    names: of the models, separated by spaces. The last model is the common one, for devices whose samples do
    not tell the others apart. shares: of the run's devices, one for each of the others; above 0.
    encoder, projector, densities: those of `ClusterDensities`, with a density for each of the others; None
    where the run has no descriptors of its devices. kin: the numbers of `ClusterDensities`; None where they
    are not known.
    """

    kind: ClassVar[str] = "choose"
    reply: ClassVar[type[Message]] = Chosen
    models: tuple[Tensors, ...]
    names: str
    shares: tuple[float, ...]
    encoder: Tensors | None = None
    projector: Tensors | None = None
    densities: Tensors | None = None
    kin: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        sane = all(share > 0.0 for share in self.shares) and sum(self.shares) < math.inf
        if self.kin is not None and len(self.kin) != len(self.shares):
            raise BadPayload(f"kin of {len(self.kin)} of {len(self.shares)} clusters", HINT)
        found = len(self.models), len(self.keys), len(self.shares) + 1
        if len(set(found)) > 1 or len(set(self.keys)) < len(self.keys) or len(self.models) < 2 or not sane:
            raise BadPayload(
                f"a choice among {found[0]} models with {found[1]} names and {found[2] - 1} shares",
                HINT,
            )
        described = self.described
        count = len(self.shares) if described is None else len(described.clusters["shares"])
        if count != len(self.shares):
            raise BadPayload(f"{count} densities of {len(self.shares)} clusters", HINT)

    @property
    def described(self) -> ClusterDensities | None:
        """Where the clusters' data lie; None where the run does not know."""
        if self.encoder is None and self.projector is None and self.densities is None:
            return None
        if self.encoder is None or self.projector is None or self.densities is None:
            raise BadPayload("densities come with their encoder and projector, or not at all", HINT)
        return ClusterDensities(self.encoder, self.projector, self.densities)

    @property
    def keys(self) -> tuple[ModelKey, ...]:
        """The names, one for each model."""
        return tuple(self.names.split(" "))
