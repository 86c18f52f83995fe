"""Vahidian et al., Efficient Distribution Similarity Identification in Clustered Federated Learning via
Principal Angles between Client Data Subspaces, AAAI 2023, Algorithms 1 and 2.

Devices are grouped once, before training, by the angles between the subspaces of their raw samples. A run
goes through these phases:

    span        every device sends the first p singular vectors of its samples, flattened; the server groups
                devices by the principal angles between these (eq. 2 and 3), with average linkage
    clustered   each group trains its own model
    last_choice every device chooses by loss, but in the preset `paper`: its group may be one of liars
    evaluate    every device measures its cluster's model on its test part

The paper cuts the tree at an angle that is found for each data set; `clusters` cuts it at K instead, as in
the FMCL paper. There are two measures, the smallest angle and the sum of all angles. Late devices and
newcomers choose by loss; in the paper their subspaces would be compared too. Singular vectors of raw samples
look like samples: they leave without any protection, and the device's ledger records that.

Algorithm 1 decomposes all samples of a device at once. The authors' code, and so the preset `paper`, takes p
vectors of each class (`by_class`), and compares each vector of one device with each of the other: the
distance is the smallest angle among all of these pairs.
"""

from dataclasses import dataclass
from typing import Literal

from shoal.core.algorithm import Algorithm, PlacingParameters, TrainingParameters, setting
from shoal.core.errors import ConfigError
from shoal_lab.algorithms.pacfl.messages import Span, Spanned


@dataclass(frozen=True)
class Parameters(TrainingParameters, PlacingParameters):
    """The number of clusters is given, or found by an angle."""

    OPEN = "singular vectors of samples"

    vectors: int = setting(
        3,
        "p, the number of singular vectors that a device sends, of each class with by_class.",
        unit="vectors",
        at_least=1,
    )
    by_class: bool = setting(
        False, "Take that many vectors of each class and compare them one by one, as the authors' code does."
    )
    measure: Literal["smallest", "sum"] = setting(
        "smallest", "Compare subspaces by the smallest of their principal angles, or by the sum of all."
    )
    clusters: int = setting(
        4, "K, the largest number of clusters; 0: merge by angle.", unit="clusters", at_least=0
    )
    angle: float = setting(
        10.0, "With clusters=0: largest angle at which groups are merged.", unit="degrees", at_least=0
    )

    def check(self) -> None:
        super().check()
        if self.by_class and self.measure != "smallest":
            raise ConfigError(
                "by_class compares vectors one by one, so measure cannot be sum", "set measure=smallest"
            )
        if not self.clusters and not self.angle:
            raise ConfigError(
                "clusters=0 merges groups up to an angle, but angle is 0",
                "set clusters to at least 1, or angle above 0",
            )


ALGORITHM = Algorithm(
    name="pacfl",
    summary="one-shot clusters by angles between subspaces of raw data (Vahidian et al. 2023)",
    parameters=Parameters,
    server_module="shoal_lab.algorithms.pacfl.server",
    device_module="shoal_lab.algorithms.pacfl.device",
    presets={"paper": {"clusters": 0, "by_class": True, "aggregation": "mean", "placing": "paper"}},
    messages=(Span, Spanned),
)
