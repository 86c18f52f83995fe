"""Li et al., Federated Optimization in Heterogeneous Networks, MLSys 2020, Algorithm 2.

FedProx is FedAvg with devices that stay near the model that they were sent. A device minimizes F_k(w) + mu /
2 ||w - w^t||^2 (eq. 2) about as exactly as it can: here by `epochs` passes of SGD.

Every device that is present takes part and counts by its samples, as in the paper's experiments (section
5.1). Algorithm 2 draws devices by their samples and takes the plain mean, which is the same on average.

Presets. `paper` is FedProx as CORNFLQS compares with it: its rounds, epochs and batches, and the plain mean.
That paper does not give mu, and its optimizer is Adam, where here it is SGD. `original` is MNIST in the
paper's own experiments (section 5, appendix C). They differ from `default` in

    parameter               paper       original   default   why
    rounds, epochs          20, 10      100, 20    10, 2     as long as the other algorithms here
    batch_size              128         10         64        the same
    learning_rate, momentum             0.03, 0    0.005, 0.9
    proximal                            1          0.1       with momentum and few epochs devices stray less
    aggregation             mean        mean       clipped   a hostile device must not take over the model
"""

from dataclasses import dataclass

from shoal.core.algorithm import Algorithm, TrainingParameters, setting


@dataclass(frozen=True)
class Parameters(TrainingParameters):
    """The parameters of FedAvg, and the proximal term."""

    proximal: float = setting(
        0.1,
        "mu, the weight of the proximal term. A learner with its own train() has to apply it there.",
        at_least=0,
    )


ALGORITHM = Algorithm(
    name="fedprox",
    summary="one global model, to which devices stay near (Li et al. 2020)",
    parameters=Parameters,
    server_module="shoal.core.algorithms.fedprox.server",
    presets={
        "paper": {"rounds": 20, "epochs": 10, "batch_size": 128, "aggregation": "mean"},
        "original": {
            "rounds": 100,
            "epochs": 20,
            "batch_size": 10,
            "learning_rate": 0.03,
            "momentum": 0.0,
            "proximal": 1.0,
            "aggregation": "mean",
        },
    },
)
