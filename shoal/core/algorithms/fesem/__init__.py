"""Xie et al., Multi-Center Federated Learning, 2020 (Long et al., World Wide Web 2023), Algorithm 1.

Devices are grouped by the distance of their weights to K centers, which are the models. Each round is one
exchange: devices train; each then belongs to the centre that its weights are nearest to (E-step); each centre
becomes the mean of its devices (M-step).

K is given. How the first centres are found the paper leaves open ("initialise"); here all devices first train
one model, and k-means++ finds K centres among what they moved by. Updates are weighted by samples. A newcomer
chooses by loss: the paper has no rule for it.
"""

from dataclasses import dataclass

from shoal.core.algorithm import Algorithm, TrainingParameters, setting


@dataclass(frozen=True)
class Parameters(TrainingParameters):
    """The number of clusters is given."""

    clusters: int = setting(4, "K, the largest number of clusters.", unit="clusters", at_least=1)


ALGORITHM = Algorithm(
    name="fesem",
    summary="devices grouped by the distance of weights to K centres (Xie et al. 2020)",
    parameters=Parameters,
    server_module="shoal.core.algorithms.fesem.server",
    presets={"paper": {"aggregation": "mean"}},
)
