"""The messages between the two halves of an algorithm: frozen dataclasses, not configuration dictionaries.

A field is a plain number or text, a `Tensors`, a part of `shoal.core.exchange.parts`, a flat dataclass of
settings, or a tuple of tensors or of numbers. `reply` names the answer. These cover most algorithms; one
that needs more brings its own in its folder.
"""

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar

from shoal.core.data.scale import Summary
from shoal.core.errors import BadPayload
from shoal.core.exchange.parts import (
    MAX_LATENTS,
    MAX_SCALE,
    MIN_SCALE,
    Descriptor,
    LatentBounds,
    PrivacySettings,
    Prototypes,
    Scores,
)
from shoal.core.exchange.tensors import check_manifest, digest, manifest_of
from shoal.core.types import Tensors

MAX_BUILT = 64
"""The most initial models that one device is asked for at once."""
INPUTS = hashlib.sha256(b"the inputs themselves").hexdigest()
"""Instead of the SHA-256 of an encoder: there is none, and the inputs are their own embedding."""
SAME_ENCODER = "give all devices the same learner, with the same frozen encoder"

OPTIMIZERS = ("sgd", "adam", "adamw")

MAX_EXAMPLES, MAX_LOSS = 1 << 40, 1e40
"""The most samples that a device can have, and the highest loss that is taken."""

MIN_RHO, MAX_RHO = 1e-6, 1e3
"""Of a private accuracy, in zero-concentrated differential privacy: noise of 707 samples, and almost none."""
MIN_NOISE, MAX_NOISE = 0.1, 1e4
"""In units of the clipping norm. Less gives no useful epsilon, and more drowns the gradient."""


class Message:
    """Base of all messages. `kind` is its name on the wire, `reply` the class of the answer."""

    kind: ClassVar[str]
    reply: ClassVar["type[Message]"]
    one_seed: ClassVar[bool] = False
    """Whether all devices of a round have the same seed for it, and not each its own."""

    def admit(self, reply: "Message") -> None:
        """Raise BadPayload for a reply that does not answer this task.

        `shoal.core.exchange.admit` has already checked that the reply is of the expected class, that its
        tensors have the names, shapes and types of the run's model, and that every number is finite.
        """


def fields_as(kind: type[Message], message: Any) -> dict[str, Any]:
    """The values of a message for those fields that a message of this kind has too, such as `Train` and a
    task that adds something to it."""
    return {item.name: getattr(message, item.name) for item in fields(kind)}  # type: ignore[arg-type]


@dataclass(frozen=True)
class TrainingSettings:
    """How a device trains. learning_rate per step; batch_size in samples; epochs over its training part. A
    batch_size or epochs of 0 leaves it to the device, which knows how many samples it has.

    restart_momentum: forget what the optimizer remembers at each epoch, not only at each round.
    optimizer: "sgd", with momentum; "adam" (Kingma and Ba, ICLR 2015) or "adamw" (Loshchilov and Hutter, ICLR
    2019), with PyTorch's defaults for all but the rate and the weight decay, and without momentum.
    proximal: mu of FedProx (Li et al., MLSys 2020, eq. 2): mu / 2 times the squared distance from the model
    as received is added to what is minimized, and not to the reported loss. A learner with a train() of its
    own has to do this itself. clip_norm: L2 norm to which each step's gradient is shortened; 0: to none.
    """

    epochs: int = 2
    batch_size: int = 64
    learning_rate: float = 0.005
    momentum: float = 0.9
    weight_decay: float = 0.0
    restart_momentum: bool = False
    proximal: float = 0.0
    optimizer: str = "sgd"
    clip_norm: float = 0.0

    def __post_init__(self) -> None:
        sane = {
            "epochs": self.epochs >= 0,
            "batch_size": self.batch_size >= 0,
            "learning_rate": 0.0 < self.learning_rate < math.inf,
            "momentum": 0.0 <= self.momentum < 1.0,
            "weight_decay": 0.0 <= self.weight_decay < math.inf,
            "proximal": 0.0 <= self.proximal < math.inf,
            "optimizer": self.optimizer in OPTIMIZERS,
            "clip_norm": 0.0 <= self.clip_norm < math.inf,
        }
        _check_fields(self, sane, "invalid training settings")


