"""Fenoglio et al., FLUX: Efficient Descriptor-Driven Clustered Federated Learning under Arbitrary
Distribution Shifts, NeurIPS 2025.

Devices are grouped by descriptors of their data, each group trains a model, and newcomers are placed without
labels. The sections named below are those of the paper.

A run goes through these phases; each line is one exchange with the devices:

    train            FedAvg warm-up, until the global model gains little (eq. 14). Each task measures the
                     model before it trains it
    measure          only where that is asked for in an exchange of its own: see `warm_up`
    bounds           lowest and highest latent values, merged by the server (C.1.1, S1), once. With a privacy
                     guarantee only the number of latents: the projector is then made of public numbers.
                     Where an earlier run of the fleet has an encoder, devices describe their data by it
                     instead, at no new cost, and the next phase is passed over
    cluster          devices describe their data by the frozen global model (eq. 7) and train; the server
                     clusters the descriptors (4.2.1, D.2) and averages these updates cluster by cluster
    clustered        each cluster trains its own model; late joiners describe their data, and train from the
                     next round on. A device that has too few samples for the guarantee joins the cluster
                     under whose model its loss is lowest
    undescribed      no device has enough samples for the guarantee: as `clustered`, but with the groups that
                     updates tell, or one model for all

The default has one more way to find groups. Where updates leave as they are, those of the round that forms
the clusters decide, if they differ by more than chance (`shoal.core.server_kit.clustering.congruence`); else
descriptors do. Noise and few samples hide less in an update than in a descriptor, and nothing more leaves.
Where the data of most devices move in mid-run, as their losses show, it gives the groups up, and all train
one model again (`shoal.core.server_kit.clustering.loss_jumps`).

FLUX-dynamic asks for descriptions after each round (`watch`), and forms the groups again. It keeps the models
of those that no device has any more; see `shoal.core.algorithms.flux.clustering.regrouped`.

Presets. `paper` is what the authors' code used for the paper's tables; `default` is what we recommend. They
differ in:

    parameter          paper      default       why
    privacy            off        balanced      what the papers call private is not private. A simulation,
                                                which has no real devices, uses off with every preset
    aggregation        mean       clipped       a hostile device must not take over the model; a fleet
                                                without one gets the same model
    restart_momentum   True       False         the code created a new optimizer for every epoch
    grouping           density    likelihood    the elbow chains unlike devices together where many differ,
                                                and splits like ones: see `shoal.core.server_kit.fleet`
    placing            distance   own_models    the descriptor of a stranger, or of few samples, is often near
                                                a wrong centroid, and it has to leave the device
    warm_up            accuracy   auto          the same accuracies come with the training of the next
                                                round: one round more of warm-up, in half of the exchanges
    as_published       True       False         eq. 14 requires r' >= 3; the code also looks at rounds 1 to 3,
                                                in which a slow start looks like a small gain. Its -1 for a
                                                class that a device lacks lies among real means. Its PCA gives
                                                another projector with another version of scikit-learn. C.1.3
                                                promises noise to newcomers too. And one that fits no cluster,
                                                or two equally well, should learn that. It takes whole steps
                                                to the end; but the model of one or two devices scatters from
                                                round to round, and at a high learning rate it may fail

`paper-fashion-mnist` is `paper` with scaling 0.95, `paper-cifar-100` with 0.98 (D.2 calibrates the radius for
each data set) and as many coordinates as classes, as the authors' code has it. `private` is for owners who
let nothing leave without a guarantee: weights by DP-SGD and descriptors of epsilon 3 each, about 4.5
together.
"""

from dataclasses import dataclass
from math import ceil
from typing import ClassVar, Literal

from shoal.core.algorithm import (
    MAX_ROUNDS,
    PRIVATE,
    Algorithm,
    DescriptorParameters,
    NoisedParameters,
    most_rounds,
    setting,
)
from shoal.core.algorithms.flux.messages import TrainMixture
from shoal.core.errors import ConfigError


