"""Hsu, Qi and Brown, Measuring the Effects of Non-Identical Data Distribution for Federated Visual
Classification, 2019 (arXiv:1909.06335), section 4.3.

FedAvgM: FedAvg whose server moves the model with momentum. With the mean update d of a round, v <- beta v + d
and w <- w + v. The default differs from the paper in that updates are bounded.
"""

from dataclasses import dataclass

from shoal.core.algorithm import Algorithm, TrainingParameters, setting


@dataclass(frozen=True)
class Parameters(TrainingParameters):
    """FedAvg's, and the server's momentum."""

    server_momentum: float = setting(0.9, "beta, the momentum of the server.", at_least=0, below=1)


ALGORITHM = Algorithm(
    name="fedavgm",
    summary="one global model, moved with momentum (Hsu et al. 2019)",
    parameters=Parameters,
    server_module="shoal_fedavgm.server",
    presets={"paper": {"aggregation": "mean"}},
)
