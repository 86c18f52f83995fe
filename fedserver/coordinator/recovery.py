"""The runs come back after a start, each once its files were checked; the server answers meanwhile.

A run is not there for anybody before its newest checkpoint and the reports of its open round were read and
hashed, so nothing that is damaged is handed out or counted. What is damaged goes to the quarantine, and then

- a report of the open round is withdrawn and its device asked again. It had been acknowledged, so that is
  said loudly, in the server's log and in the run's;
- a run whose newest checkpoint is damaged goes back to the newest one that is sound, and does the rounds from
  there again; without any it is set aside, with the reason.

Older checkpoints are read later, slowly, while the server works: one that is damaged is dropped.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace

from fedserver.coordinator.runs import Recipe, recipe_of
from fedserver.store.records import RunRecord, Standing
from fedserver.store.store import BlobCacheCalls, Storage
from shoal.core.algorithm import State
from shoal.core.errors import NotFound, ShoalError, StorageFault
from shoal.core.types import RunId

log = logging.getLogger("shoal.server")

AT_ONCE = 1.0
"""Seconds that a start waits for the runs: what is small is there before anybody calls."""

Add = Callable[[RunRecord, Recipe, State, BlobCacheCalls], Awaitable[None]]


class Recovery:
    """pending: the runs that are not back yet. unreadable: those that cannot come back, and why.

    add: called with a run that can go on, its recipe, its state and what it has stored.
    """

    def __init__(self, storage: Storage, add: Add) -> None:
        self._storage, self._add, self._check = storage, add, StartupCheck(storage)
        self.pending: dict[RunId, RunRecord] = {}
        self.unreadable: dict[RunId, tuple[RunRecord, str]] = {}
        self._order: list[RunId] = []

    async def begin(self) -> "asyncio.Task[None]":
        """Take up all runs; what goes on with that, done or not. Raises what the disk does until then."""
        records = await self._storage.runs.all()
        self.pending = {record.run: record for record in records}
        self._order = list(self.pending)
        restoring = asyncio.create_task(self._all(records))
        await asyncio.wait([restoring], timeout=AT_ONCE)
        if restoring.done():
            restoring.result()
        return asyncio.create_task(self._older(restoring, records))

    def age(self, run: RunId) -> int:
        """The runs that a start found, oldest first, and those that are new after them."""
        return self._order.index(run) if run in self._order else len(self._order)

    async def _all(self, records: list[RunRecord]) -> None:
        for record in sorted(records, key=lambda record: record.standing is not Standing.ACTIVE):
            await self._one(record)
        (log.error if self._check.damaged else log.info)(self._check.summary())

    async def _older(self, restoring: "asyncio.Task[None]", records: list[RunRecord]) -> None:
        """What the runs could go back to, once they are all there."""
        await restoring
        for record in records:
            if record.run not in self.unreadable:
                await self._check.check_older(record.run)

    async def _one(self, record: RunRecord) -> None:
        blobs = self._storage.blob_cache(record.run)
        try:
            record = await self._check.check(record)
            recipe = await asyncio.to_thread(recipe_of, record.spec)
            state = await blobs.load_state(recipe.state)
        except StorageFault:
            raise
        except (ShoalError, TypeError) as error:
            log.error("run %s cannot be read: %s", record.run, error)
            self.unreadable[record.run] = (record, str(error))
        else:
            if record.standing is Standing.ACTIVE:
                log.info("run %s goes on in round %d", record.run, record.round)
            await self._add(record, recipe, state, blobs)
        del self.pending[record.run]


PACE = 32 << 20
"""Bytes of older checkpoints that are read in a second."""


class StartupCheck:
    """One start's check. blobs, size: how many were read, and their bytes; damaged: what was found."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self.blobs, self.size = 0, 0
        self.damaged: list[str] = []

    async def check(self, record: RunRecord) -> RunRecord:
        """The run as it can go on. Raises NotFound when no checkpoint of it is sound."""
        record = await self._with_a_sound_checkpoint(record)
        if record.asked:
            await self._withdraw_damaged_reports(record)
        return record

    async def check_older(self, run: RunId) -> None:
        """The checkpoints that the run could go back to; it works meanwhile, and may remove some itself."""
        for number, names in (await self._storage.runs.checkpoints(run))[1:]:
            found = await self._damage(names, PACE)
            if found and number in dict(await self._storage.runs.checkpoints(run)):
                await self._drop(run, number, found)

    def summary(self) -> str:
        """In one line, for people."""
        what = f"{self.blobs} blobs of {self.size / 1e6:.1f} MB"
        if not self.damaged:
            return f"checked {what}: all sound"
        return f"checked {what}: {len(self.damaged)} DAMAGED, the first: {self.damaged[0]}"

    async def _with_a_sound_checkpoint(self, record: RunRecord) -> RunRecord:
        lost: list[tuple[int, str]] = []
        for number, names in await self._storage.runs.checkpoints(record.run):
            if found := await self._damage(names):
                lost.append((number, found))
                continue
            for each in lost:
                await self._drop(record.run, *each)
            return replace(record, round=number, asked=(), title="") if lost else record
        raise NotFound(f"no checkpoint is sound: {lost[0][1]}", "restore a backup of the state folder")

    async def _withdraw_damaged_reports(self, record: RunRecord) -> None:
        for report in await self._storage.reports.of_round(record.run, record.round):
            if found := await self._damage(report.blobs):
                await self._storage.reports.withdraw.when_space(record.run, record.round, report.device)
                said = f"an ACKNOWLEDGED report of round {record.round} is lost, it is asked again: {found}"
                await self._say(record.run, said, report.device)

    async def _drop(self, run: RunId, number: int, found: str) -> None:
        await self._storage.runs.drop_checkpoint.when_space(run, number)
        await self._say(run, f"the checkpoint that round {number} opens with is lost: {found}")

    async def _damage(self, names: Iterable[str], pace: float = float("inf")) -> str:
        """What is wrong with the first of these blobs that is not sound; "" when all are."""
        first = ""
        for name in names:
            size = self._storage.blobs.size(name)
            found = await asyncio.to_thread(self._storage.blobs.damage, name)
            self.blobs, self.size = self.blobs + 1, self.size + size
            if found:
                self.damaged.append(found)
                first = first or found
            await asyncio.sleep(size / pace)
        return first

    async def _say(self, run: RunId, text: str, device: str = "") -> None:
        log.error("run %s: %s%s", run, f"{device}: " if device else "", text)
        await self._storage.journal.log.when_space(run, text, device)
