"""What a run that starts asks of the budgets of its devices' owners, for its operator.

The server knows what devices have released to it. What their owners allow, and what is left of that, it never
learns (`fedclient.work.failures`): a device that refuses says so before its first task.
"""

import math
from collections.abc import Collection, Iterable

from fedserver.coordinator.answers import ROOM
from fedserver.coordinator.runs import Run
from shoal.core.algorithm import basis_of
from shoal.core.engine.bootstrap import Unstarted
from shoal.core.privacy.asks import read_terms
from shoal.core.privacy.cost import epsilon_of
from shoal.core.types import DeviceId

DELTA = 1e-6
"""At which every report states what was paid."""


def cost_of(run: Run, others: Iterable[Run], able: Collection[DeviceId], paid: Collection[DeviceId]) -> str:
    """In a sentence; "" where it costs nothing. able: the devices that may take part.
    paid: those that have released something with a guarantee in any run."""
    asks = read_terms(run.terms).asks
    found = []
    if asks.descriptor is not None:
        found.append(_of_description(run, others, able, asks.descriptor.epsilon))
    if asks.training is not None:
        epsilon = f" epsilon {asks.training.epsilon:g}" if asks.training.epsilon else ""
        found.append(f"each device pays{epsilon} for its training")
    before = len({*able} & {*paid})
    if found and before and (asks.training is not None or basis_of(run.engine.state) is None):
        found.append(f"{before} of {len(able)} devices have paid for something before: {ROOM}")
    return "; ".join(found)


def again(run: Run, rounds: int, describes: bool) -> float:
    """The epsilon that each device pays at most, at delta `DELTA`, if these rounds of training are repeated.

    describes: whether it has to describe its data again, by another encoder. Infinite where it depends on
    how many samples a device has.
    """
    asks, found = read_terms(run.terms).asks, 0.0
    if describes and asks.descriptor is not None:
        found += asks.descriptor.epsilon
    if rounds and asks.training is not None:
        found += asks.training.epsilon or math.inf
    if rounds and asks.accuracies:
        found += epsilon_of(min(rounds + 1, asks.accuracies) * asks.rho, DELTA)
    return found


def _of_description(run: Run, others: Iterable[Run], able: Collection[DeviceId], epsilon: float) -> str:
    basis = basis_of(run.engine.state)
    price = f"epsilon {epsilon:g} for a description of its data"
    if basis is None:
        return f"each device pays {price}"
    known = set[DeviceId]()
    for each in others:
        theirs = basis_of(each.engine.state)
        if theirs is not None and theirs.names == basis.names:
            known.update(getattr(each.engine.state, "descriptors", ()))
    if_alike = " if its network is that of the earlier run" if isinstance(run.engine.state, Unstarted) else ""
    return (
        f"{len(known & {*able})} of {len(able)} devices have described their data in an earlier run, which "
        f"is not paid again{if_alike}; any other device pays {price}"
    )
