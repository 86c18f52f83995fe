"""Briggs et al., Federated Learning with Hierarchical Clustering of Local Updates to Improve Training on
Non-IID Data, IJCNN 2020, Algorithm 1.

FL+HC is federated averaging for some rounds, then one hierarchical clustering of updates; after that each
cluster trains its own model. Every round is one exchange; in the one after the warm-up all devices train the
common model once more, and are grouped by their updates.

Distances are Euclidean or cosine; the paper also tries Manhattan distances, which are left out here. It cuts
the tree at a distance, which has to be found for each data set; `clusters` cuts it at K instead. The preset
`paper` has the warm-up of ten rounds and the cut at a distance; `cornflqs` is how the CORNFLQS paper ran it:
Ward linkage, K given, after half of its 20 rounds. A newcomer chooses by loss: the paper has no rule for it.
"""

from dataclasses import dataclass
from typing import Literal

from shoal.core.algorithm import Algorithm, PlacingParameters, TrainingParameters, most_rounds, setting
from shoal.core.errors import ConfigError


@dataclass(frozen=True)
class Parameters(TrainingParameters, PlacingParameters):
    """The number of clusters is given, or found by a distance."""

    warm_up: int = setting(
        3, "Rounds of one common model before the one that clusters.", unit="rounds", at_least=0
    )
    metric: Literal["euclidean", "cosine"] = setting("euclidean", "Distance of two updates.")
    linkage: Literal["ward", "average", "complete", "single"] = setting(
        "ward",
        "How the distance of two groups is computed from those of devices; ward requires metric=euclidean.",
    )
    clusters: int = setting(
        4, "K, the largest number of clusters; 0: merge by distance.", unit="clusters", at_least=0
    )
    distance: float = setting(1.0, "With clusters=0: largest distance at which groups merge.", at_least=0)

    def check(self) -> None:
        super().check()
        if self.linkage == "ward" and self.metric != "euclidean":
            raise ConfigError(
                "linkage=ward needs metric=euclidean", "set metric=euclidean or linkage=average"
            )
        if not self.clusters and not self.distance:
            raise ConfigError(
                "clusters=0 merges groups up to a distance, but distance is 0",
                "set clusters to at least 1, or distance above 0",
            )


def clustered_rounds(parameters: Parameters) -> tuple[int, int]:
    """The round that forms the clusters, and those after it."""
    left = max(0, most_rounds(parameters) - parameters.warm_up)
    return left, left


ALGORITHM = Algorithm(
    name="flhc",
    summary="one hierarchical clustering of updates (Briggs et al. 2020)",
    parameters=Parameters,
    server_module="shoal_lab.algorithms.flhc.server",
    presets={
        "paper": {"warm_up": 10, "clusters": 0, "aggregation": "mean", "placing": "paper"},
        "cornflqs": {"rounds": 20, "warm_up": 9, "aggregation": "mean", "placing": "paper"},
    },
    clustered_rounds=clustered_rounds,
)
