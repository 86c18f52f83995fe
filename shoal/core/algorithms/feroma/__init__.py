"""FEROMA: each device starts each round from a mixture of models, of whoever had data like its own.

Li et al., Federated Learning with Profile Mapping under Distribution Shifts and Drifts, ICLR 2026. Sections
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

from shoal.core.algorithm import Algorithm, TrainingParameters
from shoal.core.algorithms.feroma.messages import Profile


@dataclass(frozen=True)
class Parameters(TrainingParameters):
    """warm_up: the share of the rounds that is FedAvg, rounded down.
    classes, dims, bounds, margin, solver, absent: as in FLUX.

    profile_part: "train" or "held_out", what a profile is of. masks: M random halves of it whose moments are
        averaged (S3); 0 for all samples at once. With a privacy guarantee it is always 0 and the train part:
        so the same data cost the budget once, however often they are described.
    weighting: "likeness", "inverse" of the distance, or "softmax" (eq. 3). distance, distance_at_test:
        "cosine" or "euclidean", of scaled profiles, or at test "likeness".
    threshold: tau (eq. 4): weights below it are left out, and where all are, all count alike. 0: never.
        -1: one over the number of models.
    fading: by how much a model's weight shrinks with each round that its device did not train it; 0 forgets
        it at once. absence: rounds after which a device that is away counts as gone.
    keep: models of distributions that no device has any more, at most so many.
    served: what devices and newcomers get in the end: "mixed" models, or "trained" by one device each.
    labels_at_test: newcomers describe their classes too, so they need labels, 20 of a class, say.
    aggregation: of the warm-up, as in `shoal.core.server_kit.robust`; after it, whose updates are far longer
    than
        usual are held back from others' models ("clipped"), or not ("mean"): see `averaging.held_back`.
    privacy to noise_at_test: as in FLUX. The same data cost a device's budget once; data that drift
        cost it anew each time that they do.
    abstain_beyond: a newcomer farther from the nearest profile than so many times as that is from the next
        distribution is placed nowhere; 0: never. least_confidence: likewise when the next is as near.
    """

    rounds: int = 20
    warm_up: float = 0.25
    classes: int = 10
    dims: int = 10
    bounds: str = "scalar"
    margin: float = 1.02
    solver: str = "full"
    absent: str = "beyond"
    profile_part: str = "train"
    masks: int = 0
    weighting: str = "likeness"
    distance: str = "cosine"
    distance_at_test: str = "likeness"
    threshold: float = 0.0
    fading: float = 0.5
    absence: int = 5
    keep: int = 32
    served: str = "mixed"
    labels_at_test: bool = False
    privacy: str = "off"
    epsilon: float = 0.0
    delta: float = 0.0
    group_size: int = 1
    noise_at_test: bool = True
    abstain_beyond: float = 1.0
    least_confidence: float = 0.05


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