@dataclass(frozen=True)
class Parameters(DescriptorParameters, NoisedParameters):
    """The number of clusters is found, or given (flux-prior)."""

    LATEST: ClassVar[float] = 0.8
    """The warm-up ends after this share of the rounds at the latest (eq. 14)."""
    THRESHOLD: ClassVar[float] = 0.06
    """It ends at the first gain in accuracy below this (eq. 14)."""

    earliest: int = setting(
        3, "The warm-up does not end before this round (eq. 14).", unit="rounds", at_least=1, rare=True
    )
    warm_up: Literal["auto", "accuracy", "rounds"] = setting(
        "auto",
        "accuracy: the warm-up ends by the accuracies that devices measure after each round (eq. 14), in an "
        "exchange of its own. rounds: after round `earliest`. auto: by the accuracies that come with the "
        "training of the next round, one round later and without further exchanges; with secure aggregation "
        "as accuracy, and with DP-SGD on the devices as rounds.",
        rare=True,
    )
    grouping: Literal["likelihood", "density"] = setting(
        "likelihood",
        "likelihood: the partition that makes all descriptors most likely. density: as in D.2.",
        rare=True,
    )
    class_shares: bool = setting(
        True,
        "Whether groups may differ by how often classes occur. false: only by how the samples of a class "
        "look, so that devices that have the same classes in other shares train one model.",
        rare=True,
    )
    clusters: int = setting(
        0,
        "Number of clusters; 0: find it. flux-prior requires a number.",
        unit="clusters",
        at_least=0,
        hint="flux-prior must be given the number of clusters: set clusters=K, or use flux",
    )
    scaling: float = setting(1.0, "Factor on the density radius (D.2).", above=0, rare=True)
    placing: Literal["own_models", "vote", "likelihood", "distance"] = setting(
        "own_models",
        "own_models: a newcomer tries the clusters' models on its own samples, and nothing about its data "
        "leaves it. vote: it names one cluster, by a private vote of its samples, and gets that one's model. "
        "likelihood: newcomers send a descriptor, and are placed by the likelihood that their "
        "samples and the cluster's come from one distribution. distance: by the distance to the centroid "
        "(eq. 9), which is also used instead of likelihood where descriptors have noise.",
        rare=True,
    )
    vote_epsilon: float = setting(
        1.0,
        "Epsilon of a newcomer's vote: with placing=vote, and with own_models where a newcomer may not have "
        "all models.",
        above=0,
        rare=True,
    )
    mixing: Literal["hard", "soft"] = setting(
        "hard",
        "soft: a device starts each round from a mixture of the clusters' models, and its update counts in "
        "each of them with the same weights (D.3).",
        rare=True,
    )
    pooling: float = setting(
        0.9,
        "Partial pooling: the largest share of the difference between a cluster's step and the mean of all "
        "clusters' steps that is taken away, as far as the scatter of devices explains it. 0: clusters share "
        "nothing.",
        at_least=0,
        at_most=1,
        rare=True,
    )
    watch: int = setting(
        0,
        "Rounds after which devices describe their data again, to detect drift; 0: never. With a privacy "
        "guarantee, a device describes its data again only when its owner's window (window_days) is over.",
        unit="rounds",
        at_least=0,
    )

    @property
    def measured(self) -> bool:
        """Whether accuracies decide about the end of the warm-up."""
        return self.warm_up == "accuracy" or (self.warm_up == "auto" and not self.private)

    @property
    def measured_apart(self) -> bool:
        """Whether these come in exchanges of their own, and not with the training of the next round."""
        return self.measured and (self.warm_up == "accuracy" or self.secure_aggregation)

    @property
    def finds_groups(self) -> bool:
        """Whether the number of groups is to be found by likelihood, and each device trains the model of one.
        Only then may updates decide about groups, and clusters stay that have lost their devices."""
        return self.grouping == "likelihood" and not self.clusters and self.mixing == "hard"

    @property
    def groups_by_updates(self) -> bool:
        """Whether updates may decide about groups: they leave as they are."""
        hidden = self.losses_stay or self.central_noise > 0.0
        return self.finds_groups and not hidden and not self.as_published

    @property
    def gives_up_groups(self) -> bool:
        """Whether all devices train one model again once the data of most have moved: those of FLUX-dynamic
        are grouped again instead."""
        fixed = bool(self.clusters) or self.mixing == "soft" or self.as_published
        return not fixed and not self.watch and not self.losses_stay

    @property
    def losses_stay(self) -> bool:
        """Whether no device tells its loss under a model, as neither sums nor DP-SGD would protect it."""
        return self.private or self.secure_aggregation

    def check(self) -> None:
        super().check()
        private, noise = self.asked_privacy.calibrated, self.asked_privacy.rules.unknown_noise
        if self.watch and noise:
            raise ConfigError(
                f"drift cannot be distinguished from the noise of privacy={self.privacy}, whose size is "
                "unknown",
                "set watch=0",
            )
        if self.grouping != "density" and noise and not self.clusters:
            raise ConfigError(
                f"grouping={self.grouping} needs noise of a known size, and that of "
                f"privacy={self.privacy} is unknown",
                "set grouping=density, or privacy=off",
            )
        if self.placing == "vote" and noise:
            raise ConfigError(
                f"placing=vote needs noise of a known size, and that of privacy={self.privacy} is unknown",
                "set placing=own_models, or privacy=off",
            )
        if self.grouping == "density" and private and not self.clusters:
            raise ConfigError(
                f"grouping=density does not work with the noise of privacy={self.privacy}",
                "set grouping=likelihood, or privacy=off",
            )
        if self.encoded and self.mixing == "soft":
            raise ConfigError(
                "with mixing=soft devices train a mixture of models, which has no encoding and no frozen "
                "tensors",
                "set encoding=full and no trainable, or mixing=hard",
            )
        if self.secure_aggregation and self.mixing == "soft":
            raise ConfigError(
                "with mixing=soft an update counts in several models, which a sum does not tell apart",
                "set mixing=hard, or secure_aggregation=false",
            )