@dataclass(frozen=True)
class PrivateTraining:
    """A request for DP-SGD: a guarantee for each sample, made on the device, which may refuse to pay for it.

    clip: L2 norm to which a sample's gradient is shortened. noise: its standard deviation, in units of clip;
    0 leaves it to the device, which takes what `rounds` such tasks need to be (epsilon, delta) together.
    delta: at which a report states the epsilon.
    """

    clip: float = 1.0
    noise: float = 0.0
    epsilon: float = 0.0
    delta: float = 1e-6
    rounds: int = 1

    def __post_init__(self) -> None:
        sane = {
            "clip": MIN_SCALE <= self.clip <= MAX_SCALE,
            "noise": self.noise == 0.0 or MIN_NOISE <= self.noise <= MAX_NOISE,
            "epsilon": 0.0 <= self.epsilon < math.inf and (self.epsilon > 0.0) != (self.noise > 0.0),
            "delta": 0.0 < self.delta < 1.0,
            "rounds": self.rounds >= 1,
        }
        hint = f"noise of {MIN_NOISE} or more, or an epsilon above 0, and not both"
        _check_fields(self, sane, "invalid DP-SGD parameters", hint)


@dataclass(frozen=True)
class Protected:
    """How a model was trained by DP-SGD. clip to steps: see `shoal.core.privacy.dpsgd`."""

    clip: float
    noise: float
    rate: float
    steps: int

    def __post_init__(self) -> None:
        sane = {
            "clip": MIN_SCALE <= self.clip <= MAX_SCALE,
            "noise": MIN_NOISE <= self.noise <= MAX_NOISE,
            "rate": 0.0 < self.rate <= 1.0,
            "steps": self.steps >= 1,
        }
        _check_fields(self, sane, "invalid DP-SGD parameters")


@dataclass(frozen=True, eq=False)
class Built(Message):
    """Initial weights. others: of the further models, where more than one was asked for.

    graph: the network as an ONNX file without weights, the one tensor "graph" of bytes; None where there is
    none. untraced: why there is none. encoder: the learner's frozen encoder, in the same way but with its
    weights; None where it has none, or one that cannot be traced.
    """

    kind: ClassVar[str] = "built"
    model: Tensors
    others: tuple[Tensors, ...] | None = None
    graph: Tensors | None = None
    untraced: str | None = None
    encoder: Tensors | None = None


@dataclass(frozen=True, eq=False)
class Build(Message):
    """Make the learner's initial weights; up to three devices are asked for them where the server has none.

    models: how many, drawn independently, at most `MAX_BUILT`; None for one.
    """

    kind: ClassVar[str] = "build"
    reply: ClassVar[type[Message]] = Built
    one_seed: ClassVar[bool] = True
    models: int | None = None

    def __post_init__(self) -> None:
        if self.models is not None and not 2 <= self.models <= MAX_BUILT:
            raise BadPayload(f"cannot build {self.models} models", f"ask for 2 to {MAX_BUILT}, or for one")

    def admit(self, reply: Message) -> None:
        assert isinstance(reply, Built)
        found = [reply.model, *(reply.others or ())]
        if len(found) != (self.models or 1):
            raise BadPayload(f"expected {self.models or 1} models, got {len(found)}")
        for model in found[1:]:
            check_manifest(manifest_of(model), manifest_of(reply.model))
        for graph in filter(None, (reply.graph, reply.encoder)):
            sizes = [(each.name, each.dtype, len(each.shape)) for each in manifest_of(graph)]
            if sizes != [("graph", "uint8", 1)]:
                raise BadPayload(f"a graph of the tensors {sizes}", 'give its file as one tensor, "graph"')


@dataclass(frozen=True)
class HeldOut:
    """How good the model of a task was on the device's held-out part, before the device trained.

    accuracy: 0 to 1, as in `Evaluated`. loss: mean by sample. examples: samples it was measured on.
    """

    accuracy: float
    loss: float
    examples: int

    def __post_init__(self) -> None:
        sane = {
            "accuracy": 0.0 <= self.accuracy <= 1.0,
            "loss": -MAX_LOSS <= self.loss <= MAX_LOSS,
            "examples": 1 <= self.examples <= MAX_EXAMPLES,
        }
        _check_fields(self, sane, "a held-out figure is not possible")


@dataclass(frozen=True, eq=False)
class Trained(Message):
    """The model after local training. examples: size of the training part.

    loss: mean over the last epoch; 0 from DP-SGD, which does not release it.
    descriptor: where one was asked for; None if the device has too few samples for the guarantee.
    private, curve: from DP-SGD, how it was done, and what it cost a sample (`shoal.core.privacy.cost`).
    held_out: of the model as it came. None where weights have a guarantee, which it would lack, from a
    device that holds nothing out, and where the model's loss is no number.
    """

    kind: ClassVar[str] = "trained"
    model: Tensors
    examples: int
    loss: float
    descriptor: Descriptor | None = None
    private: Protected | None = None
    curve: tuple[float, ...] | None = None
    held_out: HeldOut | None = None


