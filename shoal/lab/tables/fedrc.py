"""FedRC, Table 1: three concepts in Fashion-MNIST, on 300 devices over 200 rounds.

local: devices that take part, on their own test parts; global: newcomers of every concept, who show labels.
The paper reports the round of best training accuracy; here it is the last one. FedRC-FT trains once more on
each device, here also on the newcomers, by the labels that they show: 9,000 on Fashion-MNIST, so that its
global accuracy says little of the run. The paper does not say how it tunes for it.
"""

from shoal.lab.tables.table import Column, Method, Table

COMMON = {"epochs": 1, "batch_size": 128, "learning_rate": 0.06, "weight_decay": 0.0005}
THREE = {"clusters": 3}

TABLE = Table(
    paper="fedrc",
    number=1,
    title="FedRC, Table 1: accuracy in percent, 300 devices, 200 rounds",
    measures={"local": ("accuracy", "known"), "global": ("accuracy", "newcomers")},
    datasets=("fashion-mnist",),
    methods=(
        Method("FedAvg", "fedavg", changes=COMMON),
        Method("IFCA", "ifca", changes={**COMMON, **THREE}),
        Method("FeSEM", "fesem", changes={**COMMON, **THREE}),
        Method("FedEM", "fedem", "paper-fedrc"),
        Method("FedRC", "fedrc"),
        Method("FedRC-FT", "fedrc", changes={"predict": "tuned"}),
        Method("CFL", "cfl", changes=COMMON),
        Method("FedSoft", "fedsoft"),
        Method("FedRC (default)", "fedrc", "default"),
    ),
    columns=[
        Column(
            "fashion-mnist",
            ("local", "global"),
            {"shift": "fedrc", "level": 1, "clients": 300, "rounds": 200},
        )
    ],
)
