"""FEROMA's main tables: twenty devices whose data drift over twenty rounds.

Table 1 has means over 36 settings; its parts are Tables 13 to 28. Of P(Y|X) those print the known
association; with 20 labels a class, which newcomers show here, FEROMA's own figures are in Tables 5 to 8.
"""

from collections.abc import Sequence

from shoal_lab.shifts.drift import LAST
from shoal_lab.tables.shared import CIFAR, COMPARED, KNOWN, MEASURES, MNIST, SHIFTS, TEST
from shoal_lab.tables.table import Column, Method, Table

LABELS = 20
TWENTY = {"clients": 20, "rounds": 20}
LEVELS, DRIFTS = ("low", "medium", "high"), (5, 10, 20)
BY_DATASET = {"cifar-100": {"model": "resnet9"}}
FEROMA = Method("FEROMA", "feroma")
DEFAULT = Method("FEROMA (default)", "feroma", "default", note="Our default, which the paper does not have.")
KNOWN_AND_FEW = {5: "mnist", 6: "fashion-mnist", 7: "cifar-10", 8: "cifar-100"}


def setting(shift: str, level: str, drifts: int = 10) -> dict[str, object]:
    """The fields of an experiment. Without labels no algorithm can recognize P(Y|X), under which devices are
    tested on their own last stage anyway."""
    if shift == "pyx":
        return {"shift": shift, "level": level, "drifts": drifts, "labels": LABELS, **TWENTY}
    return {"shift": shift, "level": level, "drifts": drifts, "mode": LAST, **TWENTY}


TABLES: Sequence[Table] = (
    Table(
        paper="feroma",
        number=1,
        title="FEROMA, Table 1: accuracy in percent, 20 devices, 20 rounds",
        measures=MEASURES,
        datasets=(*MNIST, *CIFAR),
        methods=(
            *COMPARED,
            FEROMA,
            DEFAULT,
            Method(
                "Flux-dynamic", "flux-dynamic", "default", note="Our default; FLUX's paper has no such row."
            ),
        ),
        columns=[
            Column(
                f"{shift}-{level}-{drifts}",
                ("known", "test") if shift == "pyx" else ("test",),
                setting(shift, level, drifts),
            )
            for shift in SHIFTS
            for level in LEVELS
            for drifts in DRIFTS
        ],
        by_dataset=BY_DATASET,
        note="Table 2 has the means of these cells over the four shifts.",
    ),
    *(
        Table(
            paper="feroma",
            number=number,
            title=f"FEROMA, Table {number}: P(Y|X), 20 devices, 20 rounds",
            measures={"known": KNOWN, "labels": TEST},
            datasets=(dataset,),
            methods=(FEROMA, DEFAULT),
            columns=[
                Column(f"{level}-{drifts}", ("known", "labels"), setting("pyx", level, drifts))
                for level in LEVELS
                for drifts in DRIFTS
            ],
            by_dataset=BY_DATASET,
            note="The label-free part of a newcomer's profile is of the 20 labeled samples of each class "
            "too, where the authors' is of all test samples.",
        )
        for number, dataset in KNOWN_AND_FEW.items()
    ),
)
