"""Ben Ali et al., A Robust Clustered Federated Learning Approach for Non-IID Data with Quantity Skew, 2025.

The server and the devices agree on clusters, for devices with very different numbers of samples. The
algorithms named below are those of the paper.

The server groups devices by their weights, which is unreliable for few samples; devices choose by loss, which
is unreliable for a poor model; they alternate until they agree. A run goes through these phases; each line is
one exchange:

    begin          all train one model; the server takes their unweighted mean (Algorithm 2)
    corn, agree    devices train; the server groups their weights (Ward) and averages each group; devices then
                   choose by loss, until all choose as the server grouped them (Algorithm 3)
    settle, stable devices train the model of their choice and choose again, until none changes (Algorithm 4)
    clustered      each cluster trains its own model (Algorithm 5)
    last_choice    devices choose once more, but in the preset `paper`: their cluster may have liars
    evaluate       every device measures its cluster's model on its test part

The paper leaves some points open. Here they are read as:

    what N counts        rounds of training after the first one, which only makes the common start: the first
                         line of Algorithm 3 counts from there
    order in a round     train, group, choose. The paper groups first and trains last, which is the same half
                         a round later, but leaves the last training of a run without use
    second training of   from the mean, as Algorithm 2 says; in the authors' code each device continued with
    the initialization   its own weights
    line 18 of           each device's choice is compared with the server's group of the same round: clusters
    Algorithm 3          have the server's numbers, so nothing has to be matched
    r <= N/2             at most floor(N/2) rounds of CORN, at least one
    no agreement         the devices' choice is used, because it is based on the models at work
    stable               no device chose differently than in the round before, after at least one round
    equal losses         the first of them
    which data           the training part
    an empty cluster     keeps its model, and may be chosen again
    absent devices       keep their cluster; a group takes the name that most of its devices had
    late devices         choose by loss, and train in the next round

K is given. Fewer groups are formed if there are fewer devices, or if all are equal.

Presets. `paper` is the plain mean, weighted by samples, with the rounds of its MNIST experiments. `default`
differs in

    parameter      paper     default      why
    rounds         20        10           most of the gain is in the first ten
    compare        weights   directions   the weights of devices with few samples have hardly moved, so they
                                          are similar whatever their concept; the direction reveals it
    aggregation    mean      clipped      a hostile device must not take over the model

The paper's optimizer is Adam, created again in every round; here it is SGD, as everywhere. The groups are
found early, so devices with few samples have to make progress in the first rounds: on MNIST with quantity
skew, epochs=10 learning_rate=0.02 batch_size=64 is enough, and five epochs are not enough for all of them.
"""

from dataclasses import dataclass
from typing import Literal

from shoal.core.algorithm import Algorithm, PlacingParameters, TrainingParameters, most_rounds, setting


@dataclass(frozen=True)
class Parameters(TrainingParameters, PlacingParameters):
    """The number of clusters is given."""

    OPEN = "figures"

    @property
    def lessons(self) -> int:
        """How many times a device trains: the common start is not counted among the rounds."""
        return most_rounds(self) + 1

    clusters: int = setting(4, "K, the largest number of clusters.", unit="clusters", at_least=1)
    compare: Literal["directions", "weights"] = setting(
        "directions", "Group devices by the directions of their updates, or by their weights."
    )


ALGORITHM = Algorithm(
    name="cornflqs",
    summary="server and devices agree on clusters, under quantity skew (Ben Ali et al. 2025)",
    parameters=Parameters,
    server_module="shoal.core.algorithms.cornflqs.server",
    presets={
        "paper": {
            "rounds": 20,
            "compare": "weights",
            "epochs": 10,
            "batch_size": 128,
            "learning_rate": 0.02,
            "aggregation": "mean",
            "placing": "paper",
        },
    },
)
