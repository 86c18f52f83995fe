"""Wolfrath et al., HACCS: Heterogeneity-Aware Clustered Client Selection for Accelerated Federated Learning,
IPDPS 2022, section IV.

Devices are grouped once, before training, by histograms of their labels, or of their pixels by label. A run
goes through these phases:

    count       every device sends histograms; the server groups devices by their Hellinger distances, by
                density (OPTICS); a device that is near no other is a group of its own
    clustered   each group trains its own model
    last_choice every device chooses by loss, but in the preset `paper`: its group may be one of liars
    evaluate    every device measures its cluster's model on its test part

`summary` is "labels", P(y), or "pixels", P(X|y): a histogram of the values of all inputs for each label,
whose distances are averaged over the labels that either device has. The paper uses the groups to choose which
devices take part in training one model, and adds noise to the histograms. The FLUX paper compares with it as
an algorithm with a model for each group and without noise, and this is that algorithm. A device's ledger
records that its histograms left without protection. Late devices and newcomers choose by loss.
"""

from dataclasses import dataclass
from typing import Literal

from shoal.core.algorithm import Algorithm, PlacingParameters, TrainingParameters, setting
from shoal_lab.algorithms.haccs.messages import Count, Counted


@dataclass(frozen=True)
class Parameters(TrainingParameters, PlacingParameters):
    """The number of clusters is found."""

    OPEN = "histograms of labels or inputs"

    summary: Literal["labels", "pixels"] = setting(
        "labels", "What a device sends: a histogram of its labels, or one of its pixels for each class."
    )
    classes: int = setting(10, "Number of classes among the run's labels.", unit="classes", at_least=1)
    bins: int = setting(16, "Bins of a histogram of pixels, from 0 to 1.", unit="bins", at_least=1)


ALGORITHM = Algorithm(
    name="haccs",
    summary="one-shot clusters by histograms of labels or pixels (Wolfrath et al. 2022)",
    parameters=Parameters,
    server_module="shoal_lab.algorithms.haccs.server",
    device_module="shoal_lab.algorithms.haccs.device",
    presets={"paper": {"aggregation": "mean", "placing": "paper"}},
    messages=(Count, Counted),
)
