"""Bao, Wei, Wang and He, Adaptive Test-Time Personalization for Federated Learning, NeurIPS 2023.

There is one model, which each device adapts to its unlabeled data; each tensor moves at a rate that is
learned.

A run goes through these phases; each line is one exchange with the devices:

    train     FedAvg trains the model w
    rates     devices learn the adaptation rates alpha, one for each tensor of w, from labeled data that w
              was not trained on; the server takes their mean
    evaluate  every device adapts w to its test part without looking at the labels, and measures the result

Adapting to a batch of samples is w' = w - alpha h, tensor by tensor, where

    h = grad of the mean entropy of the predictions      for weights and biases
    h = running statistic - that of the batch            for the mean and the variance of a batch norm

alpha is learned from alpha = 0. After each adaptation the loss at w', which uses the labels, has the
derivative -<grad loss(w'), h> with respect to a tensor's rate. A step goes against it, divided by the square
root of the tensor's number of values, as in the authors' code.

A network without batch norm has no running statistics: only its weights and biases adapt, to the entropy.
Whole numbers and frozen parameters do not change.

The paper leaves some points open. Here they are read as:

    data to learn from   the held-out part, as in the authors' code; the training part if there is none
    w                    trained in the same run; the paper takes any existing model
    variance             never below 0, as in the authors' code

An unlabeled newcomer gets w, and adapts it if it runs this device half.

Presets. `original` is CIFAR-10 in the authors' code. `paper` is ATP as FLUX and FEROMA compare with it; those
papers name only their common settings. They differ from `default` in

    parameter      paper   original   default   why
    rounds                 200        10        as long as the other algorithms here
    rate_rounds            200        10        the same number
    aggregation    mean    mean       clipped   a hostile device must not take over the model or the rates
"""

from dataclasses import dataclass

from shoal.core.algorithm import Algorithm, RoundParameters, setting
from shoal_lab.algorithms.atp.messages import Learn, Learned, Measure


@dataclass(frozen=True)
class Parameters(RoundParameters):
    """rounds: of training w; the rounds of learning alpha follow."""

    rate_rounds: int = setting(
        10, "Rounds of learning alpha; each is one pass over a device's data.", unit="rounds", at_least=1
    )
    rate_step: float = setting(0.1, "Step size for learning alpha.", above=0)
    rate_batch: int = setting(
        20,
        "Size of the batches that the model is adapted to.",
        unit="samples",
        at_least=1,
    )
    online: bool = setting(
        False, "Adapt to the mean of all batches so far (ATP-online), instead of to each batch (ATP-batch)."
    )


ALGORITHM = Algorithm(
    name="atp",
    summary="one model that adapts to unlabeled data (Bao et al. 2023)",
    parameters=Parameters,
    server_module="shoal_lab.algorithms.atp.server",
    device_module="shoal_lab.algorithms.atp.device",
    presets={
        "paper": {"aggregation": "mean"},
        "original": {"rounds": 200, "rate_rounds": 200, "aggregation": "mean"},
    },
    messages=(Learn, Learned, Measure),
)
