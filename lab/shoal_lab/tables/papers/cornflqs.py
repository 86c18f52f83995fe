"""CORNFLQS, Table 3: a hundred devices in four classes, with and without quantity skew.

A column is a scenario, and the mean over the three kinds of classes; the paper's figures for it are in its
Tables 4 (none), 5 (QS1) and 6 (QS2), of which Table 3 has the means.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from shoal_lab.tables.table import Column, Method, Table

COMMON = {"epochs": 10, "batch_size": 128, "learning_rate": 1e-3, "optimizer": "adam"}
FOUR = {"clusters": 4}
HALFWAY = {"warm_up": 9}
"""The round after these groups the devices: half of 20."""
LINEAR = {"model": "mlp", "options": {"hidden": [200], "activation": "none"}}
NETWORKS: Mapping[str, Mapping[str, Any]] = {
    **dict.fromkeys(("mnist", "fashion-mnist", "kmnist"), LINEAR),
    "cifar-10": {"model": "resnet9", "rounds": 100, "changes": {"epochs": 5, "warm_up": 49}},
}

TABLES: Sequence[Table] = (
    Table(
        paper="cornflqs",
        number=3,
        title="CORNFLQS, Table 3: 100 devices, 20 rounds",
        measures={"accuracy": ("accuracy", "known"), "ari": ("ari",), "deviation": ("accuracy", "deviation")},
        datasets=tuple(NETWORKS),
        methods=(
            Method("cornflqs", "cornflqs", changes=COMMON),
            Method("fl+hc", "flhc", "cornflqs", {**COMMON, **FOUR, **HALFWAY}),
            Method(
                "ifca",
                "ifca",
                changes={**COMMON, **FOUR},
                note="One draw of the initial models, the paper's best of 5.",
            ),
            Method("fedgroup", "fedgroup", changes={**COMMON, **FOUR}),
            Method(
                "cfl",
                "oneshot",
                changes={**COMMON, **FOUR, **HALFWAY},
                note="Ghosh's CFL, one K-means after half of the rounds: reference 4 of the paper.",
            ),
            Method(
                "srfca",
                "srfca",
                changes=COMMON,
                note="Distances of weights; CORNFLQS describes cross-losses, and searches the threshold.",
            ),
            Method("fedprox", "fedprox", changes=COMMON),
            Method("fedavg", "fedavg", changes={**COMMON, "select": "last", "restart_momentum": False}),
            Method("cornflqs (default)", "cornflqs", "default"),
            Method(
                "Flux (default)", "flux", "default", COMMON, {"held_out": 0.2}, note="K is not given to it."
            ),
        ),
        columns=[
            Column(
                name,
                ("accuracy", "ari", "deviation"),
                {"level": level, "clients": 100, "rounds": 20, "held_out": 0.0},
                {kind: {"shift": f"qs-{kind}"} for kind in ("features", "labels", "skew")},
            )
            for level, name in enumerate(("qs0", "qs1", "qs2"))
        ],
        by_dataset=NETWORKS,
        note="The network has no activation between its layers, as in the authors' code, and Adam's rate "
        "of 1e-3 is theirs. CIFAR-10: ResNet-9 without flips and crops. Tables 1, 2 and 7 are means or "
        "examples of these cells.",
    ),
)
