"""IFCA: K models, of which every device trains the one whose loss is lowest on its data.

Ghosh et al., An Efficient Framework for Clustered Federated Learning, NeurIPS 2020, Algorithm 1 with model
averaging (option II). A round is two exchanges:

    choose   every device measures its loss under each of the K models
    train    every device trains the model of its choice; each model is averaged from those who chose it

K is given. The K initial models are drawn at random, as in the paper; where an operator gave one, the others
are made of it: `shoal.core.server_kit.initial`. Some draws end badly, and the authors restart with another.
Updates are weighted by samples; in the paper all devices have as many. A newcomer chooses by loss, so it
needs labels.
"""

from dataclasses import dataclass

from shoal.core.algorithm import Algorithm, TrainingParameters


@dataclass(frozen=True)
class Parameters(TrainingParameters):
    """clusters: K."""

    clusters: int = 4


ALGORITHM = Algorithm(
    name="ifca",
    summary="devices choose among K models by loss (Ghosh et al. 2020)",
    parameters=Parameters,
    server_module="shoal.core.algorithms.ifca.server",
    device_module="shoal.core.device_kit.standard",
    presets={"paper": {"aggregation": "mean"}},
    initial=lambda parameters: parameters.clusters,
)
