"""Ruan and Joe-Wong, FedSoft: Soft Clustered Federated Learning with Proximal Local Updating, AAAI 2022,
Algorithm 1.

A device's data may come from several clusters at once; each device trains one model, which stays near the
models of all of them. There are S centers c_s, the models of clusters, and each device has a model w_k of its
own.

    importance   every tau rounds a device counts for how many of its samples each center's loss is the
                 lowest: u_ks = max(n_ks / n_k, sigma); in between it keeps its u_k
    update       w_k descends h_k(w) = f_k(w) + lambda / 2 sum_s u_ks ||w - c_s||^2
    centers      c_s becomes the mean of the w_k, weighted by v_sk = u_ks n_k / sum_j u_js n_j

The sum in h_k is U ||w - c||^2 plus a constant, where U = sum_s u_ks and c = sum_s u_ks c_s / U. It therefore
has the effect of one proximal term, toward one model, and costs no more than FedProx's.

The paper leaves some points open. Here they are read as:

    who trains        every device that is present, with weight v_sk in each center. Algorithm 1 draws K
                      devices for each center by v_sk and takes the plain mean, which is the same on average;
                      the authors' code has both
    start of w_k      the device's own model of the last time, as in the authors' code; at first, c
    equal losses      the first of them in an order that each device draws, so that centers that begin equal,
                      because an operator gave one model, separate in the first round
    where w_k is      on the device. It leaves as an update, but the server keeps only the centers

Each center has initial weights of its own. A device measures w_k. A newcomer gets the center with its lowest
loss, which it needs labels to measure.

Presets. `original` is CIFAR-10 in the authors' code (its optimizer is Adam, here it is SGD). `paper` is
FedSoft as FedRC compares with it: three clusters, batches of 128, one epoch, momentum 0.9, 200 rounds; that
paper does not give lambda. They differ from `default` in

    parameter       paper          original   default   why
    rounds          200            200        10        as long as the other algorithms here
    clusters        3              2          3         has to be given; a guess
    interval        1              2          1         counts for three clusters cost one forward pass
    epochs          1              10         2         as the other algorithms here
    batch_size      128            64         64        the same
    learning_rate   0.06           0.0005     0.005
    weight_decay    0.0005         0          0
    proximal        0.1            0.01       0.1       with fewer epochs devices stray less
    aggregation     mean           mean       clipped   a hostile device must not take over the models
"""

from dataclasses import dataclass

from shoal.core.algorithm import Algorithm, PlacingParameters, RoundParameters, setting
from shoal_lab.algorithms.fedsoft.messages import Measure, SoftTrained, Train


@dataclass(frozen=True)
class Parameters(RoundParameters, PlacingParameters):
    """The number of models is given."""

    clusters: int = setting(3, "S, the number of models.", unit="models", at_least=1)
    interval: int = setting(1, "tau, rounds between two counts of importance.", unit="rounds", at_least=1)
    smoothing: float = setting(1e-4, "sigma, the least weight of a model on a device.", above=0, at_most=1)
    proximal: float = setting(0.1, "lambda, the weight of the proximal term.", at_least=0)


ALGORITHM = Algorithm(
    name="fedsoft",
    summary="soft clusters, devices stay near their mixture of models (Ruan & Joe-Wong 2022)",
    parameters=Parameters,
    server_module="shoal_lab.algorithms.fedsoft.server",
    device_module="shoal_lab.algorithms.fedsoft.device",
    presets={
        "paper": {
            "rounds": 200,
            "epochs": 1,
            "batch_size": 128,
            "learning_rate": 0.06,
            "weight_decay": 5e-4,
            "aggregation": "mean",
            "placing": "paper",
        },
        "original": {
            "rounds": 200,
            "clusters": 2,
            "interval": 2,
            "epochs": 10,
            "learning_rate": 5e-4,
            "momentum": 0.0,
            "proximal": 0.01,
            "aggregation": "mean",
            "placing": "paper",
        },
    },
    messages=(Train, SoftTrained, Measure),
    initial=lambda parameters: parameters.clusters,
)
