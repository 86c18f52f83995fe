"""FedRC: three concepts, on 300 devices over 200 rounds.

local: devices that take part, on their own test parts; global: newcomers of every concept, who show labels.
The paper reports the round of best training accuracy; here it is the last one. FedRC-FT trains once more on
each device, here also on the newcomers, by the labels that they show: 9,000 on Fashion-MNIST, so that its
global accuracy says little of the run. The paper does not say how it tunes for it.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from shoal_lab.tables.table import Column, Method, Table

COMMON = {"epochs": 1, "batch_size": 128, "learning_rate": 0.06, "weight_decay": 0.0005}
THREE = {"clusters": 3}
LAST = {**COMMON, "select": "last", "restart_momentum": False}
LEAF = {"model": "leafcnn", "options": {"mean": 0.1307, "deviation": 0.3081}}
MOBILE = {"model": "mobilenetv2", "copies": 3}
"""Three copies of CIFAR's images, "to ensure that each group had enough data" (H.8); none for ResNet-18."""
NETWORKS: Mapping[str, Mapping[str, Any]] = {"fashion-mnist": LEAF, "cifar-10": MOBILE, "cifar-100": MOBILE}
RESIDUAL: Mapping[str, Mapping[str, Any]] = {
    "cifar-10": {"model": "resnet18"},
    "cifar-100": {"model": "resnet18"},
}
MEASURES = {"local": ("accuracy", "known"), "global": ("accuracy", "newcomers")}
NOTE = (
    "The last round, not the one of best training accuracy; the last batch of an epoch is kept; "
    "corruptions are our own, 11 for 15. CIFAR's images are copied after they are dealt, so that no device "
    "is tested on what it trains on. MobileNetV2 and ResNet-18 begin with random weights, where the "
    "paper's were trained on ImageNet."
)
NEWCOMERS = "Newcomers get one model, the one with the lowest loss on their labels; in the paper a mixture."

FEDAVG = Method("FedAvg", "fedavg", changes=LAST)
IFCA = Method("IFCA", "ifca", changes={**COMMON, **THREE}, note="One draw of the initial models.")
CFL3 = Method("CFL (3)", "cfl", changes={**COMMON, "most": 3})
FESEM = Method("FeSEM", "fesem", changes={**COMMON, **THREE})
FEDEM = Method("FedEM", "fedem", "paper-fedrc", note=NEWCOMERS)
FEDRC = Method("FedRC", "fedrc")
CFL = Method("CFL", "cfl", changes=COMMON)
TUNED = Method(
    "FedRC-FT", "fedrc", changes={"predict": "tuned"}, note="Newcomers train once more too, by their labels."
)
FEDSOFT = Method("FedSoft", "fedsoft")
DEFAULT = Method("FedRC (default)", "fedrc", "default", note="Our default, which the paper does not have.")
PERSONAL = [
    Method(label, name, changes={"epochs": 1, "batch_size": 128})
    if name == "apfl"
    else Method(label, name, changes={"batch_size": 128})
    for label, name in (("pFedMe", "pfedme"), ("APFL", "apfl"))
]


def table(
    number: int,
    title: str,
    networks: Mapping[str, Mapping[str, Any]],
    methods: Sequence[Method],
    clients: int = 300,
) -> Table:
    """One column, named as the data set."""
    return Table(
        paper="fedrc",
        number=number,
        title=f"FedRC, Table {number}: {title}",
        measures=MEASURES,
        datasets=tuple(networks),
        methods=methods,
        columns=[
            Column(
                dataset,
                ("local", "global"),
                {"shift": "fedrc", "level": 1, "clients": clients, "rounds": 200, "held_out": 0.0},
                only=(dataset,),
            )
            for dataset in networks
        ],
        by_dataset=networks,
        note=NOTE,
    )


TABLES: Sequence[Table] = (
    table(
        1,
        "accuracy in percent, 300 devices, 200 rounds",
        {name: network for name, network in NETWORKS.items() if name != "cifar-100"},
        (FEDAVG, IFCA, CFL3, FESEM, FEDEM, FEDRC, CFL, FEDSOFT, TUNED, DEFAULT),
    ),
    table(
        2,
        "ResNet-18, 100 devices, 200 rounds",
        RESIDUAL,
        (FEDAVG, IFCA, CFL, CFL3, FESEM, FEDEM, FEDRC, DEFAULT),
        clients=100,
    ),
    table(
        4,
        "with personal models, 300 devices, 200 rounds",
        NETWORKS,
        (FEDAVG, IFCA, CFL3, FESEM, FEDEM, FEDRC, *PERSONAL, CFL, FEDSOFT, TUNED, DEFAULT),
    ),
    Table(
        paper="fedrc",
        number=5,
        title="FedRC, Table 5: local epochs, 300 devices, 200 rounds",
        measures=MEASURES,
        datasets=("cifar-10",),
        methods=(FEDAVG, IFCA, FESEM, FEDSOFT, FEDEM, FEDRC),
        columns=[
            Column(
                f"{epochs} epochs",
                ("local", "global"),
                {
                    "shift": "fedrc",
                    "level": 1,
                    "clients": 300,
                    "rounds": 200,
                    "held_out": 0.0,
                    "changes": {"epochs": epochs},
                },
            )
            for epochs in (1, 5)
        ],
        by_dataset=NETWORKS,
        note=NOTE,
    ),
)
