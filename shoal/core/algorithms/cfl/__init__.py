"""Sattler, Müller and Samek, Clustered Federated Learning: Model-Agnostic Distributed Multitask Optimization
Under Privacy Constraints, IEEE TNNLS 2021 (first published 2019), Algorithms 1 to 3.

A cluster is split in two when its devices pull in directions that no longer agree. Every round is one
exchange. After it, a cluster is split when

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

from shoal.core.algorithm import Algorithm, TrainingParameters, setting


@dataclass(frozen=True)
class Parameters(TrainingParameters):
    """short holds unless eps2 is above 0: then eps1 and eps2 do."""

    short: float = setting(
        0.7,
        "A mean update is short up to this multiple of the longest update's length.",
        unit="multiples of the longest update",
        at_least=0,
    )
    eps1: float = setting(0.0, "With eps2 above 0: length up to which a mean update is short.", at_least=0)
    eps2: float = setting(0.0, "Length above which an update is long; 0: use short instead.", at_least=0)
    gamma: float = setting(0.0, "Least distance between the halves for a split.", at_least=0, at_most=1)
    earliest: int = setting(2, "First round after which a cluster may be split.", unit="rounds", at_least=1)
    smallest: int = setting(2, "Devices that a cluster needs to be split.", unit="devices", at_least=2)


ALGORITHM = Algorithm(
    name="cfl",
    summary="clusters split by the directions of updates (Sattler et al. 2019)",
    parameters=Parameters,
    server_module="shoal.core.algorithms.cfl.server",
    presets={"paper": {"eps1": 0.4, "eps2": 1.6, "earliest": 21, "smallest": 3, "aggregation": "mean"}},
)
