"""Vardhan et al., An Improved Federated Clustering Algorithm with Model-Based Clustering, TMLR 2024,
Algorithms 1 to 4.

Clusters come from a graph of devices that are near each other, are refined by loss and merged, and average by
trimmed means. A run goes through these phases; each line is one exchange:

    start      every device trains the same model; devices nearer than lambda are connected, and a connected
               component of at least `smallest` devices is a cluster (ONE_SHOT)
    train      each cluster trains its model for `every` rounds (REFINE: TrimmedMeanGD)
    choose     every device goes to the cluster whose model has the lowest loss on its data (RECLUSTER); then
               clusters whose models are nearer than lambda are merged (MERGE)
    evaluate   every device measures its cluster's model on its test part

The distance of two devices is that of their weights. The paper also uses their losses under each other's
models, for which every device would have to fetch the models of all. lambda is a quantile of these distances,
as in the CORNFLQS paper (between the first tenth and the first quarter). K is found. If no two devices are
near each other there is one cluster; a device in no cluster chooses by loss. A newcomer does too.

There is a model for each cluster, so with many small clusters the server stores many models, and sends all of
them to each device at every choice: up to one for every `smallest` devices. At most 1,024 can be scored.

Trimmed means are the paper's rule, so the preset `paper` uses them; the default also clips long updates.
"""

from dataclasses import dataclass

from shoal.core.algorithm import Algorithm, PlacingParameters, TrainingParameters, setting


@dataclass(frozen=True)
class Parameters(TrainingParameters, PlacingParameters):
    """The number of clusters is found."""

    OPEN = "figures"

    quantile: float = setting(
        0.15, "lambda, as a quantile of the distances of all pairs.", at_least=0, at_most=1
    )
    smallest: int = setting(2, "Devices that make a cluster.", unit="devices", at_least=1)
    every: int = setting(2, "Rounds of training between two refinements.", unit="rounds", at_least=1)


ALGORITHM = Algorithm(
    name="srfca",
    summary="clusters from a graph of near devices, refined by loss (Vardhan et al. 2024)",
    parameters=Parameters,
    server_module="shoal_lab.algorithms.srfca.server",
    presets={"paper": {"aggregation": "trimmed", "placing": "paper"}},
)
