"""T. Dinh, Tran and Nguyen, Personalized Federated Learning with Moreau Envelopes, NeurIPS 2020, Algorithm 1.

Each device has a personal model, theta, which stays near w, its own version of the common model.

A device minimizes, over w, the Moreau envelope F_i(w) = min_theta f_i(theta) + lambda / 2 ||theta - w||^2. In
each of R local rounds it draws a batch, makes K gradient steps of theta on that batch's part of the inner
problem, and then takes one step of w, whose gradient is lambda (w - theta):

    theta <- theta - personal_rate (grad f_i(theta) + lambda (theta - w))     K times
    w     <- w - eta lambda (w - theta)

w is sent to the server, which moves its model by beta toward their mean: w <- (1 - beta) w + beta mean_i w_i.
theta is the personal model; it stays on the device, and the device measures it. Newcomers get w.

The paper leaves some points open. Here they are read as:

    start of theta      in the first local round, the w that was sent; then its last value, as in the authors'
                        code
    the mean            each device counts once, as in Algorithm 1, which minimizes the mean over devices
    R                   the number of batches in two epochs, so that all algorithms see the same data; or a
                        given number
    momentum            none

Presets. `original` is MNIST in the paper's own experiments. `paper` is pFedMe as FLUX and FEROMA compare with
it. Those papers name only their common settings, batches of 64, rate 0.005, 2 epochs: the rest is the
original's. They differ from `default` in

    parameter        paper   original   default   why
    rounds                   800        10        as long as the other algorithms here
    local_rounds             20         0         two epochs
    batch_size               20         64        as the other algorithms here
    learning_rate    0.005   0.005      0.05      without momentum, this goes as far as 0.005 with 0.9
    personal_rate    0.09    0.09       0.03      0.09 makes theta jump where losses are steep, for example
                                                  on images with a bright background
    aggregation      mean    mean       clipped   a hostile device must not take over the model
"""

from dataclasses import dataclass

from shoal.core.algorithm import Algorithm, CommonParameters, setting
from shoal_lab.algorithms.pfedme.messages import Measure, Train


@dataclass(frozen=True)
class Parameters(CommonParameters):
    """learning_rate: eta, of w."""

    learning_rate: float = 0.05
    local_rounds: int = setting(
        0,
        "R, batches that a device draws in a round; 0: as many as `epochs` have.",
        unit="batches",
        at_least=0,
    )
    personal_rate: float = setting(0.03, "Step size of the personal model theta.", above=0)
    personal_steps: int = setting(5, "K, steps on each batch.", unit="steps", at_least=1)
    attraction: float = setting(15.0, "lambda, how strongly theta is pulled toward w.", above=0)
    mixing: float = setting(
        1.0, "beta, how far the server moves toward the mean; above 1 it overshoots.", above=0
    )


COMPARED = {"learning_rate": 0.005, "personal_rate": 0.09, "aggregation": "mean"}

ALGORITHM = Algorithm(
    name="pfedme",
    summary="personal models by Moreau envelopes (T. Dinh et al. 2020)",
    parameters=Parameters,
    server_module="shoal_lab.algorithms.pfedme.server",
    device_module="shoal_lab.algorithms.pfedme.device",
    presets={
        "paper": COMPARED,
        "original": {**COMPARED, "rounds": 800, "local_rounds": 20, "batch_size": 20},
    },
    messages=(Train, Measure),
)
