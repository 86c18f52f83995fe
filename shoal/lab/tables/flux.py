"""FLUX, Table 1: ten devices, four shifts at eight levels; the paper prints the mean over all 32 settings.

Its parts are Tables 12 to 19 (MNIST) and 22 to 29 (FMNIST). The mean known association is over the four
shifts, the mean test phase over the three that can be recognized without labels.
"""

from shoal.lab.tables.compared import COMPARED
from shoal.lab.tables.table import Column, Method, Table

TABLE = Table(
    paper="flux",
    number=1,
    title="FLUX, Table 1: accuracy in percent, 10 devices, 10 rounds",
    measures={"known": ("accuracy", "known"), "test": ("accuracy", "test")},
    datasets=("mnist", "fashion-mnist"),
    methods=(
        *COMPARED,
        Method("Flux", "flux"),
        Method("Flux-prior", "flux-prior"),
        Method("Flux (default)", "flux", "default"),
    ),
    columns=[
        Column(
            f"{shift}-{level}",
            ("known",) if shift == "pyx" else ("known", "test"),
            {"shift": shift, "level": level, "clients": 10, "rounds": 10},
        )
        for shift in ("px", "py", "pyx", "pxy")
        for level in range(1, 9)
    ],
)
