"""The parameters that algorithms share: of rounds, of training, of noise, of descriptors and of placing."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, Self

from shoal.core.algorithm.settings import AUTO, checked, setting
from shoal.core.errors import BadPayload, ConfigError
from shoal.core.exchange.encoding.updates import Encoding
from shoal.core.exchange.messages import MIN_NOISE
from shoal.core.exchange.parts import MAX_SCALE, MIN_SCALE, PrivacySettings
from shoal.core.exchange.privacy_modes import MODES, mode_of
from shoal.core.privacy.report import OPEN

MAX_ROUNDS = 20
"""Of a run whose number of rounds is `auto`."""
RHO_OF_ACCURACY = 0.01
"""What each accuracy costs that is measured beside DP-SGD, in zero-concentrated differential privacy: noise
of 7 samples."""

Rule = Literal["mean", "clipped", "trimmed", "median"]
"""How updates are combined into a model; see `shoal.core.server_kit.aggregation.robust`."""


OWN_MODELS = "own_models"
"""A newcomer tries the clusters' models on its own samples, and chooses; nothing about its data leaves it."""
VOTE = "vote"
"""A newcomer names one cluster by a private vote of its samples, and gets that cluster's model only."""

PRIVATE: Mapping[str, Any] = {
    "dp_epsilon": 3.0,
    "rounds": 20,
    "epochs": 1,
    "batch_size": 1_000_000,
    "learning_rate": 0.6,
    "momentum": 0.0,
}
"""How a model of some ten thousand weights learns by DP-SGD: few steps, each over all samples of a device.
The usual parameters take many small steps, and momentum adds up their noise. docs/results.md has what is
left of the accuracy."""


def most_rounds(parameters: Any) -> int:
    """How many rounds of training a run with these parameters has, or at most has where it is `auto`."""
    rounds: int = MAX_ROUNDS if parameters.rounds == AUTO else parameters.rounds
    return rounds


def ends_by_itself(parameters: Any) -> bool:
    """Whether a run with these parameters may end before it has as many: where tasks of training measure."""
    protected = getattr(parameters, "private", False) or getattr(parameters, "secure_aggregation", False)
    return bool(parameters.rounds == AUTO and not protected)


@dataclass(frozen=True)
class CommonParameters:
    """The parameters that every built-in algorithm has. A plug-in's parameters may derive from them."""

    rounds: int = setting(MAX_ROUNDS, "Rounds of training in the whole run.", unit="rounds", at_least=1)
    epochs: int | Literal["auto"] = setting(
        AUTO,
        "Passes over a device's training part in a round. auto: 5, or as many as 40 steps take.",
        unit="passes",
        at_least=1,
    )
    batch_size: int | Literal["auto"] = setting(
        AUTO,
        "Size of a mini-batch. auto: a twentieth of the device's samples, but 8 to 64 of them.",
        unit="samples",
        at_least=1,
    )
    learning_rate: float | Literal["auto"] = setting(
        AUTO, "Step size of the optimizer. auto: see `optimizer`.", above=0
    )
    inputs: str = setting(
        "scaled",
        "scaled: features in different units count in deviations from the fleet's mean, which the devices "
        "measure first; not where DP-SGD, secure aggregation or noise protects weights. raw: as they are. "
        "The name of a run of `statistics`, in Python its result: in deviations from the mean that was "
        "counted there, which may have been under masks or noise.",
    )
    aggregation: Rule = setting(
        "clipped",
        "How updates are combined into a model, and how far a hostile one can move it; see "
        "docs/aggregation.md.",
    )
    evaluate: bool = setting(
        True,
        "Measure, in the last exchange, the models that devices then use, on their test parts.",
        rare=True,
    )

    def __post_init__(self) -> None:
        """Refuse an illegal value, wherever the instance was made. Raises ConfigError."""
        owner = type(self).__module__.rpartition(".")[2]
        checked(owner, type(self), vars(self))
        try:
            self.check()
        except ConfigError as fault:
            raise ConfigError(f"{owner}: {fault.message}", fault.hint) from None

    def check(self) -> None:
        """Check constraints between several fields. An override begins with `super().check()`."""


@dataclass(frozen=True)
class SgdParameters(CommonParameters):
    """The common parameters and those of SGD."""

    momentum: float = setting(0.9, "Momentum of the optimizer.", at_least=0, below=1, rare=True)
    weight_decay: float | Literal["auto"] = setting(
        AUTO, "Weight decay of the optimizer. auto: 0.01 with adamw, else 0.", at_least=0, rare=True
    )


