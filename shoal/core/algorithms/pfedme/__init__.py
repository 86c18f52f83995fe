"""T. Dinh, Tran and Nguyen, Personalized Federated Learning with Moreau Envelopes, NeurIPS 2020, Algorithm 1.

Each device has a personal model, theta, which is held near w, its own version of the common model.

A device minimizes, over w, the Moreau envelope F_i(w) = min_theta f_i(theta) + lambda / 2 ||theta - w||^2. In
each of R local rounds it draws a batch, makes theta by K gradient steps on that batch's part of the inner
problem, and then takes one step on w, whose gradient is lambda (w - theta):

    theta <- theta - personal_rate (grad f_i(theta) + lambda (theta - w))     K times
    w     <- w - eta lambda (w - theta)

w goes to the server, which moves by beta towards the mean of them: w <- (1 - beta) w + beta mean_i w_i. theta
is the personal model; it stays on the device, and is what the device measures. Newcomers get w.

The paper leaves open, and we read:

    start of theta      the w that came, in the first local round; then where the last one left it, as in the
                        authors' code
    the mean            each device counts once, as in Algorithm 1: what is minimised is the mean over devices
    R                   as many as two epochs have batches, so that all algorithms see the same data; or a
                        number
    momentum            none

Presets. `original` is MNIST in the paper's own experiments. `paper` is pFedMe as FLUX and FEROMA compare with
it, whose page names no setting but their common ones, batches of 64, rate 0.005, 2 epochs: the rest is the
original's. They differ from `default` in

    parameter        paper   original   default   why
    rounds                   800        10        as long as the others here
    local_rounds             20         0         two epochs
    batch_size               20         64        as the others here
    learning_rate    0.005   0.005      0.05      without momentum, what goes as far as 0.005 with one of 0.9
    personal_rate    0.09    0.09       0.03      0.09 makes theta leap about where losses are steep, as they
                                                  are on images with a bright background
    aggregation      mean    mean       clipped   a hostile device must not carry the model away
"""

from dataclasses import dataclass

from shoal.core.algorithm import Algorithm, CommonParameters, setting
from shoal.core.algorithms.pfedme.messages import Measure, Train


@dataclass(frozen=True)
class Parameters(CommonParameters):
    """learning_rate: eta, of w."""

    learning_rate: float = 0.05
    local_rounds: int = setting(
        0,
        "R, batches that a device draws in a round; 0: those of `epochs`.",
        unit="batches",
        at_least=0,
    )
    personal_rate: float = setting(0.03, "Step size of the personal model theta.", above=0)
    personal_steps: int = setting(5, "K, steps on each batch.", unit="steps", at_least=1)
    attraction: float = setting(15.0, "lambda, how strongly theta is held near w.", above=0)
    mixing: float = setting(
        1.0, "beta, how far the server moves towards the mean; above 1 it overshoots.", above=0
    )


AS_TOLD = {"learning_rate": 0.005, "personal_rate": 0.09, "aggregation": "mean"}

ALGORITHM = Algorithm(
    name="pfedme",
    summary="personal models by Moreau envelopes (T. Dinh et al. 2020)",
    parameters=Parameters,
    server_module="shoal.core.algorithms.pfedme.server",
    device_module="shoal.core.algorithms.pfedme.device",
    presets={
        "paper": AS_TOLD,
        "original": {**AS_TOLD, "rounds": 800, "local_rounds": 20, "batch_size": 20},
    },
    messages=(Train, Measure),
)
