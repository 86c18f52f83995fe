"""FLUX's tables of scale: 5 to 1,200 devices, partial participation, and few samples.

The levels of the four shifts are those of F.2: rotations by multiples of 90 degrees, 4 classes, 5 exchanged
names, 6 turned classes.
"""

from collections.abc import Sequence
from dataclasses import replace

from shoal_lab.tables.papers.flux import DEFAULT, FLUX, METHODS
from shoal_lab.tables.shared import KNOWN, MEASURES, SHIFTS, measured
from shoal_lab.tables.table import Column, Method, Table

LEVEL_OF = {"px": 3, "py": 7, "pyx": 5, "pxy": 6}
COPIES = {52: (5, 1), 53: (25, 2), 54: (50, 4), 55: (100, 8)}
"""By table: devices, and how many times each has its samples (F.2)."""
SHARES = ("1.0", "0.8", "0.6", "0.4", "0.2")
SIZES = {"4%": 240, "8%": 480, "16%": 960, "32%": 1920, "100%": 0}
"""Samples of a device; 0: all."""
GROUPS = {"low": 1, "mid-low": 3, "mid-high": 5, "high": 7}
FEDAVG = Method("FedAvg", "fedavg")


def columns(**options: object) -> list[Column]:
    """A column for each shift, at its level."""
    return [
        Column(
            shift,
            (*measured(shift), "seconds"),
            {"shift": shift, "level": level, "rounds": 10, **options},
        )
        for shift, level in LEVEL_OF.items()
    ]


TABLES: Sequence[Table] = (
    Table(
        paper="flux",
        number=50,
        title="FLUX, Table 50: 1,200 devices, of which a round asks a fifth",
        measures={**MEASURES, "seconds": ("seconds", "total")},
        datasets=("mnist",),
        methods=(FEDAVG, FLUX, DEFAULT),
        columns=columns(clients=1200, participation=0.2, copies=96),
        note="The paper does not say how often the 50 samples of a device are repeated. Elsewhere each of 25 "
        "devices or more trains on 3,840, which is 96 times here; with 8 times FedAvg learns nothing. A "
        "device that has no cluster in the end finds one as a labeled newcomer does.",
    ),
    *(
        Table(
            paper="flux",
            number=number,
            title=f"FLUX, Table {number}: accuracy in percent, {clients} devices, 10 rounds",
            measures={**MEASURES, "seconds": ("seconds", "total")},
            datasets=("mnist",),
            methods=(*METHODS, DEFAULT),
            columns=columns(clients=clients, copies=copies),
            note="Table 51 has the means of Tables 52 to 55, and the seconds on the paper's own machine.",
        )
        for number, (clients, copies) in COPIES.items()
    ),
    Table(
        paper="flux",
        number=60,
        title="FLUX, Table 60: accuracy in percent by participation, 20 devices",
        measures={"known": KNOWN},
        datasets=("mnist",),
        methods=(FEDAVG, FLUX, DEFAULT),
        columns=[
            Column(
                share,
                ("known",),
                {"clients": 20, "copies": 2, "rounds": 10, "participation": float(share)},
                {shift: {"shift": shift, "level": level} for shift, level in LEVEL_OF.items()},
            )
            for share in SHARES
        ],
        note="The paper says that 0.2 are about 4 devices, so 20 devices; their samples are taken twice, as "
        "for 25. A device that has no cluster in the end finds one as a labeled newcomer does.",
    ),
    Table(
        paper="flux",
        number=61,
        title="FLUX, Table 61: accuracy in percent by the devices' data, 10 devices, 10 rounds",
        measures={"known": KNOWN},
        datasets=("mnist",),
        methods=[
            replace(method, label=f"{method.label} {size}", fields={"samples": samples})
            for method in (FLUX, FEDAVG, DEFAULT)
            for size, samples in SIZES.items()
        ],
        columns=[
            Column(
                name,
                ("known",),
                {"level": level, "clients": 10, "rounds": 10},
                {shift: {"shift": shift} for shift in SHIFTS},
            )
            for name, level in GROUPS.items()
        ],
        note="The paper does not name its four levels: 1, 3, 5 and 7 are our reading of FedAvg's figures "
        "with all data. Test phase: by `simulate --samples`.",
    ),
    Table(
        paper="flux",
        number=62,
        title="FLUX, Table 62: devices with about 1 % of the data, 20 devices, 200 rounds",
        measures=MEASURES,
        datasets=("mnist",),
        methods=(FEDAVG, FLUX, DEFAULT),
        columns=[
            Column(
                shift,
                measured(shift),
                {"shift": shift, "level": 5, "clients": 20, "samples": 600, "rounds": 200},
            )
            for shift in SHIFTS
        ],
        note="The paper does not name the level, here 5, nor how unequal its devices are, here all equal.",
    ),
)