@dataclass(frozen=True)
class RoundParameters(SgdParameters):
    """The parameters of SGD, and of other optimizers: the base of most algorithms."""

    optimizer: Literal["auto", "sgd", "adam", "adamw"] = setting(
        AUTO,
        "The devices' optimizer; momentum is of sgd only. auto: adamw, or sgd where learning_rate is given. "
        "A learning_rate of auto is 0.002, or 0.05 with sgd, and gradients are then clipped to norm 1.",
    )
    schedule: Literal["auto", "constant", "cosine", "linear", "step"] = setting(
        AUTO,
        "The learning rate over the rounds: constant; down to nearly 0 along a half cosine or a line; or a "
        "tenth from half of the rounds on and a hundredth from three quarters on (step). auto: constant, and "
        "in the last three tenths of the rounds to a tenth along a line, but never before clusters form.",
        rare=True,
    )
    restart_momentum: bool = setting(
        False, "Reset what the optimizer remembers at each epoch, not only at each round.", rare=True
    )


@dataclass(frozen=True)
class TrainingParameters(RoundParameters):
    """For algorithms whose devices train only by the standard messages: so they can use DP-SGD, and each
    task of training measures the model that it was given."""

    # It is sound for a subclass to widen a frozen field; mypy assumes that the field can be assigned.
    rounds: int | Literal["auto"] = setting(  # type: ignore[assignment]
        AUTO,
        f"Rounds of training in the whole run. auto: at most {MAX_ROUNDS}, but fewer once accuracy and loss "
        "on the devices' held-out parts are hardly better than some rounds before. With DP-SGD, and with "
        f"secure aggregation, nothing is measured in a round of training, and auto is {MAX_ROUNDS}.",
        unit="rounds",
        at_least=1,
    )

    dp_epsilon: float = setting(
        0.0,
        "DP-SGD on the devices: epsilon of the whole run; 0: no DP-SGD.",
        at_least=0,
    )
    dp_delta: float = setting(
        1e-6,
        "The delta for which the epsilon of weights holds, of DP-SGD on the devices and of "
        "aggregation=noised.",
        above=0,
        below=1,
        rare=True,
    )
    dp_clip: float = setting(
        1.0,
        "DP-SGD on the devices: L2 norm to which each sample's gradient is clipped.",
        at_least=MIN_SCALE,
        at_most=MAX_SCALE,
        rare=True,
    )
    dp_open_figures: bool = setting(
        False,
        "With DP-SGD on the devices: run although the algorithm needs losses or descriptions of data that "
        "have no guarantee. Owners who allow nothing in the open then refuse.",
        rare=True,
    )

    encoding: Encoding = setting(
        "full",
        "How devices send the models that they have trained: full, or as the difference from the model that "
        "they were given, with 16 bits a number (bf16, fp16) or 8 (int8, in blocks of 256, with error "
        "feedback). See docs/algorithms.md.",
    )
    trainable: str = setting(
        "",
        "Names of the tensors that train, with * and ?, separated by spaces, such as 'head.*'; empty: all. "
        "The others stay as they are, and reach each device once.",
    )

    REMOVED: ClassVar[Mapping[str, Any]] = {"dp_noise": 0.0}
    """Fields that checkpoints of version 0.2.0 have."""
    OPEN: ClassVar[str] = ""
    """What leaves without a guarantee whatever the parameters are, and owners are asked for: a name of
    `shoal.core.privacy.report.OPEN`, or what messages of the algorithm's own bring, in words. "": nothing."""

    @property
    def private(self) -> bool:
        """Whether devices train by DP-SGD."""
        return bool(self.dp_epsilon)

    @property
    def encoded(self) -> bool:
        """Whether devices have to know encodings."""
        return self.encoding != "full" or bool(self.trainable)

    def check(self) -> None:
        super().check()
        if self.private and self.OPEN and not self.dp_open_figures:
            leaves = OPEN.get(self.OPEN, self.OPEN)
            raise ConfigError(
                f"DP-SGD protects only the weights here, and this would leave without a guarantee: {leaves}",
                "use fedavg, or flux or feroma with privacy=balanced, or set dp_open_figures=true to run it "
                "all the same",
            )
        if self.private and self.encoded:
            raise ConfigError(
                "with DP-SGD the weights leave as they are: the ledger of a device names what it has "
                "released by its hash, and an encoding would change that",
                "set encoding=full and no trainable, or train without dp_epsilon",
            )


NOISED = "noised"
"""The aggregation rule under which the server adds noise; see `shoal.core.server_kit.aggregation.noised`."""


