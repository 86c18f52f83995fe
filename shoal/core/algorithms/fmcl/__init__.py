"""M. Ali et al., Foundation Model-based Client Clustering (FMCL), preprint, 2026.

Devices are grouped once, before training, by how a frozen encoder sees their classes. Sections and algorithms
named below are the paper's.

A run goes through phases; each line is one exchange with the devices:

    represent   devices embed their data by the learner's own `encoder`, and send the mean embedding of each
                class and how many samples it has (eq. 1 and 2); the server groups them by what they share
                (Algorithms 3 to 5)
    clustered   each group trains a model of its own; late joiners represent, and join in the next round
    evaluate    every device measures its cluster's model on its test part

Any model may be trained: the encoder is another one, the same on all devices, and nothing here trains it.

The paper leaves open, and we read:

    D_big                min(2 P95, P99) of the distances of pairs that share a class, as printed, percentiles
                         by linear interpolation, each pair once; 1 where no pair shares any
    std in the CV        of the population
    silhouette           0 for K = 1, and for a device alone in its group; K up to min(10, n - 1)
    largest local        the local maximum with the highest silhouette, of several such the smallest K; the
    maximum              ends of the window are none
    no local maximum     the best K of the window, and not of all K, which the window was to keep out
    all distances equal  one group
    a newcomer           where its mean distance to the members is least; where it shares no class with
                         anybody, the largest cluster, and it is told that none fits

Presets. `paper` is section 4.5 with what it leaves out filled in: batches of 32, momentum 0.9. `default`
differs in

    parameter      paper   default   why
    rounds         100     10        a beginning
    search         window  all       the window starts at three groups where distances differ most, which is
                                     what two groups far apart look like
    epochs         1       2         fewer and longer rounds cost fewer bytes
    disjoint       shared  classes   D_big comes from pairs that share a class: where all of those are alike,
                                     it says that those who share nothing are alike too
    aggregation    mean    clipped   a hostile device must not carry the model away
"""

from dataclasses import dataclass
from typing import Literal

from shoal.core.algorithm import Algorithm, TrainingParameters, setting


@dataclass(frozen=True)
class Parameters(TrainingParameters):
    """The number of clusters is found, or given."""

    clusters: int = setting(0, "K; 0: find it (Algorithm 5).", unit="clusters", at_least=0)
    search: Literal["window", "all"] = setting(
        "all", "Which numbers of clusters are tried: those of the paper's window, or all up to ten."
    )
    alpha: float = setting(
        1.0,
        "Of the factor by which a small overlap of classes adds to a distance (Algorithm 3).",
        at_least=0,
    )
    beta: float = setting(100.0, "Of the same factor: its steepness.", above=0)
    epsilon: float = setting(1e-3, "Of the same factor: keeps it finite.", above=0)
    disjoint: Literal["shared", "classes"] = setting(
        "classes",
        "How far apart devices are that share no class: shared, D_big of the paper; classes, the same, but "
        "at least the mean cosine distance of two different classes.",
    )
    overlap: bool = setting(True, "Use that factor; false is the paper's ablation.")


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
        },
    },
)
