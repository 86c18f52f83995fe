"""Wolfrath et al., HACCS: Heterogeneity-Aware Clustered Client Selection for Accelerated Federated Learning,
IPDPS 2022, section IV.

Devices are grouped once, before training, by histograms of their labels, or of their pixels by label. A run
goes through phases:

    count       every device sends histograms; the server groups devices by their Hellinger distances, by
                density (OPTICS); whoever lies near nobody is a group of its own
    clustered   each group trains a model of its own
    evaluate    every device measures its cluster's model on its test part

`summary` is "labels", P(y), or "pixels", P(X|y): a histogram of the values of all inputs for each label,
whose distances are averaged over the labels that either device has. The paper uses the groups to choose who
takes part in training one model, and adds noise to the histograms; the FLUX paper compares with it as an
algorithm with a model for each group, without noise, and that is what this is. The ledger of a device notes
that its histograms left as they are. Late devices and newcomers choose by loss.
"""

from dataclasses import dataclass
from typing import Literal

from shoal.core.algorithm import Algorithm, TrainingParameters, setting
from shoal.core.algorithms.haccs.messages import Count, Counted


@dataclass(frozen=True)
class Parameters(TrainingParameters):
    """The number of clusters is found."""

    summary: Literal["labels", "pixels"] = setting(
        "labels", "What a device sends: a histogram of its labels, or of its pixels for each class."
    )
    classes: int = setting(10, "Classes among the run's labels.", unit="classes", at_least=1)
    bins: int = setting(16, "Bins of a histogram of pixels, from 0 to 1.", unit="bins", at_least=1)


ALGORITHM = Algorithm(
    name="haccs",
    summary="one-shot clusters by histograms of labels or pixels (Wolfrath et al. 2022)",
    parameters=Parameters,
    server_module="shoal.core.algorithms.haccs.server",
    device_module="shoal.core.algorithms.haccs.device",
    presets={"paper": {"aggregation": "mean"}},
    messages=(Count, Counted),
)
