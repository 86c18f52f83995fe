"""FedAvg: one model, the mean of what the devices trained, weighted by their samples.

McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data, AISTATS 2017,
Algorithm 1.
"""

from dataclasses import dataclass

from fedcore.algorithm import Algorithm


@dataclass(frozen=True)
class Parameters:
    """rounds: of training. epochs to restart_momentum: see `fedcore.messages.TrainingSettings`.

    select: "last" gives the last round's model; "lowest_loss" the one with the lowest held-out loss over
    the run, measured after every round, which costs one small exchange a round and no extra download.
    aggregation: how updates become a model, and what a hostile one can do; see `fedcore.central.robust`.
    dp_epsilon, dp_delta, dp_clip, dp_noise: DP-SGD on the devices, see `fedcore.messages.PrivateTraining`;
        dp_epsilon 0 and dp_noise 0: without.
    central_noise, central_clip, central_delta: with aggregation "noised", noise that the server adds to each
        model, for those who get it to learn little of any device; see `fedcore.central.noised`.
    evaluate: measure the final model on the devices' test parts as the last exchange.
    """

    rounds: int = 10
    epochs: int = 2
    batch_size: int = 64
    learning_rate: float = 0.005
    momentum: float = 0.9
    weight_decay: float = 0.0
    restart_momentum: bool = False
    select: str = "last"
    aggregation: str = "clipped"
    dp_epsilon: float = 0.0
    dp_delta: float = 1e-6
    dp_clip: float = 1.0
    dp_noise: float = 0.0
    central_noise: float = 0.0
    central_clip: float = 1.0
    central_delta: float = 1e-6
    evaluate: bool = True


ALGORITHM = Algorithm(
    name="fedavg",
    summary="one global model (McMahan et al. 2017)",
    parameters=Parameters,
    central_module="fedcore.algorithms.fedavg.central",
    local_module="fedcore.local.standard",
    presets={
        # How the FLUX paper's tables ran it: fresh momentum each epoch, the round of lowest loss reported.
        "paper": {"select": "lowest_loss", "restart_momentum": True, "aggregation": "mean"},
    },
)
