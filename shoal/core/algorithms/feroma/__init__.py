"""Li et al., Federated Learning with Profile Mapping under Distribution Shifts and Drifts, ICLR 2026.

Each device starts each round from a mixture of the models of devices whose data were like its own. Sections
named below are the paper's.

A profile is a descriptor of a device's data by a frozen model. A model belongs to a profile and not to a
device: a device whose data drift starts from the models of whoever had such data before. Each line is one
exchange with the devices:

    train            FedAvg warm-up, 5 rounds of 20; its model is the encoder from there on, frozen (B.4)
    bounds           lowest and highest latent values, once: what the projector is made of (B.4.1, S1 and S2)
    profile, mixed   every round: devices describe their data as they are now, then train from
                     theta_k = sum over j of w(k, j) p_j theta_j / sum over j of w(k, j) p_j (eq. 5), where w
                     compares k's profile now with those of the last round's models (eq. 3), p_j is the number
                     of samples of the source j, and theta_j what j had trained
    profile          once more at the end, where `served` is "mixed": each device gets the mean of the models
                     of data like its own
    evaluate         every device measures its model on its test part

A newcomer is given the model whose profile is nearest to its own (Algorithm 2), without labels or, where
`labels_at_test` says so, with a few of them: where devices differ in what things are called (P(Y|X)), nothing
else tells them apart (appendix E).

Presets. `paper` is what the authors' code ran when it made the tables, but for what cannot be meant: it
averaged other devices' models than the weights were of, since it kept profiles and models in two orders; here
both are kept by device. `default` is what we recommend. They differ in:

    parameter          paper      default     why
    weighting          inverse    likeness    a distance says nothing without a scale: whether two profiles
                                              could be of one distribution does, by
                                              `shoal.core.server_kit.two_sample`. All that are alike count
                                              alike, however near by chance; eq. 3 is "softmax", nearly
                                              uniform on profiles scaled to [0, 1]
    distance_at_test   euclidean  likeness    the same; and 20 samples of a class are weighed as 20 samples
    profile_part       held_out   train       four times the samples
    masks              3          0           random halves keep an unchanged device from matching itself
                                              alone (R3); with likeness it does not, and masks only add noise
    fading             0          0.5         0 forgets whoever missed one round; a model that is older
                                              counts less, and the less the older
    keep               0          32          appendix C proposes to keep what was seen once; it counts for
                                              data alone that could be of it, so none is mistaken for it
    served             trained    mixed       one device's last epochs on its own data make a worse model than
                                              the mean of all models of data that could be of one distribution
    aggregation        mean       clipped     a hostile device must not carry others' models away
    restart_momentum   True       False       as in FLUX, see there, and so absent, solver, noise_at_test
    absent             minus_one  beyond
    solver             auto       full
    noise_at_test      False      True
    abstain_beyond,    0, 0       1, 0.05     a newcomer that fits nothing, or two things equally well, should
    least_confidence                          be told so
"""

from dataclasses import dataclass
from typing import Literal

from shoal.core.algorithm import Algorithm, DescriptorParameters, setting
from shoal.core.algorithms.feroma.messages import Profile
from shoal.core.errors import ConfigError


@dataclass(frozen=True)
class Parameters(DescriptorParameters):
    """Models are mapped to devices by profiles; no number of clusters is needed."""

    rounds: int = 20
    privacy: str = "off"
    aggregation: Literal["mean", "clipped"] = setting(
        "clipped",
        "The warm-up's rule; after it, whether updates that are far longer than usual are kept out of "
        "others' models (clipped) or not (mean).",
    )
    warm_up: float = setting(0.25, "Share of the rounds that is FedAvg, rounded down.", at_least=0, below=1)
    profile_part: Literal["train", "held_out"] = setting("train", "The part of the data that is described.")
    masks: int = setting(
        0,
        "M, random halves of that part whose moments are averaged (S3); 0: all samples at once, as always "
        "with a privacy guarantee, so that the same data cost the budget once.",
        unit="halves",
        at_least=0,
    )
    weighting: Literal["likeness", "inverse", "softmax"] = setting(
        "likeness", "How distances between profiles become weights of models (eq. 3)."
    )
    distance: Literal["cosine", "euclidean"] = setting("cosine", "Distance of scaled profiles.")
    distance_at_test: Literal["likeness", "cosine", "euclidean"] = setting(
        "likeness", "Distance of a newcomer's profile."
    )
    threshold: float = setting(
        0.0,
        "tau (eq. 4): weights below it are left out; where all are, all count alike. 0: never; below 0: one "
        "over the number of models.",
        at_most=1,
    )
    fading: float = setting(
        0.5,
        "Factor on a model's weight for each round that its device did not train it; 0 forgets it at once.",
        at_least=0,
        at_most=1,
    )
    absence: int = setting(
        5, "Rounds after which a device that is away counts as gone.", unit="rounds", at_least=0
    )
    keep: int = setting(
        32, "Most models of distributions that no device has any more.", unit="models", at_least=0
    )
    served: Literal["mixed", "trained"] = setting(
        "mixed", "What devices and newcomers get in the end: mixtures, or models trained by one device each."
    )
    labels_at_test: bool = setting(
        False, "Newcomers describe their classes too, for which they need labels, about 20 of a class."
    )
    abstain_beyond: float = setting(
        1.0,
        "A newcomer farther from the nearest profile than this many times the distance of that from the "
        "next distribution is not placed; 0: never.",
        at_least=0,
    )
    least_confidence: float = setting(
        0.05, "A newcomer that is placed with less confidence is not placed.", at_least=0, at_most=1
    )

    def check(self) -> None:
        super().check()
        likeness = self.weighting == self.distance_at_test == "likeness"
        if self.asked_privacy.calibrated and not (likeness and self.noise_at_test):
            raise ConfigError(
                f"with privacy={self.privacy}, profiles can be compared only in a way that allows for their "
                "noise",
                "set weighting=likeness, distance_at_test=likeness and noise_at_test=true",
            )
        if self.asked_privacy.rules.unknown_noise and "likeness" in (self.weighting, self.distance_at_test):
            raise ConfigError(
                "likeness cannot be tested with privacy=paper: the size of its noise is not known",
                "set weighting=inverse and distance_at_test=euclidean, or privacy=off",
            )


def clustered_rounds(parameters: Parameters) -> tuple[int, int]:
    """Those after the warm-up."""
    left = parameters.rounds - int(parameters.warm_up * parameters.rounds)
    return left, left


ALGORITHM = Algorithm(
    name="feroma",
    summary="mixtures of models mapped by data profiles, for data that drift (Li et al. 2026)",
    parameters=Parameters,
    server_module="shoal.core.algorithms.feroma.server",
    device_module="shoal.core.algorithms.feroma.device",
    presets={
        "paper": {
            "weighting": "inverse",
            "distance_at_test": "euclidean",
            "profile_part": "held_out",
            "masks": 3,
            "fading": 0.0,
            "keep": 0,
            "served": "trained",
            "aggregation": "mean",
            "restart_momentum": True,
            "absent": "minus_one",
            "solver": "auto",
            "noise_at_test": False,
            "abstain_beyond": 0.0,
            "least_confidence": 0.0,
        },
    },
    messages=(Profile,),
    clustered_rounds=clustered_rounds,
)
