"""Sattler, Müller and Samek, Clustered Federated Learning: Model-Agnostic Distributed Multitask Optimization
Under Privacy Constraints, IEEE TNNLS 2021 (first published 2019), Algorithms 1 to 3.

A cluster is split in two when its devices pull in directions that no longer agree. Every round is one
exchange. After it, a cluster is split if

    its mean update is short      it is near a stationary point of all: |mean| < eps1
    some update is long           and that point does not suit some device: max |update| > eps2
    the halves pull apart         sqrt((1 - largest cosine across the halves) / 2) > gamma

The halves are those with the smallest largest cosine across (Algorithm 1). K is found. Both halves continue
with the average of their own devices' updates of this round.

The authors' code has eps1 = 0.4 and eps2 = 1.6, begins after round 20, splits no pair, and omits gamma: that
is the preset `paper`. Absolute lengths depend on the model and the learning rate. By default a mean is
therefore short if it is below `short` times the length of the longest update, which is the same test in units
of the round itself. One device that stands out splits no cluster; see `server_kit/clustering/outliers.py`. A
newcomer chooses by loss; in the paper it would train its way down the tree of splits.
FedRC's comparison limits the number of clusters, which is `most`.
"""

from dataclasses import dataclass

from shoal.core.algorithm import Algorithm, PlacingParameters, TrainingParameters, setting


@dataclass(frozen=True)
class Parameters(TrainingParameters, PlacingParameters):
    """`short` is used unless eps2 is above 0; then eps1 and eps2 are."""

    short: float = setting(
        0.7,
        "A mean update is short if it is below this multiple of the longest update's length.",
        unit="multiples of the longest update",
        at_least=0,
    )
    eps1: float = setting(0.0, "With eps2 above 0: length below which a mean update is short.", at_least=0)
    eps2: float = setting(0.0, "Length above which an update is long; 0: use short instead.", at_least=0)
    gamma: float = setting(0.0, "Least distance between the halves for a split.", at_least=0, at_most=1)
    earliest: int = setting(2, "First round after which a cluster may be split.", unit="rounds", at_least=1)
    most: int = setting(0, "Largest number of clusters; 0: no limit.", unit="clusters", at_least=0)
    smallest: int = setting(2, "Devices that a cluster needs to be split.", unit="devices", at_least=2)


ALGORITHM = Algorithm(
    name="cfl",
    summary="clusters split by the directions of updates (Sattler et al. 2019)",
    parameters=Parameters,
    server_module="shoal_lab.algorithms.cfl.server",
    presets={
        "paper": {
            "eps1": 0.4,
            "eps2": 1.6,
            "earliest": 21,
            "smallest": 3,
            "aggregation": "mean",
            "placing": "paper",
        }
    },
)
