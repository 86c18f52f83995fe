"""Duan et al., FedGroup: Efficient Federated Learning via Decomposed Similarity-Based Clustering, ISPA 2021,
Algorithms 1 to 3.

Devices form K groups by the directions of their first updates; late devices join by direction. Every round is
one exchange. In the first one, the cold start, all devices train the initial model. Each update is
represented by its cosines with the K leading singular vectors of all updates, and k-means groups these points
(the "EDC" measure). A group's direction is its own mean update. A late device trains the initial model too,
and joins the group whose direction has the smallest angle to its update; that update counts in no model.

If `between` is above 0, after every round each group's model also gets that much of the others', each
normalized to length 1 (inter-group aggregation). In the paper a sample of the devices is pre-trained and the
rest come late; here all devices that are present are the sample. Updates are weighted by samples. A newcomer
chooses by loss.
"""

from dataclasses import dataclass

from shoal.core.algorithm import Algorithm, PlacingParameters, TrainingParameters, setting


@dataclass(frozen=True)
class Parameters(TrainingParameters, PlacingParameters):
    """The number of clusters is given."""

    clusters: int = setting(4, "K, the largest number of clusters.", unit="clusters", at_least=1)
    between: float = setting(0.0, "eta_G, the rate of inter-group aggregation; 0: none.", at_least=0, below=1)


ALGORITHM = Algorithm(
    name="fedgroup",
    summary="groups by decomposed directions of first updates (Duan et al. 2021)",
    parameters=Parameters,
    server_module="shoal_lab.algorithms.fedgroup.server",
    presets={"paper": {"aggregation": "mean", "placing": "paper"}},
)
