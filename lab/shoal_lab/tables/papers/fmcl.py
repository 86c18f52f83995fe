"""FMCL, Table 1: clusters by the class means of a frozen encoder, under uneven classes.

The three data sets are in folders of pictures, brought to 64 x 64 pixels. They are the user's own: nothing
here downloads them. Any other data set can take their place on the command line of `simulate`.
"""

from collections.abc import Sequence

from shoal_lab.tables.table import Column, Method, Table

COMMON = {"rounds": 100, "epochs": 1, "batch_size": 32, "learning_rate": 1e-4, "momentum": 0.9}
SMALL = {"model": "resnet9", "clients": 20}
FAST = {"model": "resnet18", "clients": 30}
GIVEN = {"clusters": 3}
EMBEDDED = (
    "The encoder is the latent of a network like the trained one, trained before on a tenth of the images "
    "that no device gets, with the same labels; the paper's are foundation models."
)
PUBLIC = {"public": 0.1}

TABLES: Sequence[Table] = (
    Table(
        paper="fmcl",
        number=1,
        title="FMCL, Table 1: accuracy, macro F1 and AUC in percent, 100 rounds",
        measures={
            name: ("accuracy", place) for name, place in (("accuracy", "known"), ("f1", "f1"), ("auc", "auc"))
        },
        datasets=("busi", "lunghist700", "imagenette"),
        methods=(
            Method("FedAvg", "fedavg", changes={**COMMON, "select": "last", "restart_momentum": False}),
            Method("FedProx", "fedprox", changes=COMMON),
            Method("CFL", "cfl", changes=COMMON),
            Method("PACFL", "pacfl", changes={**COMMON, **GIVEN}),
            Method("FECFL (FM)", "fecfl", changes={**COMMON, **GIVEN}, fields=PUBLIC, note=EMBEDDED),
            Method(
                "FMCL (no overlap)",
                "fmcl",
                changes={**COMMON, **GIVEN, "overlap": False},
                fields=PUBLIC,
                note=EMBEDDED,
            ),
            Method("FMCL", "fmcl", changes={**COMMON, **GIVEN}, fields=PUBLIC, note=EMBEDDED),
            Method("FMCL (Auto-K)", "fmcl", changes=COMMON, fields=PUBLIC, note=EMBEDDED),
            Method("FMCL (default)", "fmcl", "default", COMMON, PUBLIC, note=EMBEDDED),
        ),
        columns=[
            Column(
                "dirichlet-0.1", ("accuracy", "f1", "auc"), {"shift": "dirichlet", "level": 7, "rounds": 100}
            )
        ],
        by_dataset={
            "busi": SMALL,
            "lunghist700": SMALL,
            "imagenette": {**FAST, "changes": {"learning_rate": 0.01, "clusters": 5}},
        },
        note="The last round, not the one of best validation. Batches of 32, momentum 0.9 and 64 x 64 "
        "pixels are our reading. PACFL and FECFL on the paper's other inputs (PACFL on embeddings, FECFL "
        "on random ones) are not here.",
    ),
)
