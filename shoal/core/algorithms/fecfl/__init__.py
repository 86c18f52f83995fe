"""FECFL: devices grouped once, before training, by the mean embedding of all their samples.

The algorithm that the FMCL paper (M. Ali et al., 2026, sections 2 and 4.3) compares with under this name: a
frozen encoder, also one with random weights, gives every device one mean embedding; devices are grouped by
the cosine distances of these. A run goes through phases:

    represent   every device embeds its samples by the learner's own `encoder`, and sends their mean
    clustered   each group trains a model of its own; late joiners represent, and join in the next round
    evaluate    every device measures its cluster's model on its test part

We know it from that paper alone, and read: average linkage, as for all one-shot algorithms there; K given,
as in its tables, or a cut at a distance. No labels are needed, so a newcomer is placed without them: where
its mean distance to the members is least.
"""

from dataclasses import dataclass

from shoal.core.algorithm import Algorithm, TrainingParameters


@dataclass(frozen=True)
class Parameters(TrainingParameters):
    """clusters: K, at most; 0 merges what is at most `distance` apart, 0 to 2."""

    clusters: int = 4
    distance: float = 0.1


ALGORITHM = Algorithm(
    name="fecfl",
    summary="one-shot clusters by mean embeddings of a frozen encoder, label-free",
    parameters=Parameters,
    server_module="shoal.core.algorithms.fecfl.server",
    device_module="shoal.core.device_kit.standard",
    presets={"paper": {"aggregation": "mean"}},
)
