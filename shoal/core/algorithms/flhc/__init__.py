"""FL+HC: federated averaging for some rounds, then a hierarchical clustering of updates, each cluster alone.

Briggs et al., Federated Learning with Hierarchical Clustering of Local Updates to Improve Training on Non-IID
Data, IJCNN 2020, Algorithm 1. Every round is one exchange; in the one after the warm-up all devices train the
common model once more, and are grouped by what they moved by.

Distances are Euclidean or cosine; the paper also tries Manhattan ones, which are left out here. It cuts the
tree at a distance, which has to be found for each data set; `clusters` cuts it at K instead. Preset `paper`
has the warm-up of ten rounds and the cut at a distance; `cornflqs` is how the CORNFLQS paper ran it: Ward, K
given, after half of its 20 rounds. A newcomer chooses by loss: the paper has no rule for it.
"""

from dataclasses import dataclass

from shoal.core.algorithm import Algorithm, TrainingParameters


@dataclass(frozen=True)
class Parameters(TrainingParameters):
    """warm_up: rounds before the one that clusters. metric: "euclidean" or "cosine".

    linkage: "ward" (Euclidean distances only), "average", "complete" or "single".
    clusters: K, at most; 0 merges what is at most `distance` apart.
    """

    warm_up: int = 3
    metric: str = "euclidean"
    linkage: str = "ward"
    clusters: int = 4
    distance: float = 1.0


def clustered_rounds(parameters: Parameters) -> tuple[int, int]:
    """The round that clusters and those after it."""
    left = max(0, parameters.rounds - parameters.warm_up)
    return left, left


ALGORITHM = Algorithm(
    name="flhc",
    summary="one hierarchical clustering of updates (Briggs et al. 2020)",
    parameters=Parameters,
    server_module="shoal.core.algorithms.flhc.server",
    device_module="shoal.core.device_kit.standard",
    presets={
        "paper": {"warm_up": 10, "clusters": 0, "aggregation": "mean"},
        "cornflqs": {"rounds": 20, "warm_up": 9, "aggregation": "mean"},
    },
    clustered_rounds=clustered_rounds,
)
