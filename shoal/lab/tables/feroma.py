"""FEROMA, Table 1: twenty devices whose data drift over twenty rounds; the paper prints means of 36 settings.

Its parts are Tables 13 to 16 (MNIST) and 21 to 24 (FMNIST). Of P(Y|X) those print the known association; with
20 labels a class, which newcomers show here, FEROMA's own figures are in Tables 5 and 6.
"""

from shoal.lab.tables.compared import COMPARED
from shoal.lab.tables.table import Column, Method, Table

LABELS = 20

TABLE = Table(
    paper="feroma",
    number=1,
    title="FEROMA, Table 1: accuracy in percent, 20 devices, 20 rounds",
    measures={"known": ("accuracy", "known"), "test": ("accuracy", "test")},
    datasets=("mnist", "fashion-mnist"),
    methods=(
        *COMPARED,
        Method("FEROMA", "feroma"),
        Method("FEROMA (default)", "feroma", "default"),
        Method("Flux-dynamic", "flux-dynamic", "default"),
    ),
    columns=[
        Column(
            f"{shift}-{level}-{drifts}",
            ("known", "test") if shift == "pyx" else ("test",),
            {
                "shift": shift,
                "level": level,
                "drifts": drifts,
                "labels": LABELS if shift == "pyx" else 0,
                "clients": 20,
                "rounds": 20,
            },
        )
        for shift in ("px", "py", "pyx", "pxy")
        for level in ("low", "medium", "high")
        for drifts in (5, 10, 20)
    ],
)