@dataclass(frozen=True)
class NoisedParameters(TrainingParameters):
    """For algorithms to whose models the server can add noise."""

    aggregation: Literal[Rule, "noised"] = "clipped"  # type: ignore[assignment]
    central_noise: float = setting(
        0.0,
        "With aggregation=noised: standard deviation of the noise that the server adds to the sum of the "
        "updates.",
        unit="multiples of central_clip",
        at_least=MIN_NOISE,
        at_most=MAX_SCALE,
        zero=True,
        rare=True,
    )
    central_clip: float = setting(
        1.0,
        "With aggregation=noised, or secure_aggregation: L2 norm to which each device's update is clipped.",
        at_least=MIN_SCALE,
        at_most=MAX_SCALE,
        rare=True,
    )

    secure_aggregation: bool = setting(
        False,
        "Devices mask their updates, so that the server learns only sums of at least two thirds of a cohort "
        "of 8 to 128 devices. With aggregation=noised the devices add the noise, and not the server.",
    )

    def check(self) -> None:
        super().check()
        if self.secure_aggregation and self.aggregation not in ("mean", NOISED):
            raise ConfigError(
                f"aggregation={self.aggregation} has to see each update, and with secure aggregation there "
                "are only sums: clipped, trimmed and median are not possible",
                "set aggregation=mean, or aggregation=noised with central_noise; each device then counts "
                "once, and clips its own update to central_clip",
            )
        if self.secure_aggregation and self.encoded:
            raise ConfigError(
                "with secure aggregation devices send whole numbers under masks, which have no other "
                "encoding",
                "set encoding=full and no trainable, or secure_aggregation=false",
            )
        if self.aggregation == NOISED and not self.central_noise:
            raise ConfigError(
                f"central_noise cannot be 0 with aggregation={NOISED}",
                f"set central_noise to {MIN_NOISE} or more, such as 1.0",
            )
        if self.aggregation != NOISED and self.central_noise:
            raise ConfigError(
                f"central_noise is added only with aggregation={NOISED}", f"set aggregation={NOISED}"
            )


@dataclass(frozen=True)
class DescriptorParameters(TrainingParameters):
    """For algorithms whose devices describe their data by a frozen model; see
    `shoal.core.server_kit.frozen_encoder`."""

    classes: int = setting(
        0,
        "U, the number of classes among the run's labels; 0: as many as the devices' network tells apart, "
        "or four levels of numbers to predict.",
        unit="classes",
        at_least=0,
    )
    dims: int = setting(
        10,
        "l, the number of coordinates after projection. With a privacy guarantee, two of them carry the "
        "length of the latents.",
        unit="coordinates",
        at_least=1,
        rare=True,
    )
    as_published: bool = setting(
        False,
        "As the authors' code: the projector's PCA is randomized above 500 latents, a class that a device "
        "lacks counts as -1, every newcomer gets a model, for which its descriptor needs no noise, and in "
        "FLUX the gains of all rounds count in eq. 14, and clusters take whole steps to the end.",
        rare=True,
    )
    privacy: str = setting(
        "balanced",
        "Privacy of the descriptors. paper is not private; explicit uses epsilon and delta. See "
        "docs/privacy.md.",
        choices=tuple(MODES),
    )
    epsilon: float = setting(
        0.0, "Epsilon of the guarantee, with privacy=explicit or privacy=paper.", at_least=0, rare=True
    )
    delta: float = setting(
        0.0, "Delta of the guarantee, with privacy=explicit.", at_least=0, below=1, rare=True
    )
    group_size: int = setting(
        1,
        "Most samples that belong to one person; a person's samples are protected together.",
        unit="samples",
        at_least=1,
        rare=True,
    )

    @property
    def asked_privacy(self) -> PrivacySettings:
        """What the devices are asked for. A mode with numbers of its own needs no epsilon and delta. Raises
        ConfigError."""
        numbers = (self.epsilon, self.delta)
        if numbers == (0.0, 0.0):
            numbers = mode_of(self.privacy).guarantee or numbers
        try:
            return PrivacySettings(self.privacy, *numbers, self.group_size)
        except BadPayload as fault:
            raise ConfigError(fault.message, fault.hint) from None

    @property
    def asked_of_newcomers(self) -> PrivacySettings:
        """The same of newcomers, whose descriptors always have the noise that a guarantee takes."""
        asked = self.asked_privacy
        return PrivacySettings() if self.as_published and not asked.calibrated else asked

    def with_classes(self, found: int) -> Self:
        """These parameters, with this number of classes where they leave it open."""
        return self if self.classes else replace(self, classes=found)

    def going_on_from(self, earlier: "DescriptorParameters") -> Self:
        """These parameters of a run that compares descriptions with those of a run with `earlier`, and so has
        its number of classes. Raises ConfigError if they cannot be compared."""
        of_before = ""
        if self.classes not in (0, earlier.classes):
            of_before = f"classes={earlier.classes}"
        elif self.asked_privacy.calibrated != earlier.asked_privacy.calibrated:
            of_before = f"privacy={earlier.privacy}"
        if of_before:
            raise ConfigError(
                f"devices have described their data with {of_before}, and other descriptions cannot be "
                "compared with these",
                f"set {of_before}, or start a run with a model of the earlier one as its initial weights",
            )
        return self.with_classes(earlier.classes)

    def check(self) -> None:
        super().check()
        _ = self.asked_privacy


@dataclass(frozen=True)
class PlacingParameters:
    """For algorithms whose paper has a way of its own to place newcomers, or none without labels."""

    placing: Literal["own_models", "paper"] = setting(
        "own_models",
        "own_models: a newcomer tries the clusters' models on its own samples; it needs no labels, and "
        "nothing about its data leaves it. paper: as in the paper, which may require labels.",
    )
