"""Shoal: clustered federated learning for fleets whose data disagree.

    import shoal

    fleet = shoal.Fleet({"ward-a": (xa, ya), "ward-b": (xb, yb)}, test=0.2)
    result = shoal.simulate("flux", fleet, model=Net, latent="hidden", rounds=10, seed=42)
    result.clusters, result.accuracy, result.history, result.models["c0"], result.to_frame()
    result.place(x_new)                                    # an unlabeled newcomer: a cluster, or a reason
    result.compare("fedavg", "ifca").plot()                # on the same fleet, with the same seed
    shoal.Client("server/operator.sock").start("flux", rounds=20).result()   # the same by a daemon

Fleets to try it on are in the distribution `shoal-lab`: `shoal_lab.fleets.px(shoal_lab.datasets.digits())`.

Importing this package loads nothing else: each name below is loaded when it is first used.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shoal.checks import check as check
    from shoal.client import Client as Client
    from shoal.core.algorithm import algorithm as algorithm
    from shoal.core.data.dataset import Dataset as Dataset
    from shoal.core.device_kit.learner import Learner as Learner
    from shoal.core.errors import ShoalError as ShoalError
    from shoal.result import Comparison as Comparison
    from shoal.result import Placement as Placement
    from shoal.result import Result as Result
    from shoal.simulation.fleet import Fleet as Fleet
    from shoal.simulation.simulate import algorithms as algorithms
    from shoal.simulation.simulate import simulate as simulate

__version__ = "0.2.0"

_WHERE = {
    "Client": "shoal.client:Client",
    "Comparison": "shoal.result:Comparison",
    "Dataset": "shoal.core.data.dataset:Dataset",
    "Fleet": "shoal.simulation.fleet:Fleet",
    "Learner": "shoal.core.device_kit.learner:Learner",
    "Placement": "shoal.result:Placement",
    "Result": "shoal.result:Result",
    "ShoalError": "shoal.core.errors:ShoalError",
    "algorithm": "shoal.core.algorithm:algorithm",
    "algorithms": "shoal.simulation.simulate:algorithms",
    "check": "shoal.checks:check",
    "simulate": "shoal.simulation.simulate:simulate",
}
__all__ = ["__version__", *_WHERE]


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'shoal' has no attribute {name!r}")
    module, _, attribute = _WHERE[name].partition(":")
    found = importlib.import_module(module)
    return getattr(found, attribute) if attribute else found


def __dir__() -> list[str]:
    return sorted([*globals(), *_WHERE])
