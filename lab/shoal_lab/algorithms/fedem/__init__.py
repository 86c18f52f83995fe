"""Marfoq, Neglia, Bellet, Kameni and Vidal, Federated Multi-Task Learning under a Mixture of Distributions,
NeurIPS 2021, Algorithm 1.

There are K models, and each device predicts with its own mixture of them. The data of device t are drawn from
a mixture of K distributions with weights pi_t; each distribution has a model theta_m. In each round a device
gets all models and does the

    E-step   q(z_i = m) proportional to pi_tm exp(-l(h_m(x_i), y_i)), for each sample i
    M-step   pi_tm = mean_i q(z_i = m)
             theta_m by descent of mean_i q(z_i = m) l(h_m(x_i), y_i)

The server takes the mean of each model over the devices, weighted by their samples. q and pi never leave the
device: it reports only which model is its heaviest, for people, and how many samples it has. It predicts by a
mixture of probabilities, sum_m pi_tm h_m(x).

The paper leaves some points open. Here they are read as:

    local solver        descent of the loss as it is written, so a model that explains a third of a device's
                        data learns there at a third of the rate
    pi at first         equal, as in Algorithm 1, which requires models that differ at the start ("equal"); or
                        drawn by each device ("random"), which separates the models even if an operator gives
                        one model to start from
    newcomers           in the paper they get all models and do one E-step, which requires labels: a device
                        with labels joins the run. Of the models, a newcomer with labels gets the one with
                        its lowest loss; without labels the models cannot be distinguished

Presets. `paper` is FedEM as FLUX and FEROMA compare with it; those papers name only their common settings.
`paper-fedrc` is FedRC's comparison with it, and `original` the paper's own. They differ from `default` in

    parameter       paper   paper-fedrc   original   default   why
    rounds                  200           200        10        as long as the other algorithms here
    epochs                  1             1          2         the same
    batch_size              128           128        64        the same
    learning_rate           0.06          0.03       0.005
    momentum                0.9           0          0.9
    weight_decay            0.0005        0.0005     0
    first           equal   equal         equal      random    works from one model too, and separates sooner
    aggregation     mean    mean          mean       clipped   a hostile device must not take over the models
"""

from dataclasses import dataclass
from typing import Literal

from shoal.core.algorithm import Algorithm, PlacingParameters, RoundParameters, setting
from shoal_lab.algorithms.fedem.messages import Measure, Mix, Mixed


@dataclass(frozen=True)
class Parameters(RoundParameters, PlacingParameters):
    """The number of models is given."""

    clusters: int = setting(3, "K, the number of models.", unit="models", at_least=1)
    first: Literal["equal", "random"] = setting("random", "A device's weights before its first round.")


LONG = {
    "rounds": 200,
    "epochs": 1,
    "batch_size": 128,
    "first": "equal",
    "aggregation": "mean",
    "placing": "paper",
}

ALGORITHM = Algorithm(
    name="fedem",
    summary="K models, each device predicts with its own mixture (Marfoq et al. 2021)",
    parameters=Parameters,
    server_module="shoal_lab.algorithms.fedem.server",
    device_module="shoal_lab.algorithms.fedem.device",
    presets={
        "paper": {"first": "equal", "aggregation": "mean", "placing": "paper"},
        "paper-fedrc": {**LONG, "learning_rate": 0.06, "weight_decay": 5e-4},
        "original": {**LONG, "learning_rate": 0.03, "momentum": 0.0, "weight_decay": 5e-4},
    },
    messages=(Mix, Mixed, Measure),
    initial=lambda parameters: parameters.clusters,
)
