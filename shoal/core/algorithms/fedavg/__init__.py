"""FedAvg: one model, the mean of what the devices trained, weighted by their samples.

McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data, AISTATS 2017,
Algorithm 1.
"""

from dataclasses import dataclass

from shoal.core.algorithm import Algorithm, TrainingParameters


@dataclass(frozen=True)
class Parameters(TrainingParameters):
    """select: "last" gives the last round's model; "lowest_loss" the one with the lowest held-out loss over
    the run, measured after every round, which costs one small exchange a round and no extra download.
    central_noise, central_clip, central_delta: with aggregation "noised", noise that the server adds to each
        model, for those who get it to learn little of any device; see `shoal.core.server_kit.noised`.
    """

    select: str = "last"
    central_noise: float = 0.0
    central_clip: float = 1.0
    central_delta: float = 1e-6


ALGORITHM = Algorithm(
    name="fedavg",
    summary="one global model (McMahan et al. 2017)",
    parameters=Parameters,
    server_module="shoal.core.algorithms.fedavg.server",
    device_module="shoal.core.device_kit.standard",
    presets={
        # How the FLUX paper's tables ran it: fresh momentum each epoch, the round of lowest loss reported.
        "paper": {"select": "lowest_loss", "restart_momentum": True, "aggregation": "mean"},
    },
)
