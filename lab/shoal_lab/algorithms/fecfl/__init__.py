"""M. Ali et al., Foundation Model-based Client Clustering (FMCL), preprint, 2026, sections 2 and 4.3, which
compare with FECFL.

Devices are grouped once, before training, by the mean embedding of all their samples. This implementation
follows that paper, the only description that we have: a frozen encoder, possibly with random weights, gives
every device one mean embedding, and devices are grouped by the cosine distances of these. A run goes through
these phases:

    represent   every device embeds its samples by the learner's own `encoder`, and sends their mean
    clustered   each group trains its own model; late joiners represent, and train from the next round on
    last_choice every device chooses by loss, but in the preset `paper`: its group may be one of liars
    evaluate    every device measures its cluster's model on its test part

The paper leaves some points open. Here the linkage is average, as for all one-shot algorithms in that paper;
K is given, as in its tables, or the tree is cut at a distance. No labels are needed, so newcomers are placed
without them: in the cluster with the smallest mean distance to its members.
"""

from dataclasses import dataclass

from shoal.core.algorithm import Algorithm, PlacingParameters, TrainingParameters, setting
from shoal.core.errors import ConfigError


@dataclass(frozen=True)
class Parameters(TrainingParameters, PlacingParameters):
    """The number of clusters is given, or found by a distance."""

    OPEN = "prototypes"

    clusters: int = setting(
        4, "K, the largest number of clusters; 0: merge by distance.", unit="clusters", at_least=0
    )
    distance: float = setting(
        0.1,
        "With clusters=0: largest cosine distance at which groups are merged.",
        at_least=0,
    )

    def check(self) -> None:
        super().check()
        if not self.clusters and not self.distance:
            raise ConfigError(
                "clusters=0 merges groups up to a distance, but distance is 0",
                "set clusters to at least 1, or distance above 0",
            )


ALGORITHM = Algorithm(
    name="fecfl",
    summary="one-shot clusters by mean embeddings of a frozen encoder, label-free",
    parameters=Parameters,
    server_module="shoal_lab.algorithms.fecfl.server",
    presets={"paper": {"aggregation": "mean", "placing": "paper"}},
)
