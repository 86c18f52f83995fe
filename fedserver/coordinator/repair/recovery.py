"""Recovery of the runs after a start, each as soon as its files were checked. The server answers meanwhile.

A run becomes available once its newest checkpoint and the reports of its open round were read and hashed, so
that damaged data is never sent or counted. Damaged blobs are moved to the quarantine, and then

- a damaged report of the open round is withdrawn, and its device is asked again. The report had been
  acknowledged, so this is logged as an error, in the server's log and in the run's log;
- a run whose newest checkpoint is damaged goes back to the newest sound one, and repeats the rounds from
  there. If no checkpoint is sound, the run is set aside, with the reason.

The order matters. Active runs come first, because devices wait for them. Within a run the checkpoint comes
before the reports: if the run has to go back, the reports of the newer round are dropped and need not be
checked. Older checkpoints come last, slowly and while the server works, since they are only needed for a
rollback; a damaged one is dropped.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace

from fedserver.coordinator.recipe import Recipe, recipe_of
from fedserver.coordinator.repair import damage
from fedserver.store.content.blob_cache import BlobCache
from fedserver.store.integrity.redundancy import DamagedRow
from fedserver.store.records import RunRecord, Standing
from fedserver.store.store import Storage
from shoal.core.algorithm import State
from shoal.core.errors import DataFault, NotFound, ShoalError, StorageFault, Unavailable
from shoal.core.types import RunId

log = logging.getLogger("shoal.server")

AT_ONCE = 1.0
"""How many seconds a start waits for the runs, so that small ones are available before the first call."""

Add = Callable[[RunRecord, Recipe, State, BlobCache], Awaitable[None]]


class Recovery:
    """Restores the runs of a state folder.

    pending: the runs that have not been restored yet. unreadable: those that cannot be restored, and why.
    add: called with each restored run, its recipe, its state and its blob cache.
    """

    def __init__(self, storage: Storage, add: Add) -> None:
        self._storage, self._add, self._check = storage, add, StartupCheck(storage)
        self.pending: dict[RunId, RunRecord] = {}
        self.unreadable: dict[RunId, tuple[RunRecord | None, str]] = {}
        self._places: dict[RunId, int] = {}

    async def begin(self) -> "asyncio.Task[None]":
        """Begin to restore all runs.

        Returns the task that continues after this call; raises early disk errors.
        """
        records: list[RunRecord] = []
        for run in await self._storage.call(self._storage.runs.names):
            try:
                records.append(await self._storage.call(self._storage.runs.get, run))
            except (DamagedRow, DataFault) as error:
                self._set_aside(run, None, error)
        self.pending = {record.run: record for record in records}
        self._places = {run: place for place, run in enumerate(self.pending)}
        restoring = asyncio.create_task(self._all(records))
        await asyncio.wait([restoring], timeout=AT_ONCE)
        if restoring.done():
            restoring.result()
        return asyncio.create_task(self._older(restoring, records))

    def age(self, run: RunId) -> int:
        """A sort key: the runs found at the start, oldest first, and new runs after them."""
        return self._places.get(run, len(self._places))

    async def _all(self, records: list[RunRecord]) -> None:
        for record in sorted(records, key=lambda record: record.standing is not Standing.ACTIVE):
            await self._one(record)
        (log.error if self._check.damaged else log.info)(self._check.summary())

    async def _older(self, restoring: "asyncio.Task[None]", records: list[RunRecord]) -> None:
        """Check the checkpoints that the runs could go back to, once all runs are restored."""
        await restoring
        for record in records:
            if record.run not in self.unreadable:
                await self._check.check_older(record.run)

    async def _one(self, record: RunRecord) -> None:
        blobs = self._storage.blob_cache(record.run)
        try:
            record, state, recipe = await self._restored(record, blobs)
            if record.standing is Standing.ACTIVE:
                log.info("run %s goes on%s", record.run, f": {record.title}" if record.asked else "")
            await self._add(record, recipe, state, blobs)
        except DamagedRow as damaged:
            self._set_aside(record.run, record, damaged)
        except (StorageFault, Unavailable):  # the server has stopped; the next start restores the run
            raise
        except Exception as error:
            self._set_aside(record.run, record, error)
        del self.pending[record.run]

    async def _restored(self, record: RunRecord, blobs: BlobCache) -> tuple[RunRecord, State, Recipe]:
        """The run as it can continue. A checkpoint that cannot be read is treated like a damaged one."""
        recipe = await asyncio.to_thread(recipe_of, record.spec)
        while True:
            record = await self._check.check(record)
            try:
                return record, await self._storage.call(blobs.load_state, recipe.state), recipe
            except (DamagedRow, DataFault) as error:
                if len(await self._storage.call(self._storage.runs.versions, record.run)) < 2:
                    raise
                record = await self._check.drop(record, str(error))

    def _set_aside(self, run: RunId, record: RunRecord | None, error: Exception) -> None:
        """One run that cannot be read keeps neither the server nor the other runs from working."""
        known = isinstance(error, ShoalError | TypeError)
        log.error("run %s cannot be read: %s", run, error, exc_info=None if known else error)
        reason = str(error) if known else f"{type(error).__name__}: {error}"
        self.unreadable[run] = (record, reason)


KNOWN_SOUND_SECONDS = 600.0
"""Seconds in which a start does not read a blob again that it found sound: checkpoints share blobs."""
BYTES_PER_SECOND = 32 << 20
"""How many bytes of older checkpoints are read per second."""


class StartupCheck:
    """The check of a start. blobs, size: how many blobs were read, and their bytes. damaged: what was
    found."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self.blobs, self.size = 0, 0
        self.damaged: list[str] = []

    async def check(self, record: RunRecord) -> RunRecord:
        """The run as it can continue. Raises NotFound if none of its checkpoints is sound."""
        record = await self._with_a_sound_checkpoint(record)
        if record.asked:
            await self._withdraw_damaged_reports(record)
        return record

    async def drop(self, record: RunRecord, found: str) -> RunRecord:
        """The run without its newest checkpoint, which cannot be read."""
        (number, _), (older, _), *_ = await self._storage.call(self._storage.runs.checkpoints, record.run)
        await damage.drop_checkpoint(self._storage, record.run, number, found)
        return _back_at(record, older)

    async def check_older(self, run: RunId) -> None:
        """Check the checkpoints that the run could go back to.

        It works meanwhile, and may delete some itself.
        """
        for number, names in (await self._storage.call(self._storage.runs.checkpoints, run))[1:]:
            found = await self._damage(names, BYTES_PER_SECOND)
            if found and number in dict(await self._storage.call(self._storage.runs.checkpoints, run)):
                await damage.drop_checkpoint(self._storage, run, number, found)

    def summary(self) -> str:
        """The result in one line, for the log."""
        what = f"{self.blobs} blobs of {self.size / 1e6:.1f} MB"
        if not self.damaged:
            return f"checked {what}: all sound"
        return f"checked {what}: {len(self.damaged)} DAMAGED, the first: {self.damaged[0]}"

    async def _with_a_sound_checkpoint(self, record: RunRecord) -> RunRecord:
        lost: list[tuple[int, str]] = []
        for number, names in await self._storage.call(self._storage.runs.checkpoints, record.run):
            if found := await self._damage(names):
                lost.append((number, found))
                continue
            for each in lost:
                await damage.drop_checkpoint(self._storage, record.run, *each)
            return _back_at(record, number) if lost else record
        raise NotFound(f"no checkpoint is sound: {lost[0][1]}", "restore a backup of the state folder")

    async def _withdraw_damaged_reports(self, record: RunRecord) -> None:
        for report in await self._storage.call(self._storage.reports.of_round, record.run, record.round):
            if found := await self._damage(report.blobs):
                await damage.drop_report(self._storage, record.run, record.round, report.device, found)

    async def _damage(self, names: Iterable[str], pace: float = float("inf")) -> str:
        """What is wrong with the first of these blobs that is not sound; "" if all are."""
        first = ""
        for name in names:
            found = await self._storage.damage(name, KNOWN_SOUND_SECONDS)
            size = self._storage.blobs.size(name)
            self.blobs, self.size = self.blobs + 1, self.size + size
            if found:
                self.damaged.append(found)
                first = first or found
            await asyncio.sleep(size / pace)
        return first


def _back_at(record: RunRecord, round: int) -> RunRecord:
    """The run, as it was before this earlier round opened."""
    return replace(record, round=round, asked=(), stepped_in=(), title="")
