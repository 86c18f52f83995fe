"""CORNFLQS, Table 3: a hundred devices in four classes, with and without quantity skew.

A column is a scenario, and the mean over the three kinds of classes; the paper's figures for it are in its
Tables 4 (none), 5 (QS1) and 6 (QS2).
"""

from shoal.lab.tables.table import Column, Method, Table

COMMON = {"epochs": 10, "batch_size": 128, "learning_rate": 0.02}
FOUR = {"clusters": 4}

TABLE = Table(
    paper="cornflqs",
    number=3,
    title="CORNFLQS, Table 3: 100 devices, 20 rounds",
    measures={"accuracy": ("accuracy", "known"), "ari": ("ari",)},
    datasets=("mnist", "fashion-mnist"),
    methods=(
        Method("cornflqs", "cornflqs"),
        Method("fl+hc", "flhc", "cornflqs", {**COMMON, **FOUR}),
        Method("ifca", "ifca", changes={**COMMON, **FOUR}),
        Method("fedgroup", "fedgroup", changes={**COMMON, **FOUR}),
        Method("cfl", "cfl", changes=COMMON),
        Method("srfca", "srfca", changes=COMMON),
        Method("fedprox", "fedprox", changes=COMMON),
        Method("fedavg", "fedavg", changes=COMMON),
        Method("cornflqs (default)", "cornflqs", "default"),
    ),
    columns=[
        Column(
            name,
            ("accuracy", "ari"),
            {"level": level, "model": "mlp", "options": {"hidden": [200]}, "clients": 100, "rounds": 20},
            {kind: {"shift": f"qs-{kind}"} for kind in ("features", "labels", "skew")},
        )
        for level, name in enumerate(("qs0", "qs1", "qs2"))
    ],
)
