"""Series of runs: each goes on from the release that a channel has when its time comes.

    the latest run is over, or none of its rounds has trained --> its period is over --> the next one starts

A series is nothing but its runs: what they were asked for says how long a period is, and that the next run is
stored ends the time of the former one. So a server that is killed between two steps starts none twice.
"""

import asyncio
import logging
import time
from collections.abc import Iterator
from dataclasses import replace

from fedserver.coordinator.known_runs import KnownRuns
from fedserver.coordinator.runs import InTurn, Run
from fedserver.coordinator.starting import Starting
from fedserver.store.records import Standing
from fedserver.store.store import Storage
from shoal.core.engine.series import next_name, number_of, seconds_left
from shoal.core.engine.stages import Stage
from shoal.core.errors import ShoalError
from shoal.core.types import RunId

log = logging.getLogger("shoal.server")

TRY_AGAIN = 60.0
"""Seconds from when a run could not be started to the next attempt; or a period, if that is shorter."""
SKIPPED = "skipped, as too few devices had new data by the time of the next run"


class Series:
    """The series of a server. _failed: for the latest run of a series, when the next could not start, and
    why."""

    def __init__(self, storage: Storage, runs: KnownRuns, in_turn: InTurn, starting: Starting) -> None:
        self._storage, self._runs, self._in_turn, self._starting = storage, runs, in_turn, starting
        self._failed: dict[RunId, tuple[float, str]] = {}

    def time_left(self, run: Run) -> float | None:
        """Seconds until the run starts that follows this one; None if none does."""
        if not _goes_on(run) or self._latest(run) is not run:
            return None
        return seconds_left(run.spec.every, time.time() - run.created, time.monotonic() - run.loaded)

    async def start_due(self) -> None:
        """Start what has to start now. What cannot be started is tried again later."""
        if self._runs.recovery.pending:  # a later run of a series may be among those
            return
        for run in [each for each in self._runs.values() if self._is_due(each)]:
            waits = min(TRY_AGAIN, run.spec.every)
            last, _ = self._failed.get(run.run, (-waits, ""))
            if time.monotonic() - last >= waits:
                try:
                    await self._follow(run)
                    self._failed.pop(run.run, None)
                except Exception as error:  # of a plug-in, it may be any, and the server goes on
                    self._failed[run.run] = (time.monotonic(), str(error))
                    bug = None if isinstance(error, ShoalError) else error
                    log.warning("the run that follows %s cannot be started: %s", run.run, error, exc_info=bug)

    def notices(self) -> tuple[str, ...]:
        """A sentence for each series whose next run cannot start."""
        return (*self._not_started(), *self._not_read())

    def _not_started(self) -> Iterator[str]:
        yield from (
            f"the run that follows {run.run} cannot be started: {self._failed[run.run][1]}; it is retried."
            f" To end the series: fedserver run stop {run.run}"
            for run in self._runs.values()
            if run.run in self._failed and self._is_due(run)
        )

    def _not_read(self) -> Iterator[str]:
        """Of the series that stop at a run that cannot be read."""
        for run in self._runs.values():
            if self.time_left(run) is not None and (later := self._unreadable_after(run)):
                yield (
                    f"no run follows {run.run}, as {later} cannot be read. Restore a backup, or let it go"
                    f" on without it: fedserver run remove {later}"
                )
        for name, (record, _) in self._runs.recovery.unreadable.items():
            if record is None or not record.spec.every or record.standing is Standing.STOPPED:
                continue
            if all(run.spec.series != record.spec.series for run in self._runs.values()):
                yield f"no run follows {name}, as it cannot be read. Restore a backup, or start another one"

    async def end(self, run: Run) -> None:
        """In turn: start no more runs of the series of this one. Safe to repeat."""
        if run.spec.series and (latest := self._latest(run)):
            await self._let_end(latest)

    async def removes(self, run: Run) -> None:
        """In turn, before a run is removed that none follows: the one before it must not take its place."""
        if run.spec.series and self._latest(run) is run and (earlier := self._latest(run, but=run)):
            await self._let_end(earlier)

    def _latest(self, run: Run, but: Run | None = None) -> Run | None:
        """The latest run of the same series, but for this one. It is asked for each run at each tick, and a
        series may have thousands: the search begins with the latest of all."""
        same = (each for each in reversed(self._runs.values()) if each.spec.series == run.spec.series)
        return next((each for each in same if each is not but), None)

    async def _let_end(self, run: Run) -> None:
        if _goes_on(run):
            spec = replace(run.spec, every=0.0)
            await self._storage.when_space(self._storage.runs.respecify, run.run, spec)
            run.spec = spec
            await run.note("no run follows it")
            run.changed.fire()

    def _is_due(self, run: Run) -> bool:
        idle = run.engine.stage is Stage.WAITING and run.engine.state.progress == 0 and not run.paused
        if (run.active and not idle) or self.time_left(run) != 0.0:
            return False
        return not self._unreadable_after(run)

    def _unreadable_after(self, run: Run) -> RunId:
        """A later run of the same series that cannot be read; "" if there is none. It may be the one that an
        operator has stopped, so no run starts after it."""
        series = run.spec.series
        this, names = number_of(run.run, series), self._runs.recovery.unreadable
        return next((name for name in names if number_of(name, series) > this), "")

    async def _follow(self, run: Run) -> None:
        await self._in_turn(asyncio.sleep(0))  # the end of the former run is stored, and its release
        removed = await self._storage.call(self._storage.runs.removed)
        name = next_name(run.spec.series, {*self._runs, *self._runs.recovery.unreadable, *removed})
        spec, recipe = await self._starting.prepared(replace(run.spec, name=name))

        async def begin() -> None:
            if self._is_due(run):  # an operator may have ended the series meanwhile
                if run.active:
                    await run.end(Standing.FINISHED, SKIPPED)
                await self._starting.begin(spec, recipe, None)

        await self._in_turn(begin())


def _goes_on(run: Run) -> bool:
    return run.spec.every > 0.0 and run.standing is not Standing.STOPPED
