"""CFL: a cluster is split in two when its devices pull in directions that do not agree any more.

Sattler et al., Clustered Federated Learning: Model-Agnostic Distributed Multitask Optimization Under Privacy
Constraints, IEEE TNNLS 2021 (first 2019), Algorithms 1 to 3. Every round is one exchange. After it each
cluster is looked at: it is split when

    its mean update is short      it is near a stationary point of all: |mean| < eps1
    some update is long           and that point does not suit some: max |update| > eps2
    the halves pull apart         sqrt((1 - largest cosine across the halves) / 2) > gamma

and the halves are those with the smallest largest cosine across (Algorithm 1). K is found. Both halves go on
with what their own devices make of this round.

The authors' code has eps1 = 0.4 and eps2 = 1.6, begins after round 20, splits no pair, and leaves gamma out:
preset `paper`. Absolute lengths hang on the model and the learning rate. By default a mean is short that has
less than `short` of the longest update's length, which is the same test in units of the round's own.
A newcomer chooses by loss; the paper would let it train its way down the tree of splits.
"""

from dataclasses import dataclass

from shoal.core.algorithm import Algorithm, TrainingParameters


@dataclass(frozen=True)
class Parameters(TrainingParameters):
    """short: of the longest update's length, above which a mean is not near a stationary point.

    eps1, eps2: absolute lengths instead, where eps2 is above 0. gamma: see above; 0 to 1.
    earliest: the first round after which a cluster may be split. smallest: devices that a cluster has to have
    to be split, at least 2.
    """

    short: float = 0.7
    eps1: float = 0.0
    eps2: float = 0.0
    gamma: float = 0.0
    earliest: int = 2
    smallest: int = 2


ALGORITHM = Algorithm(
    name="cfl",
    summary="clusters split by the directions of updates (Sattler et al. 2019)",
    parameters=Parameters,
    server_module="shoal.core.algorithms.cfl.server",
    device_module="shoal.core.device_kit.standard",
    presets={"paper": {"eps1": 0.4, "eps2": 1.6, "earliest": 21, "smallest": 3, "aggregation": "mean"}},
)
