"""M. Ali et al., Foundation Model-based Client Clustering (FMCL), preprint, 2026.

Devices are grouped once, before training, by how a frozen encoder sees their classes. The sections and
algorithms named below are those of the paper.

A run goes through these phases; each line is one exchange with the devices:

    represent   devices embed their data by the learner's `encoder`, or else take the inputs themselves
                (`shoal.core.inference.representing`), and send the mean embedding of each class and its
                number of samples (eq. 1 and 2); the server groups the devices by the classes that they share
                (Algorithms 3 to 5)
    clustered   each group trains its own model; late joiners represent, and train from the next round on
    evaluate    every device measures its cluster's model on its test part

Any model may be trained: the encoder is a separate one, the same on all devices, and is never trained. Where
devices make the first weights, they give it as a graph, too, and all embed by that. Embeddings by another
encoder are refused.

The paper leaves some points open. Here they are read as:

    D_big                min(2 P95, P99) of the distances of pairs that share a class, as printed, percentiles
                         by linear interpolation, each pair once; 1 if no pair shares a class
    std in the CV        of the population
    silhouette           0 for K = 1, and for a device that is the only one of its group; K up to
                         min(10, n - 1)
    largest local        the local maximum with the highest silhouette, and the smallest K of several such;
    maximum              the ends of the window are not local maxima
    no local maximum     the best K of the window, not of all K, which would defeat the window's purpose
    all distances equal  one group
    a newcomer           the cluster with the smallest mean distance to its members; if it shares no class
                         with any device, the largest cluster, with the answer that none fits

Presets. `paper` is section 4.5, with what it omits filled in: batches of 32, momentum 0.9. `default` differs
in

    parameter      paper   default   why
    rounds         100     10        enough to begin with
    search         window  all       the window starts at three groups if distances differ most, which is the
                                     case for two groups that are far apart
    epochs         1       2         fewer and longer rounds cost fewer bytes
    disjoint       shared  classes   D_big comes from pairs that share a class: if all of those are alike, it
                                     makes devices that share nothing look alike too
    aggregation    mean    clipped   a hostile device must not take over the model
"""

from dataclasses import dataclass
from typing import Literal

from shoal.core.algorithm import Algorithm, PlacingParameters, TrainingParameters, setting


@dataclass(frozen=True)
class Parameters(TrainingParameters, PlacingParameters):
    """The number of clusters is found, or given."""

    OPEN = "prototypes"

    clusters: int = setting(0, "K; 0: find it (Algorithm 5).", unit="clusters", at_least=0)
    search: Literal["window", "all"] = setting(
        "all", "Which numbers of clusters to try: those of the paper's window, or all up to ten.", rare=True
    )
    disjoint: Literal["shared", "classes"] = setting(
        "classes",
        "Distance of devices that share no class. shared: D_big of the paper. classes: the same, but at "
        "least the mean cosine distance of two different classes.",
        rare=True,
    )
    overlap: bool = setting(
        True,
        "Whether a small overlap of classes increases a distance (Algorithm 3); false is the paper's "
        "ablation.",
        rare=True,
    )


ALGORITHM = Algorithm(
    name="fmcl",
    summary="one-shot clusters by class means of a frozen encoder (Ali et al. 2026)",
    parameters=Parameters,
    server_module="shoal.core.algorithms.fmcl.server",
    presets={
        "paper": {
            "rounds": 100,
            "search": "window",
            "disjoint": "shared",
            "epochs": 1,
            "batch_size": 32,
            "learning_rate": 0.01,
            "aggregation": "mean",
            "placing": "paper",
        },
    },
)
