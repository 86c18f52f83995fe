"""Jothimurugesan et al., Federated Learning under Distributed Concept Drift, AISTATS 2023, Algorithms 1 and
2.

Clusters merge when their models suit each other's data, and split when a device's data drift. A run is a
sequence of time steps; each step is

    score    every device measures its loss under every model, and goes to the best. But if the lowest loss is
             worse by more than `drift` than the device's loss in the step before, its data have drifted, and
             it gets a model of its own. Then clusters are merged as long as the two nearest are within
             `drift`, by complete linkage of D(i, j), see below
    train    `every` rounds of training, each cluster its own model

and at the end every device measures its cluster's model on its test part. K is found. By default devices go
to the best model once more before that, since liars may have joined their cluster.

With L_ij, the mean loss of model i on the devices of cluster j, the paper defines D(i, j) = max(L_ij - L_ii,
L_ji - L_jj, 0): a model is compared with itself on its own cluster. The authors' code has a second distance,
max(L_ij - L_jj, L_ji - L_ii, 0): a model is compared with the other cluster's own model on that cluster. That
is our default, because the first one mistakes data that are harder for every model for data that suit a model
less.

In the first step each device trains a model of its own, as in the FLUX paper, so that devices that differ
from the start are separated. `first="together"` begins with one model, and then only drift creates others.
While there are as many models as devices, all of them are stored and sent; at most 1,024 can be scored. A new
model begins with the initial weights; one that no device chooses stays, because its concept may come back.
Updates are weighted by samples. A newcomer chooses by loss.
"""

from dataclasses import dataclass
from typing import Literal

from shoal.core.algorithm import Algorithm, PlacingParameters, TrainingParameters, setting


@dataclass(frozen=True)
class Parameters(TrainingParameters, PlacingParameters):
    """The number of clusters is found."""

    OPEN = "figures"

    drift: float = setting(
        0.5, "delta, the difference of mean losses that counts as drift.", unit="nats per sample", above=0
    )
    every: int = setting(2, "Rounds of training in a time step.", unit="rounds", at_least=1)
    first: Literal["apart", "together"] = setting(
        "apart", "Begin with one model for each device, or with one for all."
    )
    against: Literal["home", "itself"] = setting(
        "home",
        "What a model's loss on another cluster is compared with. home: the loss of that cluster's own model "
        "there. itself: its own loss on its own cluster.",
    )


ALGORITHM = Algorithm(
    name="feddrift",
    summary="clusters merge by loss and split by drift (Jothimurugesan et al. 2023)",
    parameters=Parameters,
    server_module="shoal_lab.algorithms.feddrift.server",
    presets={"paper": {"aggregation": "mean", "placing": "paper", "against": "itself"}},
)
