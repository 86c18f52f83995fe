"""FEROMA's further tables: noise, numbers of devices, unseen distributions, masks, thresholds and
distances."""

from collections.abc import Sequence

from shoal_lab.tables.papers.feroma import DEFAULT, DRIFTS, FEROMA, LEVELS, setting
from shoal_lab.tables.shared import COMPARED, TEST
from shoal_lab.tables.table import Column, Method, Table

PAIRS = {
    9: ("px", "py"),
    10: ("pyx", "pxy"),
    42: ("px", "py"),
    43: ("pyx", "pxy"),
    44: ("px", "py"),
    45: ("pyx", "pxy"),
}
DEVICES = {30: "px", 31: "py", 32: "pyx", 33: "pxy"}
DISTANCES = {47: "px", 48: "py", 49: "pyx", 50: "pxy"}
NAMES = {"E": "euclidean", "C": "cosine"}
NOISE = (
    "Noise as FEROMA's paper writes it: a common epsilon, on the range of the latents. This is no "
    "guarantee: see docs/privacy.md."
)


def by_level(number: int, title: str, dataset: str, methods: Sequence[Method]) -> Table:
    """Two shifts at three levels, with ten drifts."""
    return Table(
        paper="feroma",
        number=number,
        title=title,
        measures={"test": TEST},
        datasets=(dataset,),
        methods=methods,
        columns=[
            Column(f"{shift}-{level}", ("test",), setting(shift, level))
            for shift in PAIRS[number]
            for level in LEVELS
        ],
        note=TEN_DRIFTS,
    )


TEN_DRIFTS = (
    "Ten drifts: the paper does not say how many, and these figures are those of Tables 13 to 20 with ten."
)
MASKED = [
    Method(f"M={masks} threshold {name}", "feroma", changes={"masks": masks, "threshold": threshold})
    for name, threshold in (("off", 0.0), ("on", -1.0))
    for masks in (1, 2, 3)
]
NOISED = (
    *(
        Method(
            f"eps = {epsilon}", "feroma", changes={"privacy": "paper", "epsilon": float(epsilon)}, note=NOISE
        )
        for epsilon in (1, 2, 5, 10)
    ),
    Method("No DP", "feroma"),
    Method(
        "balanced (default)",
        "feroma",
        "default",
        {"privacy": "balanced"},
        note="Ours: a guarantee that holds.",
    ),
)

TABLES: Sequence[Table] = (
    *(
        by_level(number, f"FEROMA, Table {number}: by epsilon, 20 devices", "mnist", NOISED)
        for number in (9, 10)
    ),
    *(
        Table(
            paper="feroma",
            number=number,
            title=f"FEROMA, Table {number}: accuracy in percent by number of devices, 20 rounds",
            measures={"accuracy": TEST, "seconds": ("seconds", "total")},
            datasets=("mnist",),
            methods=(*COMPARED, FEROMA, DEFAULT),
            columns=[
                Column(
                    str(clients), ("accuracy", "seconds"), {**setting(shift, "medium"), "clients": clients}
                )
                for clients in (10, 20, 50, 100)
            ],
            note="Medium level and ten drifts, as with 20 devices in Tables 13 to 16. The paper prints the "
            "logarithm of its seconds; Table 29 has the means of Tables 30 to 33.",
        )
        for number, shift in DEVICES.items()
    ),
    Table(
        paper="feroma",
        number=41,
        title="FEROMA, Table 41: devices that are tested on distributions they did not train on",
        measures={"test": TEST},
        datasets=("mnist",),
        methods=(Method("FedAvg", "fedavg"), FEROMA, DEFAULT),
        columns=[
            Column(
                f"{share} %",
                ("test",),
                {**setting("px", "medium"), "unseen": share / 100},
                {f"{drifts}-drifts": {"drifts": drifts} for drifts in DRIFTS},
            )
            for share in (0, 20, 40, 60, 80, 100)
        ],
        note="Under P(X), with whose figures those of 0 % agree; the paper does not name the shift. A "
        "device does not train on the distribution it is tested on, but others may.",
    ),
    *(
        by_level(
            number,
            f"FEROMA, Table {number}: masks and threshold, 20 devices",
            "mnist" if number < 44 else "cifar-10",
            MASKED,
        )
        for number in (42, 43, 44, 45)
    ),
    *(
        Table(
            paper="feroma",
            number=number,
            title=f"FEROMA, Table {number}: distances in training and at the test, 20 devices",
            measures={"test": TEST},
            datasets=("fashion-mnist",),
            methods=[
                Method(
                    f"{one}.{other}.",
                    "feroma",
                    changes={"distance": NAMES[one], "distance_at_test": NAMES[other]},
                )
                for one, other in ("EC", "EE", "CE", "CC")
            ],
            columns=[
                Column(f"{level}-{drifts}", ("test",), setting(shift, level, drifts))
                for level in LEVELS
                for drifts in DRIFTS
            ],
            note="Table 46 has the means of Tables 47 to 50.",
        )
        for number, shift in DISTANCES.items()
    ),
)
