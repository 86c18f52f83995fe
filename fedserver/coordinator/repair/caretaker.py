"""The caretaker looks after what is stored while the server works.

Every few seconds it makes a second copy of the models that the runs continue from, where there is none. All
the time, slowly, it reads what is stored and compares it with its hashes and checksums: the models of each
run, the reports of open rounds, the copies, and the rows of the database. So damage is found while there is
still a sound copy, and not only when the data are needed. Uploads go that were left for no report.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Any

from fedserver.coordinator.repair import damage
from fedserver.coordinator.runs import Run
from fedserver.store.integrity.redundancy import DamagedRow
from fedserver.store.store import Storage
from shoal.core.engine.stages import Stage
from shoal.core.errors import DataFault, DiskFull, NotFound

log = logging.getLogger("shoal.server")

COPY_SECONDS = 2.0
"""Seconds between two looks for models that have no copy yet."""
CHECK_SECONDS = 600.0
"""Seconds between two passes over all that is stored."""
LEFT_SECONDS = 3600.0
"""Seconds after which an upload is deleted that no one goes on with, as of a device that never returned."""
BYTES_PER_SECOND = 32 << 20
"""How many bytes a pass reads per second."""


class Caretaker:
    """`work` ends only by an error. runs: those that there are. in_turn: of the coordinator. restoring:
    whether runs are still being restored after the start, which looks at the same files."""

    def __init__(
        self,
        storage: Storage,
        runs: Callable[[], list[Run]],
        in_turn: Callable[[Coroutine[Any, Any, None]], Awaitable[None]],
        restoring: Callable[[], bool],
    ) -> None:
        self._storage, self._runs, self._in_turn, self._restoring = storage, runs, in_turn, restoring
        self._copied: set[str] = set()

    async def work(self) -> None:
        passed, loop = 0.0, asyncio.get_running_loop()
        while True:
            await asyncio.sleep(COPY_SECONDS)
            if self._restoring() or self._storage.full:
                continue
            await self.copy()
            if loop.time() - passed >= CHECK_SECONDS:
                if passed:
                    await self.check(BYTES_PER_SECOND)
                passed = loop.time()

    async def copy(self) -> None:
        """Make the copies that are missing, and delete those that are not needed any more."""
        newest = await self._storage.call(self._storage.runs.newest_blobs)
        try:
            newest |= await self._in_use()
        except DamagedRow:  # of a channel: its models are not known, so their copies stay
            newest |= self._copied
        if newest != self._copied:
            try:
                await asyncio.to_thread(self._storage.blobs.keep_copies, newest)
            except DiskFull as full:
                log.warning("the disk is full; models are without a second copy: %s", full)
            else:
                self._copied = newest

    async def check(self, pace: float = 0.0) -> None:
        """One pass over everything. Damage is repaired, or the runs get on without what is damaged.

        pace: bytes that are read per second at most; 0 for no limit.
        """
        await self._storage.call(self._storage.store.database.check)
        owing = {device for run in self._runs() if run.active for device in run.engine.plan.tasks}
        await asyncio.to_thread(self._storage.blobs.discard_old, time.time() - LEFT_SECONDS, owing)
        for run in self._runs():
            try:
                await self._check_run(run, pace)
            except (DamagedRow, DataFault) as error:
                log.error("run %s: %s", run.run, error)
        with suppress(DamagedRow):  # of a channel, which was logged with all rows that are damaged
            if lost := await damage.lost_blob(self._storage, sorted(await self._in_use()), pace):
                log.error("a release in use: %s; let its channel have another: fedserver release use", lost)
        for name in sorted(self._copied):
            if not await asyncio.to_thread(self._storage.blobs.copies.check, name):
                log.error("the copy of blob %s was damaged, and is made again", name[:12])
                self._copied = set()

    async def _in_use(self) -> set[str]:
        """The blobs of the releases that channels have, as far as these can be read."""
        names: set[str] = set()
        for move in (await self._storage.call(self._storage.releases.channels)).values():
            with suppress(DamagedRow, DataFault, NotFound):
                names |= (await self._storage.call(self._storage.releases.get, move.release)).blobs
        return names

    async def _check_run(self, run: Run, pace: float) -> None:
        for place, (number, names) in enumerate(
            await self._storage.call(self._storage.runs.checkpoints, run.run)
        ):
            if place == 0:
                await self._in_turn(self._check_newest(run, number, names))
            elif found := await damage.lost_blob(self._storage, names, pace):
                await self._in_turn(self._drop(run, number, found))
        if run.active and run.engine.stage is Stage.OPEN:
            number, expected = run.engine.round, sorted(run.engine.reported)
            records = await self._storage.call(self._storage.reports.of_round, run.run, number)
            if lost := await damage.lost_reports(self._storage, records, expected, pace):
                await self._in_turn(run.withdraw(number, lost))

    async def _check_newest(self, run: Run, number: int, names: list[str]) -> None:
        current = await self._storage.call(self._storage.runs.checkpoints, run.run)
        if not current or current[0][0] != number:
            return
        _, lost = await run.repairs.examine(names)
        if lost and run.active:
            await run.go_back(lost)

    async def _drop(self, run: Run, number: int, found: str) -> None:
        kept = [each for each, _ in await self._storage.call(self._storage.runs.checkpoints, run.run)]
        if number in kept[1:]:
            await damage.drop_checkpoint(self._storage, run.run, number, found)
