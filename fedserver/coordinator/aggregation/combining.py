"""The reports of a round, combined into the run's next state, and none of them damaged."""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from fedserver.coordinator.aggregation.reduction import StoredReports, in_thread, reduce
from fedserver.coordinator.repair import damage
from fedserver.coordinator.repair.damage import DamagedReports
from fedserver.store.store import Storage
from shoal.core.algorithm import ServerHalf, State
from shoal.core.errors import DiskFull, NotFound, StorageFault, TooManyFiles
from shoal.core.exchange.messages import Message
from shoal.core.server_kit.history.figures import Figures
from shoal.core.types import DeviceId, RunId
from shoal.shell import crash
from shoal.shell.disk import NO_DESCRIPTORS

log = logging.getLogger("shoal.run")

RETRY_SECONDS = 1.0
"""Seconds after which reports whose files could not be opened are combined again."""


@dataclass(frozen=True)
class Combination:
    """What is to be combined. devices: those whose reports count. tasks: of all that were asked. state: that
    the round began with. known: gets what reports say of the models, and the next state, on any thread."""

    run: RunId
    round: int
    devices: Sequence[DeviceId]
    tasks: Mapping[DeviceId, Message]
    server_half: ServerHalf
    state: State
    known: Callable[[Mapping[DeviceId, Figures], State], None]


async def combined(what: Combination, storage: Storage) -> State:
    """The next state of a run. It is computed again as long as the files of the reports cannot be opened, or
    a damaged one cannot be restored for now.

    Raises DamagedReports if the disk changed or lost reports that count, LostTensors if it lost a model that
    is needed, StorageFault, and whatever the algorithm raises.
    """
    while True:
        try:
            return await _combined(what, storage)
        except DiskFull as fault:
            log.warning("run %s: its reports are combined again in a moment: %s", what.run, fault)
            await asyncio.sleep(RETRY_SECONDS)


async def _combined(what: Combination, storage: Storage) -> State:
    records = await storage.call(storage.reports.of_round, what.run, what.round)
    counted = [record for record in records if record.device in what.devices]
    reports = StoredReports(counted, what.tasks, storage.blobs)
    crash.point("server.reducing")
    try:
        if len(counted) < len(what.devices):
            raise NotFound("reports that counted are not stored")
        following = await in_thread(lambda: _reduced(what, reports, storage))
    except (StorageFault, asyncio.CancelledError):
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.errno in NO_DESCRIPTORS:
            # Code may load a module when it first needs it, as numpy does.
            raise TooManyFiles(str(error), "close other connections and files") from error
        if lost := await damage.lost_reports(storage, counted, what.devices):
            raise DamagedReports(lost) from None
        raise
    crash.point("server.reduced")
    return following


def _reduced(what: Combination, reports: StoredReports, storage: Storage) -> State:
    following = reduce(what.server_half, what.state, reports, storage.blobs.make)
    what.known(reports.figures, following)
    return following
