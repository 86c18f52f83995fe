"""Ghosh et al., An Efficient Framework for Clustered Federated Learning, NeurIPS 2020, Algorithm 1.

There are K models, and every device trains the one with the lowest loss on its data; models are averaged
(option II). A round is two exchanges:

    choose   every device measures its loss under each of the K models
    train    every device trains the model of its choice; the server averages each model's updates

and by default devices choose once more after the last round, since liars may have trained their model, too.

K is given. The K initial models are drawn at random, as in the paper; if an operator gives one, the others
are derived from it, see `shoal.core.server_kit.initial.several`. Some draws end badly, and the authors
restart with another. Updates are weighted by samples; in the paper all devices have equally many. A newcomer
chooses by loss, so it needs labels.
"""

from dataclasses import dataclass

from shoal.core.algorithm import Algorithm, PlacingParameters, TrainingParameters, setting


@dataclass(frozen=True)
class Parameters(TrainingParameters, PlacingParameters):
    """The number of models is given."""

    OPEN = "figures"

    clusters: int = setting(4, "K, the number of models.", unit="models", at_least=1)


ALGORITHM = Algorithm(
    name="ifca",
    summary="devices choose among K models by loss (Ghosh et al. 2020)",
    parameters=Parameters,
    server_module="shoal.core.algorithms.ifca.server",
    presets={"paper": {"aggregation": "mean", "placing": "paper"}},
    initial=lambda parameters: parameters.clusters,
)
