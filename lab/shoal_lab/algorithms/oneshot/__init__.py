"""Ghosh, Hong, Yin and Ramchandran, Robust Federated Learning in a Heterogeneous Environment, 2019 (arXiv
1906.06629), as the CORNFLQS paper compares with it under the name CFL: one-shot K-means of local models.

Federated averaging for some rounds, then one K-means of the devices' models; after that each cluster trains
its own model. Every round is one exchange; in the one after the warm-up all devices train the common model
once more, and are grouped by what they trained.

K is given. In Ghosh's own three stages every device first minimizes its loss by itself, with no common model
before, which `warm_up=0` and more `epochs` come close to; K-means is there a robust one, against hostile
devices, where here `aggregation` bounds what they can do, and no cluster is made for a device that looks like
no other (`server_kit/clustering/outliers.py`). The preset `paper` is how CORNFLQS ran it, with the
clustering after half of its 20 rounds. A newcomer chooses by loss: the papers have no rule for it.
"""

from dataclasses import dataclass

from shoal.core.algorithm import Algorithm, PlacingParameters, TrainingParameters, most_rounds, setting


@dataclass(frozen=True)
class Parameters(TrainingParameters, PlacingParameters):
    """The number of clusters is given."""

    warm_up: int = setting(
        3, "Rounds of one common model before the one that clusters.", unit="rounds", at_least=0
    )
    clusters: int = setting(4, "K, the largest number of clusters.", unit="clusters", at_least=1)


def clustered_rounds(parameters: Parameters) -> tuple[int, int]:
    """The round that forms the clusters, and those after it."""
    left = max(0, most_rounds(parameters) - parameters.warm_up)
    return left, left


ALGORITHM = Algorithm(
    name="oneshot",
    summary="one K-means of the devices' models (Ghosh et al. 2019)",
    parameters=Parameters,
    server_module="shoal_lab.algorithms.oneshot.server",
    presets={"paper": {"rounds": 20, "warm_up": 9, "aggregation": "mean", "placing": "paper"}},
    clustered_rounds=clustered_rounds,
)
