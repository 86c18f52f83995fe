"""The runs come back after a start, each when it was checked; the server answers meanwhile."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from fedserver.coordinator.recipe import Recipe, recipe_of
from fedserver.store.blob_cache import BlobCache
from fedserver.store.records import RunRecord, Standing
from fedserver.store.startup_check import StartupCheck
from fedserver.store.storage import Storage
from fedserver.store.store import Store
from shoal.core.algorithm import State
from shoal.core.errors import ShoalError, StorageFault
from shoal.core.types import RunId

log = logging.getLogger("shoal.server")

AT_ONCE = 1.0
"""Seconds that a start waits for the runs: what is small is there before anybody calls."""

Add = Callable[[RunRecord, Recipe, State, BlobCache], Awaitable[None]]


class Recovery:
    """pending: the runs that are not back yet. unreadable: those that cannot come back, and why.

    add: called with a run that can go on, its recipe, its state and what it has stored.
    """

    def __init__(self, storage: Storage, add: Add) -> None:
        self._storage, self._add, self._scrub = storage, add, StartupCheck(storage)
        self.pending: dict[RunId, RunRecord] = {}
        self.unreadable: dict[RunId, tuple[RunRecord, str]] = {}
        self._order: list[RunId] = []

    async def begin(self) -> "asyncio.Task[None]":
        """Take up all runs; what goes on with that, done or not. Raises what the disk does until then."""
        records = await self._storage(Store.runs)
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
        (log.error if self._scrub.damaged else log.info)(self._scrub.summary())

    async def _older(self, restoring: "asyncio.Task[None]", records: list[RunRecord]) -> None:
        """What the runs could go back to, once they are all there."""
        await restoring
        for record in records:
            if record.run not in self.unreadable:
                await self._scrub.check_older(record.run)

    async def _one(self, record: RunRecord) -> None:
        kept = BlobCache(record.run)
        try:
            record = await self._scrub.check(record)
            recipe = await asyncio.to_thread(recipe_of, record.spec)
            state = await self._storage(kept.load_state, recipe.state)
        except StorageFault:
            raise
        except (ShoalError, TypeError) as error:
            log.error("run %s cannot be read: %s", record.run, error)
            self.unreadable[record.run] = (record, str(error))
        else:
            if record.standing is Standing.ACTIVE:
                log.info("run %s goes on in round %d", record.run, record.round)
            await self._add(record, recipe, state, kept)
        del self.pending[record.run]
