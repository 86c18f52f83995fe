"""PACFL: devices grouped once, before training, by the angles between the subspaces of their raw samples.

Vahidian et al., Efficient Distribution Similarity Identification in Clustered Federated Learning via
Principal Angles between Client Data Subspaces, AAAI 2023, Algorithms 1 and 2. A run goes through phases:

    span        every device sends the first p singular vectors of its samples, flattened; the server groups
                devices by the principal angles between these (eq. 2 and 3), average linkage
    clustered   each group trains a model of its own
    evaluate    every device measures its cluster's model on its test part

The paper cuts the tree at an angle that is found for each data set; `clusters` cuts it at K instead, as the
FMCL paper ran it. It has two measures, the smallest angle and the sum of all. Late devices and newcomers
choose by loss; the paper would compare their subspace too. Singular vectors of raw samples look like
samples: they leave without any protection, and the device's ledger notes it.
"""

from dataclasses import dataclass

from shoal.core.algorithm import Algorithm, TrainingParameters
from shoal.core.algorithms.pacfl.messages import Span, Spanned


@dataclass(frozen=True)
class Parameters(TrainingParameters):
    """vectors: p. measure: "smallest" of the principal angles, or their "sum".

    clusters: K, at most; 0 merges what is at most `angle` degrees apart.
    """

    vectors: int = 3
    measure: str = "smallest"
    clusters: int = 4
    angle: float = 10.0


ALGORITHM = Algorithm(
    name="pacfl",
    summary="one-shot clusters by angles between subspaces of raw data (Vahidian et al. 2023)",
    parameters=Parameters,
    server_module="shoal.core.algorithms.pacfl.server",
    device_module="shoal.core.algorithms.pacfl.device",
    presets={"paper": {"clusters": 0, "aggregation": "mean"}},
    messages=(Span, Spanned),
)
