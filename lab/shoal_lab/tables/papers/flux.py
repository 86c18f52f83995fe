"""FLUX's main tables: ten devices, four shifts at eight levels.

Table 1 is the mean over all 32 settings, from Tables 12 to 19 (MNIST), 22 to 29 (FMNIST), 32 to 39 (CIFAR-10)
and 42 to 49 (CIFAR-100). The mean known association is over the four shifts, the mean test phase over the
three that can be recognized without labels. Table 8 adds HACCS; Tables 56 to 58 mix two shifts.
"""

from collections.abc import Sequence

from shoal_lab.tables.shared import (
    BY_DATASET,
    CIFAR,
    COMPARED,
    LEVELS,
    MEASURES,
    MNIST,
    SHIFTS,
    mean_over_levels,
    measured,
)
from shoal_lab.tables.table import Column, Method, Table

TEN = {"clients": 10, "rounds": 10}
FLUX = Method("Flux", "flux")
METHODS = (*COMPARED, FLUX, Method("Flux-prior", "flux-prior"))
DEFAULT = Method("Flux (default)", "flux", "default", note="Our default, which the paper does not have.")

MIXED = {
    56: ("px+py", "P(X) and P(Y)"),
    57: ("pxy+py", "P(X|Y) and P(Y)"),
    58: ("pyx+py", "P(Y|X) and P(Y)"),
}

TABLES: Sequence[Table] = (
    Table(
        paper="flux",
        number=1,
        title="FLUX, Table 1: accuracy in percent, 10 devices, 10 rounds",
        measures=MEASURES,
        datasets=(*MNIST, *CIFAR),
        methods=(*METHODS, DEFAULT),
        columns=[
            Column(f"{shift}-{level}", measured(shift), {"shift": shift, "level": level, **TEN})
            for shift in SHIFTS
            for level in LEVELS
        ],
        by_dataset=BY_DATASET,
    ),
    Table(
        paper="flux",
        number=8,
        title="FLUX, Table 8: accuracy in percent by shift, 10 devices, 10 rounds",
        measures=MEASURES,
        datasets=(*MNIST, "cifar-10"),
        methods=(
            Method("FedAvg", "fedavg"),
            Method("FedDrift", "feddrift"),
            Method(
                "HACCS",
                "haccs",
                note="Histograms of labels, without its selection of devices. In the test phase the paper "
                "compares histograms, which takes labels; here all clusters' models decide together.",
            ),
            FLUX,
            DEFAULT,
        ),
        columns=[mean_over_levels(shift, TEN) for shift in SHIFTS],
    ),
    *(
        Table(
            paper="flux",
            number=number,
            title=f"FLUX, Table {number}: {name} at once, 10 devices, 10 rounds",
            measures=MEASURES,
            datasets=("mnist",),
            methods=(*METHODS, DEFAULT),
            columns=[
                Column(f"level-{level}", ("known", "test"), {"shift": shift, "level": level, **TEN})
                for level in (3, 4, 5, 6)
            ],
            note="Both shifts are at the level of the column, with random streams of their own. The paper "
            "does not say how they are combined; see `shoal_lab.shifts.mixed`.",
        )
        for number, (shift, name) in MIXED.items()
    ),
)
