"""Vardhan et al., An Improved Federated Clustering Algorithm with Model-Based Clustering, TMLR 2024,
Algorithms 1 to 4.

Clusters come from a graph of devices that are near each other, are refined by loss and merged, and average by
trimmed means. A run goes through phases; each line is one exchange:

    start      every device trains the same model; devices nearer than lambda are joined, and what hangs
               together, of at least `smallest` devices, is a cluster (ONE_SHOT)
    train      each cluster trains its model, `every` rounds (REFINE: TrimmedMeanGD)
    choose     every device goes to the cluster whose model has the lowest loss on its data (RECLUSTER); then
               clusters whose models are nearer than lambda become one (MERGE)
    evaluate   every device measures its cluster's model on its test part

How near two devices are is the distance of their weights. The paper also has their loss under each other's
models, for which every device would have to fetch the models of all. lambda is a quantile of these distances,
as the CORNFLQS paper ran it (between the first tenth and the first quarter). K is found. Where nobody is
near anybody there is one cluster; who is in none chooses by loss. A newcomer does too.

There is a model for each cluster, so with many small ones the server keeps, and at every choice sends to each
device, as many: up to one for every `smallest` devices. 1,024 is the most that can be scored.

Trimmed means are the paper's rule, so preset `paper` has them; the default holds long updates back too.
"""

from dataclasses import dataclass

from shoal.core.algorithm import Algorithm, TrainingParameters, setting


@dataclass(frozen=True)
class Parameters(TrainingParameters):
    """The number of clusters is found."""

    quantile: float = setting(
        0.15, "lambda, as a quantile of the distances of all pairs.", at_least=0, at_most=1
    )
    smallest: int = setting(2, "Devices that make a cluster.", unit="devices", at_least=1)
    every: int = setting(2, "Rounds of training between two refinements.", unit="rounds", at_least=1)


ALGORITHM = Algorithm(
    name="srfca",
    summary="clusters from a graph of near devices, refined by loss (Vardhan et al. 2024)",
    parameters=Parameters,
    server_module="shoal.core.algorithms.srfca.server",
    presets={"paper": {"aggregation": "trimmed"}},
)
