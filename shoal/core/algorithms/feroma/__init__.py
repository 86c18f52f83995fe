"""Li et al., Federated Learning with Profile Mapping under Distribution Shifts and Drifts, ICLR 2026.

Each device starts each round from a mixture of the models of devices with data like its own. The sections
named below are those of the paper.

A profile is a descriptor of a device's data by a frozen model. A model belongs to a profile and not to a
device: a device whose data drift continues from the models of the devices that had such data before. Each
line is one exchange with the devices:

    train            FedAvg warm-up, 5 rounds of 20; its model is then frozen and is the encoder (B.4)
    bounds           lowest and highest latent values, once, from which the projector is made (B.4.1, S1, S2)
    profile, mixed   in every round devices describe their current data, and then train from
                     theta_k = sum over j of w(k, j) p_j theta_j / sum over j of w(k, j) p_j (eq. 5), where w
                     compares k's current profile with those of the last round's models (eq. 3), p_j is the
                     number of samples of the source j, and theta_j is the model that j trained
    profile          once more at the end if `served` is "mixed": devices whose data are all alike are a
                     cluster, whose model is the mean of the models of data like theirs
    evaluate         every device measures its model on its test part

A newcomer gets the model whose profile is nearest to its own (Algorithm 2), without labels or, if
`labels_at_test` is set, with a few of them: if devices differ only in how they name things (P(Y|X)), nothing
else distinguishes them (appendix E).

Presets. `paper` is what the authors' code used for the paper's tables, except for a mistake: that code kept
profiles and models in different orders, so the averaged models were not those that the weights were computed
for. Here both are kept by device. `default` is what we recommend. They differ in:

    parameter          paper      default     why
    weighting          inverse    likeness    a distance means nothing without a scale; whether two profiles
                                              could come from one distribution does, see
                                              `feroma.two_sample`. All that are alike count
                                              equally, however near by chance; eq. 3 is "softmax", which is
                                              nearly uniform on profiles scaled to [0, 1]
    distance_at_test   euclidean  likeness    the same; and it knows how few samples a class has
    profile_part       held_out   train       four times as many samples
    masks              3          0           random halves keep an unchanged device from matching only
                                              itself (R3); likeness does not need that, and masks add noise
    fading             0          0.5         0 forgets a device that missed one round; with 0.5 a model
                                              counts less the older it is
    keep               0          32          appendix C proposes to keep distributions that were seen once.
                                              They count only for data that could come from them, so that
                                              no other data are mistaken for theirs
    served             trained    mixed       a model from one device's last epochs on its own data is worse
                                              than the mean of all models of one distribution
    aggregation        mean       clipped     a hostile device must not take over others' models
    restart_momentum   True       False       as in FLUX, and likewise as_published
    as_published       True       False

In both, profiles leave devices without a privacy guarantee, where FLUX's default gives one to descriptors.
`privacy=balanced` gives it to profiles, too; profiles of unchanged data are then paid for once.
"""

from dataclasses import dataclass
from typing import Literal

from shoal.core.algorithm import Algorithm, DescriptorParameters, PlacingParameters, most_rounds, setting
from shoal.core.algorithms.feroma.messages import Profile
from shoal.core.errors import ConfigError


@dataclass(frozen=True)
class Parameters(DescriptorParameters, PlacingParameters):
    """Models are mapped to devices by profiles; no number of clusters is needed."""

    privacy: str = "off"
    aggregation: Literal["mean", "clipped"] = setting(
        "clipped",
        "The rule of the warm-up; after it, whether updates that are far longer than usual, or point away "
        "from those of all devices with like data, are kept out of others' models (clipped) or not (mean).",
    )
    warm_up: float = setting(
        0.25, "Share of the rounds that are FedAvg, rounded down.", at_least=0, below=1, rare=True
    )
    profile_part: Literal["train", "held_out"] = setting(
        "train", "The part of the data that is described.", rare=True
    )
    masks: int = setting(
        0,
        "M, the number of random halves of that part whose moments are averaged (S3). 0: all samples at "
        "once, as always with a privacy guarantee, so that the same data cost budget only once.",
        unit="halves",
        at_least=0,
        rare=True,
    )
    weighting: Literal["likeness", "inverse", "softmax"] = setting(
        "likeness", "How distances between profiles become weights of models (eq. 3).", rare=True
    )
    distance: Literal["cosine", "euclidean"] = setting(
        "cosine", "Distance of scaled profiles, unless weighting is likeness.", rare=True
    )
    distance_at_test: Literal["likeness", "cosine", "euclidean"] = setting(
        "likeness", "Distance of a newcomer's profile from others.", rare=True
    )
    threshold: float = setting(
        0.0,
        "tau (eq. 4): weights below it are dropped; if all are, all count equally. 0: none is dropped. A "
        "negative value stands for one over the number of models.",
        at_most=1,
        rare=True,
    )
    fading: float = setting(
        0.5,
        "Factor on a model's weight for each round in which it was not trained; 0 forgets it at once.",
        at_least=0,
        at_most=1,
        rare=True,
    )
    keep: int = setting(
        32,
        "Most models to keep of distributions that no device has any more.",
        unit="models",
        at_least=0,
        rare=True,
    )
    served: Literal["mixed", "trained"] = setting(
        "mixed",
        "What devices and newcomers get at the end: a mixture for each group of devices with like data, or "
        "models that one device trained.",
        rare=True,
    )
    labels_at_test: bool = setting(
        False,
        "Newcomers describe their classes too, for which they need about 20 labeled samples of each class.",
    )

    def check(self) -> None:
        super().check()
        likeness = self.weighting == self.distance_at_test == "likeness"
        if self.asked_privacy.calibrated and not likeness:
            raise ConfigError(
                f"with privacy={self.privacy}, profiles can be compared only by a measure that accounts for "
                "their noise",
                "set weighting=likeness and distance_at_test=likeness",
            )
        if self.asked_privacy.rules.unknown_noise and "likeness" in (self.weighting, self.distance_at_test):
            raise ConfigError(
                "likeness cannot be tested with privacy=paper, because the size of its noise is unknown",
                "set weighting=inverse and distance_at_test=euclidean, or privacy=off",
            )


def clustered_rounds(parameters: Parameters) -> tuple[int, int]:
    """The rounds after the warm-up."""
    left = most_rounds(parameters) - int(parameters.warm_up * most_rounds(parameters))
    return left, left


ALGORITHM = Algorithm(
    name="feroma",
    summary="mixtures of models mapped by data profiles, for data that drift (Li et al. 2026)",
    parameters=Parameters,
    server_module="shoal.core.algorithms.feroma.server",
    liars=lambda parameters: (
        "under noise, the data of liars look like those of many others, who then learn from their models"
        if parameters.privacy != "off"
        else ""
    ),
    device_module="shoal.core.algorithms.feroma.device",
    presets={
        "paper": {
            "rounds": 20,
            "weighting": "inverse",
            "distance_at_test": "euclidean",
            "profile_part": "held_out",
            "masks": 3,
            "fading": 0.0,
            "keep": 0,
            "served": "trained",
            "aggregation": "mean",
            "placing": "paper",
            "restart_momentum": True,
            "as_published": True,
        },
    },
    messages=(Profile,),
    clustered_rounds=clustered_rounds,
)
