"""Jothimurugesan et al., Federated Learning under Distributed Concept Drift, AISTATS 2023, Algorithms 1 and
2.

Clusters merge when their models suit each other's data, and split when a device's data drift. A run is a
sequence of time steps; each step is

    score    every device measures its loss under every model. It goes to the best; but where that has become
             worse by more than `drift` than what it had in the step before, its data have drifted, and it
             gets a model of its own. Then clusters are merged while the two nearest are within `drift`, by
             complete linkage of D(i, j), see below
    train    `every` rounds of training, each cluster its own model

and at the end every device measures its cluster's model on its test part. K is found.

L_ij being the mean loss of model i on the devices of cluster j, the paper has
D(i, j) = max(L_ij - L_ii, L_ji - L_jj, 0): a model is held to itself at home. The authors' code knows a
second distance, max(L_ij - L_jj, L_ji - L_ii, 0): it is held to the model that is at home there. That is our
default, for the first takes data that are harder for those that suit a model less.

In the first step each device trains a model of its own, as the FLUX paper ran it, so that devices which
differ from the start are told apart; `first="together"` begins with one model, and then only drift makes
others. While there are as many models as devices, so many are kept and sent; 1,024 is the most that can be
scored. A new model begins with the initial weights; one that nobody chooses stays, as its concept may come
back. Updates are weighted by samples. A newcomer chooses by loss.
"""

from dataclasses import dataclass
from typing import Literal

from shoal.core.algorithm import Algorithm, TrainingParameters, setting


@dataclass(frozen=True)
class Parameters(TrainingParameters):
    """The number of clusters is found."""

    drift: float = setting(
        0.5, "delta, the difference of mean losses that is a drift.", unit="nats per sample", above=0
    )
    every: int = setting(2, "Rounds of training in a time step.", unit="rounds", at_least=1)
    first: Literal["apart", "together"] = setting(
        "apart", "Begin with one model for each device, or with one for all."
    )
    against: Literal["home", "itself"] = setting(
        "home",
        "What a model's loss on another cluster is compared with: the loss of that cluster's own model "
        "there, or its own loss on its own cluster.",
    )


ALGORITHM = Algorithm(
    name="feddrift",
    summary="clusters merge by loss and split by drift (Jothimurugesan et al. 2023)",
    parameters=Parameters,
    server_module="shoal.core.algorithms.feddrift.server",
    presets={"paper": {"aggregation": "mean", "against": "itself"}},
)