@dataclass(frozen=True, eq=False)
class Train(Message):
    """Train `model` on the device's training part, after measuring it on the held-out part.

    With a `projector` the device also describes its training part, or in a calibrated privacy mode all of its
    data but a test part, by `model` as received and before it trains: a tensor set of "mean" (v,) and
    "components" (l, v), float64, or in such a mode one of standardized latents, with a "radius" () too
    (`shoal.core.inference.describing`). classes: U, rows to fill.
    cluster: the name of the cluster that `model` belongs to, for people.
    private: ask for DP-SGD; without it the weights have no privacy guarantee.
    """

    kind: ClassVar[str] = "train"
    reply: ClassVar[type[Message]] = Trained
    model: Tensors
    settings: TrainingSettings
    cluster: str = ""
    projector: Tensors | None = None
    classes: int = 0
    privacy: PrivacySettings = field(default_factory=PrivacySettings)
    private: PrivateTraining | None = None


@dataclass(frozen=True, eq=False)
class Evaluated(Message):
    """How good the model is on the device. accuracy: 0 to 1; examples: samples it was measured on.

    bounds, latents: of the model's latent values and their number of coordinates, where asked for. f1, auc:
    means over the classes, where asked for (`evaluation.metrics`); None for a learner with an
    evaluate() of its own, and auc where there is only one class.
    rho: what the accuracy cost; then it has noise, and the loss, which does not leave, is 0.
    baseline: the share of the commonest class among the same samples, above 0, up to 1; 0 where labels are
    numbers, since their mean explains nothing of them; None where it does not leave, as with a rho, or says
    nothing, as for a learner with an evaluate() of its own. classes: how many the network tells apart, 0
    where labels are numbers.
    """

    kind: ClassVar[str] = "evaluated"
    accuracy: float
    loss: float
    examples: int
    bounds: LatentBounds | None = None
    latents: int = 0
    f1: float | None = None
    auc: float | None = None
    rho: float | None = None
    baseline: float | None = None
    classes: int = 0


@dataclass(frozen=True, eq=False)
class Evaluate(Message):
    """Measure `model` on the device's held-out part ("held_out"), or on its test part ("test").

    bounds: "" for none, "scalar" for one lowest and highest latent value over all coordinates of the
    held-out part. A device without a test part uses the held-out one. detailed: measure f1 and auc too; None
    is no.

    rho: ask for an accuracy with a privacy guarantee: the number of samples that the model classifies rightly
    with discrete Gaussian noise, which costs each sample this much (`shoal.core.privacy.cost`); MIN_RHO to
    MAX_RHO. None: exact figures, which have no guarantee.
    """

    kind: ClassVar[str] = "evaluate"
    reply: ClassVar[type[Message]] = Evaluated
    model: Tensors
    part: str = "held_out"
    cluster: str = ""
    bounds: str = ""
    detailed: bool | None = None
    rho: float | None = None

    def __post_init__(self) -> None:
        if self.rho is not None and (self.bounds or self.detailed):
            raise BadPayload("with a privacy guarantee only the accuracy can be measured")
        if self.rho is not None and not MIN_RHO <= self.rho <= MAX_RHO:
            raise BadPayload(f"an accuracy cannot cost a rho of {self.rho}", f"use {MIN_RHO} to {MAX_RHO}")

    def admit(self, reply: Message) -> None:
        assert isinstance(reply, Evaluated)
        if reply.rho != self.rho:
            raise BadPayload(f"an accuracy of rho {reply.rho} answers a task of rho {self.rho}")


@dataclass(frozen=True, eq=False)
class LatentsCounted(Message):
    """How many latents the network has: a fact about the learner, and not about data. number: at least 1."""

    kind: ClassVar[str] = "latents_counted"
    number: int


@dataclass(frozen=True, eq=False)
class CountLatents(Message):
    """How many latents does the network with the weights `model` have? No data are looked at.

    Of a histogram (`shoal.core.data.histogram`): how many features do samples have?
    """

    kind: ClassVar[str] = "count_latents"
    reply: ClassVar[type[Message]] = LatentsCounted
    model: Tensors

    def admit(self, reply: Message) -> None:
        assert isinstance(reply, LatentsCounted)
        if not 1 <= reply.number <= MAX_LATENTS:
            raise BadPayload(f"{reply.number} latents", f"1 to {MAX_LATENTS} are taken")


