"""What FLUX and FEROMA compare with, in their common setting: batches of 64, rate 0.005, 2 epochs.

Where a method needs the number of clusters, it is given the true one (FLUX, Table 2).
"""

from shoal.lab.tables.table import Method

GIVEN = {"clusters": -1}
COMMON = {"epochs": 2, "batch_size": 64, "learning_rate": 0.005, "weight_decay": 0.0}

COMPARED = (
    Method("FedAvg", "fedavg"),
    Method("IFCA", "ifca", changes=GIVEN),
    Method("FedRC", "fedrc", changes={**COMMON, **GIVEN}),
    Method("FedEM", "fedem", changes=GIVEN),
    Method("FeSEM", "fesem", changes=GIVEN),
    Method("FedDrift", "feddrift"),
    Method("CFL", "cfl"),
    Method("pFedMe", "pfedme"),
    Method("APFL", "apfl"),
    Method("ATP", "atp"),
)