PAPER = {
    "privacy": "off",
    "warm_up": "accuracy",
    "restart_momentum": True,
    "aggregation": "mean",
    "grouping": "density",
    "pooling": 0.0,
    "placing": "distance",
    "as_published": True,
}


def clustered_rounds(parameters: Parameters) -> tuple[int, int]:
    """The fewest and the most rounds that train clusters: the warm-up ends early if accuracy gains little."""
    rounds = most_rounds(parameters)
    longest = max(0, ceil(min(parameters.LATEST * rounds, rounds - 1)))
    if not parameters.measured:
        shortest = longest = min(longest, parameters.earliest)
    else:
        shortest = min(longest, max(parameters.earliest, 2) + (not parameters.measured_apart))
    return rounds - longest, rounds - shortest


ALGORITHM = Algorithm(
    name="flux",
    summary="clusters found from data descriptors, label-free placement (Fenoglio et al. 2025)",
    parameters=Parameters,
    server_module="shoal.core.algorithms.flux.server",
    device_module="shoal.core.algorithms.flux.device",
    presets={
        "paper": PAPER,
        "paper-fashion-mnist": {**PAPER, "scaling": 0.95},
        "paper-cifar-100": {**PAPER, "scaling": 0.98, "dims": 100},
        "private": {**PRIVATE, "privacy": "explicit", "epsilon": 3.0, "delta": 1e-6},
    },
    variants={
        "flux-prior": {"clusters": -1},
        "flux-soft": {"mixing": "soft"},
        "flux-dynamic": {"watch": 1, "rounds": MAX_ROUNDS},
    },
    messages=(TrainMixture,),
    clustered_rounds=clustered_rounds,
)
