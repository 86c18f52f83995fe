"""What FLUX and FEROMA compare with, in their common setting: batches of 64, rate 0.005, 2 epochs.

Where a method must be told how many clusters there are, it is told the truth (FLUX, Table 2).
"""

from shoal.lab.tables.table import Method

TOLD = {"clusters": -1}
COMMON = {"epochs": 2, "batch_size": 64, "learning_rate": 0.005, "weight_decay": 0.0}

COMPARED = (
    Method("FedAvg", "fedavg"),
    Method("IFCA", "ifca", changes=TOLD),
    Method("FedRC", "fedrc", changes={**COMMON, **TOLD}),
    Method("FedEM", "fedem", changes=TOLD),
    Method("FeSEM", "fesem", changes=TOLD),
    Method("FedDrift", "feddrift"),
    Method("CFL", "cfl"),
    Method("pFedMe", "pfedme"),
    Method("APFL", "apfl"),
    Method("ATP", "atp"),
)
