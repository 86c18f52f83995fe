"""Bao, Wei, Wang and He, Adaptive Test-Time Personalization for Federated Learning, NeurIPS 2023.

One model, which each device adapts to its unlabelled data; each tensor moves at a rate that is learned.

A run goes through phases; each line is one exchange with the devices:

    train     FedAvg makes the model w
    rates     devices learn the adaptation rates alpha, one for each tensor of w, from labelled data that w
              was not trained on; the server takes their mean
    evaluate  every device measures on its test part what it adapts w to, without a look at the labels

To adapt to a batch of samples: w' = w - alpha h, tensor by tensor, where

    h = grad of the mean entropy of the predictions      for weights and biases
    h = running statistic - that of the batch            for the mean and the variance of a batch norm

To learn alpha, from alpha = 0: after each adaptation the loss at w', now with the labels, has
the derivative -<grad loss(w'), h> by a tensor's rate; a step goes against it, divided by the root of the
tensor's number of values, as the authors' code has it.

A network without batch norm has no running statistics: there only weights and biases adapt, which is what its
entropy says alone. Whole numbers and what an author has frozen stay as they are.

The paper leaves open, and we read:

    data to learn from   the held-out part, as in the authors' code; where there is none, the training part
    w                    trained in the same run; the paper takes any that is there
    variance             never below 0, as in the authors' code

An unlabelled newcomer is given w, and adapts it where it has this device half to run.

Presets. `original` is CIFAR-10 in the authors' code. `paper` is ATP as FLUX and FEROMA compare with it, whose
page names their common settings only. They differ from `default` in

    parameter      paper   original   default   why
    rounds                 200        10        as long as the others here
    rate_rounds            200        10        as many
    aggregation    mean    mean       clipped   a hostile device must not carry model or rates away
"""

from dataclasses import dataclass

from shoal.core.algorithm import Algorithm, RoundParameters, setting
from shoal.core.algorithms.atp.messages import Learn, Learned, Measure


@dataclass(frozen=True)
class Parameters(RoundParameters):
    """rounds: of training w; those of learning alpha follow."""

    rate_rounds: int = setting(
        10, "Rounds of learning alpha, each one pass over a device's data.", unit="rounds", at_least=1
    )
    rate_step: float = setting(0.1, "Step size by which alpha is learned.", above=0)
    rate_batch: int = setting(
        20,
        "Size of the batches that the model is adapted to.",
        unit="samples",
        at_least=1,
    )
    online: bool = setting(
        False, "Adapt to the mean of all batches so far (ATP-online), or to each batch by itself (ATP-batch)."
    )


ALGORITHM = Algorithm(
    name="atp",
    summary="one model that adapts to unlabelled data (Bao et al. 2023)",
    parameters=Parameters,
    server_module="shoal.core.algorithms.atp.server",
    device_module="shoal.core.algorithms.atp.device",
    presets={
        "paper": {"aggregation": "mean"},
        "original": {"rounds": 200, "rate_rounds": 200, "aggregation": "mean"},
    },
    messages=(Learn, Learned, Measure),
)
