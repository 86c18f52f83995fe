"""Xie et al., Multi-Center Federated Learning, 2020 (Long et al., World Wide Web 2023), Algorithm 1.

Devices are grouped by the distance of their weights to K centers, which are the models. Each round is one
exchange: devices train; each device then belongs to the center that is nearest to its weights (E-step); each
center becomes the mean of its devices (M-step).

K is given. The paper leaves open how the first centers are found ("initialize"). Here all devices first train
one model, and k-means++ finds K centers among their updates. Updates are weighted by samples. A newcomer
chooses by loss: the paper has no rule for it.
"""

from dataclasses import dataclass

from shoal.core.algorithm import Algorithm, PlacingParameters, TrainingParameters, setting


@dataclass(frozen=True)
class Parameters(TrainingParameters, PlacingParameters):
    """The number of clusters is given."""

    clusters: int = setting(4, "K, the largest number of clusters.", unit="clusters", at_least=1)


ALGORITHM = Algorithm(
    name="fesem",
    summary="devices grouped by the distance of weights to K centers (Xie et al. 2020)",
    parameters=Parameters,
    server_module="shoal_lab.algorithms.fesem.server",
    presets={"paper": {"aggregation": "mean", "placing": "paper"}},
)