@dataclass(frozen=True, eq=False)
class Ensemble(Message):
    """Measure how the weighted mean of several models' probabilities does on a part of the device's data.

    weights: one for each model, at least 0 and not all 0. part: as for `Evaluate`. The papers measure so what
    a newcomer without labels gets from a run that cannot place it (FLUX, F.1; FEROMA, I.3); which outputs
    they average, they do not say.
    """

    kind: ClassVar[str] = "ensemble"
    reply: ClassVar[type[Message]] = Evaluated
    models: tuple[Tensors, ...]
    weights: tuple[float, ...]
    part: str = "test"

    def __post_init__(self) -> None:
        sane = all(weight >= 0.0 for weight in self.weights) and 0.0 < sum(self.weights) < math.inf
        if len(self.weights) != len(self.models) or not sane:
            raise BadPayload(f"weights {self.weights} came for {len(self.models)} models")


@dataclass(frozen=True, eq=False)
class Described(Message):
    """The descriptor; None from a device that trains, and has too few samples for the guarantee that was
    asked for. examples: samples behind it."""

    kind: ClassVar[str] = "described"
    descriptor: Descriptor | None
    examples: int


@dataclass(frozen=True, eq=False)
class Describe(Message):
    """Describe the device's data by the frozen `encoder`.

    classes: U, of the training part; 0 asks for the label-free descriptor, of all data but a test part. In a
    calibrated privacy mode both are of all data but a test part.
    """

    kind: ClassVar[str] = "describe"
    reply: ClassVar[type[Message]] = Described
    encoder: Tensors
    projector: Tensors
    classes: int = 0
    privacy: PrivacySettings = field(default_factory=PrivacySettings)


@dataclass(frozen=True, eq=False)
class Scored(Message):
    """The loss of each model asked about."""

    kind: ClassVar[str] = "scored"
    scores: Scores


@dataclass(frozen=True, eq=False)
class Score(Message):
    """Mean loss of each of `models` on the training part."""

    kind: ClassVar[str] = "score"
    reply: ClassVar[type[Message]] = Scored
    models: tuple[Tensors, ...]


@dataclass(frozen=True, eq=False)
class Summarized(Message):
    """See `shoal.core.data.scale.Summary`."""

    kind: ClassVar[str] = "summarized"
    means: tuple[float, ...]
    deviations: tuple[float, ...]
    target: tuple[float, ...] = ()

    @property
    def summary(self) -> Summary:
        """Raises BadPayload for what cannot be."""
        return Summary(self.means, self.deviations, self.target)


@dataclass(frozen=True, eq=False)
class Summarize(Message):
    """Mean and deviation of each feature of the training part, for the scale of the fleet's inputs."""

    kind: ClassVar[str] = "summarize"
    reply: ClassVar[type[Message]] = Summarized

    def admit(self, reply: Message) -> None:
        if isinstance(reply, Summarized):
            _ = reply.summary


@dataclass(frozen=True, eq=False)
class Represented(Message):
    """The mean embeddings. examples: samples behind them."""

    kind: ClassVar[str] = "represented"
    prototypes: Prototypes
    examples: int


@dataclass(frozen=True, eq=False)
class Represent(Message):
    """Mean embeddings of the training part, by a frozen encoder.

    by_class: one for each class, which takes labels; else one for all samples, under class 0. encoder: an
    ONNX file with its weights, the one tensor "graph" of bytes; None for the learner's own `encoder`. digest:
    the SHA-256 of the encoder of the devices that have answered; None where none has.
    """

    kind: ClassVar[str] = "represent"
    reply: ClassVar[type[Message]] = Represented
    by_class: bool = True
    encoder: Tensors | None = None
    digest: str | None = None

    def unlike(self, encoder: str) -> str:
        """What is wrong with embeddings by the encoder of this SHA-256: those of two encoders say nothing of
        each other, even where they are as wide. "" if nothing is wrong, or if the device does not say."""
        wanted = self.digest if self.encoder is None else digest(self.encoder)
        if not wanted or encoder in ("", wanted):
            return ""
        return f"the run's devices embed their samples by {_named(wanted)}, and this one by {_named(encoder)}"


def _check_fields(found: object, sane: Mapping[str, bool], what: str, hint: str = "") -> None:
    """Raise BadPayload, naming the first field that is not sane."""
    for name, holds in sane.items():
        if not holds:
            raise BadPayload(f"{what}: {name} is {getattr(found, name)}", hint)


def _named(encoder: str) -> str:
    return "the inputs themselves" if encoder == INPUTS else f"the encoder {encoder[:12]}"


STANDARD: tuple[type[Message], ...] = (
    Build,
    Built,
    Train,
    Trained,
    Evaluate,
    Evaluated,
    Ensemble,
    CountLatents,
    LatentsCounted,
    Describe,
    Described,
    Score,
    Scored,
    Summarize,
    Summarized,
    Represent,
    Represented,
)
