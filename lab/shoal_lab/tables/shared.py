"""What several tables have in common: the methods that FLUX and FEROMA compare with, and notes on them.

Their common setting is batches of 64, a rate of 0.005 and 2 epochs. Where a method needs the number of
clusters, it is given the true one (FLUX, Table 2).
"""

from collections.abc import Mapping, Sequence
from typing import Any

from shoal_lab.tables.table import Column, Method

GIVEN = {"clusters": -1}
COMMON = {"epochs": 2, "batch_size": 64, "learning_rate": 0.005, "weight_decay": 0.0}
SHIFTS = ("px", "py", "pyx", "pxy")
LEVELS = range(1, 9)
KNOWN, TEST = ("accuracy", "known"), ("accuracy", "test")
MEASURES: Mapping[str, Sequence[str]] = {"known": KNOWN, "test": TEST}
MNIST = ("mnist", "fashion-mnist")
CIFAR = ("cifar-10", "cifar-100")
BY_DATASET: Mapping[str, Mapping[str, Any]] = {"cifar-100": {"model": "resnet9", "rounds": 15}}
"""FLUX, B.2 and C.1.4: ResNet-9 and 15 rounds for CIFAR-100; LeNet-5 and 10 rounds for the others."""

HEAVIEST = "The test phase weighs each model by the devices in whose mixture it is the heaviest."
COMPARED = (
    Method("FedAvg", "fedavg"),
    Method("IFCA", "ifca", changes=GIVEN, note="One draw of the initial models; some draws end badly."),
    Method("FedRC", "fedrc", changes={**COMMON, **GIVEN}, note=HEAVIEST),
    Method("FedEM", "fedem", changes=GIVEN, note=HEAVIEST),
    Method("FeSEM", "fesem", changes=GIVEN, note="The first centers are found by k-means++ after one round."),
    Method("FedDrift", "feddrift"),
    Method(
        "CFL",
        "cfl",
        note="Sattler's rule with its authors' numbers splits no cluster before round 21, so that within the "
        "rounds of this table it is FedAvg, reported in the last round.",
    ),
    Method(
        "pFedMe", "pfedme", note="The papers have no test phase of it; here newcomers get the common model."
    ),
    Method("APFL", "apfl"),
    Method("ATP", "atp", note="The papers have no known association of it."),
)


def measured(shift: str) -> tuple[str, ...]:
    """What is reported under a shift: without labels no algorithm can recognize P(Y|X)."""
    return ("known",) if shift == "pyx" else ("known", "test")


def mean_over_levels(shift: str, options: Mapping[str, Any], measures: Sequence[str] = ()) -> Column:
    """The mean over levels of one shift."""
    return Column(
        shift,
        measures or measured(shift),
        {"shift": shift, **options},
        {f"level-{level}": {"level": level} for level in LEVELS},
    )
