"""Deng, Kamani and Mahdavi, Adaptive Personalized Federated Learning, 2020 (arXiv:2003.13461), Algorithm 1.

Each device mixes the common model with a model of its own, and learns how much of each to use.

A device has the common model w and its own model v, and uses v_bar = alpha v + (1 - alpha) w. A step, on one
batch, is

    w     <- w - eta grad f_i(w)
    v     <- v - eta alpha grad f_i(v_bar)
    alpha <- alpha - eta <v - w, grad f_i(v_bar)>, kept between 0 and 1

where all right-hand sides are the values before the step. w is sent to the server, which takes the mean; v
and alpha stay on the device. The device measures v_bar, with the w that the server sends; newcomers get w.

The paper leaves some points open. Here they are read as:

    how often alpha moves   at every step, as its equation is indexed; the authors' code updates it once a
                            round
    start of v              the first w that the device receives
    the mean                each device counts once, as in Algorithm 1
    momentum                as in FedAvg here, for w and v; the paper has none
    running statistics      those of a batch norm belong to v: they are taken from v_bar's activations

Presets. `paper` is APFL as FLUX and FEROMA compare with it; those papers name only their common settings.
`original` is the paper's own, without momentum; its rate decays by 1% a round, here it does not. They differ
from `default` in

    parameter         paper   original   default   why
    rounds                    100        10        as long as the other algorithms here
    epochs                    1          2         the same
    batch_size                20         64        the same
    learning_rate, momentum   0.1, 0     0.005, 0.9
    aggregation       mean    mean       clipped   a hostile device must not take over the model
"""

from dataclasses import dataclass

from shoal.core.algorithm import Algorithm, SgdParameters, setting
from shoal_lab.algorithms.apfl.messages import Measure, Train


@dataclass(frozen=True)
class Parameters(SgdParameters):
    """The parameters of FedAvg and of the mixture."""

    alpha: float = setting(
        0.5,
        "Share of a device's own model: its first value if adaptive is true, else its only value.",
        at_least=0,
        at_most=1,
    )
    adaptive: bool = setting(True, "Learn alpha on each device.")


ALGORITHM = Algorithm(
    name="apfl",
    summary="a mixture of the common model and a device's own (Deng et al. 2020)",
    parameters=Parameters,
    server_module="shoal_lab.algorithms.apfl.server",
    device_module="shoal_lab.algorithms.apfl.device",
    presets={
        "paper": {"aggregation": "mean"},
        "original": {
            "rounds": 100,
            "epochs": 1,
            "batch_size": 20,
            "learning_rate": 0.1,
            "momentum": 0.0,
            "aggregation": "mean",
        },
    },
    messages=(Train, Measure),
)
