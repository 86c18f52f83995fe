"""FLUX: devices grouped by descriptors of their data, one model a group, newcomers placed without labels.

Fenoglio et al., FLUX: Efficient Descriptor-Driven Clustered Federated Learning under Arbitrary Distribution
Shifts, NeurIPS 2025. Sections named below are the paper's.

A run goes through phases; each line is one exchange with the devices:

    train, measure   FedAvg warm-up until the global model gains little (eq. 14)
    bounds           lowest and highest latent values, merged by the server (C.1.1, S1); once. With a privacy
                     guarantee the number of latents alone: the projector is then made of public numbers
    cluster          devices describe their data by the frozen global model (eq. 7) and train; the server
                     clusters the descriptors (4.2.1, D.2) and averages these updates cluster by cluster
    clustered        each cluster trains its own model; late joiners describe, and join in the next round
    watch            FLUX-dynamic alone: devices describe their data again, and where some have drifted the
                     clusters are formed anew; see `flux.drift`
    evaluate         every device measures its cluster's model on its test part

Presets. `paper` is what the authors' code ran when it made the tables; `default` is what we recommend. They
differ in:

    parameter          paper      default       why
    privacy            off        balanced      what the papers call private is not; a simulation, whose data
                                                are nobody's, is off in every preset
    aggregation        mean       clipped       a hostile device must not carry the model away; a fleet
                                                without one gets the same model
    restart_momentum   True       False         the code built a new optimiser for every epoch
    history            whole      from_earliest eq. 14 says r' >= 3; the code also looks at rounds 1 to 3,
                                                where a slow start looks like "it gains little"
    grouping           density    test          the elbow chains unlike devices together where many differ,
                                                and splits like ones: see `shoal.core.server_kit.two_sample`
    absent             minus_one  beyond        -1 is a place among real means: where it lies depends on the
                                                latents' scale, so two unlike devices may look alike
    placing            distance   likelihood    a distance does not know how much samples spread in each
                                                coordinate, so a newcomer with few of them is often misplaced
    solver             auto       full          "auto" is randomised above 500 latents and gives another
                                                projector with another version of scikit-learn
    noise_at_test      False      True          C.1.3 promises noise to newcomers too; the code added none
    abstain_beyond,    0, 0       2, 0.05       a newcomer that fits no cluster, or two equally well, should
    least_confidence                            be told so; the code always answered

`paper-fashion-mnist` is `paper` with scaling 0.95 (D.2 calibrates the radius for each data set).
"""

from dataclasses import dataclass
from math import ceil

from shoal.core.algorithm import Algorithm, TrainingParameters
from shoal.core.algorithms.flux.messages import TrainMixture


@dataclass(frozen=True)
class Parameters(TrainingParameters):
    """classes: U, number of classes in the run's labels. dims: l, coordinates after projection; with a
        privacy guarantee two of them are for the length of latents, and the others for their direction.
    earliest, latest, threshold, history: when warm-up ends (eq. 14): not before round `earliest`, not after
        `latest` x rounds, else at the first gain in accuracy below `threshold`.
    bounds: "scalar", one pair of bounds for all latents, or "coordinate", one for each. On ReLU latents
        both cluster alike, and "scalar" gives away one value of one record instead of one for each latent.
    margin: factor by which the merged bounds are widened. solver: of the projector's PCA. absent: how a
        class that a device lacks enters its vector; see `shoal.core.server_kit.descriptors`.
    grouping: "test" asks of each pair whether their data could be of one distribution, "density" is D.2.
    clusters: 0 finds their number; K > 0 is told (FLUX-prior, whose own default -1 asks for it).
    scaling: of the density radius (D.2).
    placing: of newcomers: "distance" to the nearest centroid in scaled coordinates (eq. 9), or "likelihood"
        that their samples and the cluster's are of one distribution; see
        `shoal.core.server_kit.assign.divergence`. Where there is any noise in the descriptors it is by
        distance.
    mixing: "hard", or "soft": a device starts each round from a mixture of the clusters' models, and its
        update counts in each by the same weights (D.3).
    watch: rounds after which devices describe their data again, to see whether they have drifted; 0: never.
        It costs them the frozen model's forward pass, and with a privacy guarantee only new data cost budget.
    central_noise, central_clip, central_delta: with aggregation "noised", noise that the server adds to each
        model, for those who get it to learn little of any device; see `shoal.core.server_kit.noised`.
    privacy: of the descriptors: "off", "paper" (not private), "balanced", "strict", or "explicit" with the
        numbers epsilon, delta; group_size samples may be of one person. See docs/privacy.md.
    noise_at_test: newcomers too; with a guarantee, always.
    abstain_beyond: a newcomer farther from its centroid than this many times the cluster's reach, by more
        than chance, is placed nowhere; 0: never. least_confidence: likewise when the runner-up is as near.
        Both are explained in `shoal.core.server_kit.assign`.
    """

    classes: int = 10
    dims: int = 10
    earliest: int = 3
    latest: float = 0.8
    threshold: float = 0.06
    history: str = "from_earliest"
    bounds: str = "scalar"
    margin: float = 1.02
    solver: str = "full"
    absent: str = "beyond"
    grouping: str = "test"
    clusters: int = 0
    scaling: float = 1.0
    placing: str = "likelihood"
    mixing: str = "hard"
    watch: int = 0
    central_noise: float = 0.0
    central_clip: float = 1.0
    central_delta: float = 1e-6
    privacy: str = "balanced"
    epsilon: float = 0.0
    delta: float = 0.0
    group_size: int = 1
    noise_at_test: bool = True
    abstain_beyond: float = 2.0
    least_confidence: float = 0.05


PAPER = {
    "privacy": "off",
    "restart_momentum": True,
    "aggregation": "mean",
    "history": "whole",
    "grouping": "density",
    "placing": "distance",
    "absent": "minus_one",
    "solver": "auto",
    "noise_at_test": False,
    "abstain_beyond": 0.0,
    "least_confidence": 0.0,
}


def clustered_rounds(parameters: Parameters) -> tuple[int, int]:
    """The fewest and the most rounds on clusters: the warm-up ends early where accuracy gains little."""
    longest = max(0, ceil(min(parameters.latest * parameters.rounds, parameters.rounds - 1)))
    shortest = min(longest, max(parameters.earliest, 2))
    return parameters.rounds - longest, parameters.rounds - shortest


ALGORITHM = Algorithm(
    name="flux",
    summary="clusters found from data descriptors, label-free placement (Fenoglio et al. 2025)",
    parameters=Parameters,
    server_module="shoal.core.algorithms.flux.server",
    device_module="shoal.core.algorithms.flux.device",
    presets={"paper": PAPER, "paper-fashion-mnist": {**PAPER, "scaling": 0.95}},
    variants={"flux-prior": {"clusters": -1}, "flux-soft": {"mixing": "soft"}, "flux-dynamic": {"watch": 1}},
    messages=(TrainMixture,),
    clustered_rounds=clustered_rounds,
)
