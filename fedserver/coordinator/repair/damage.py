"""Damaged files of a run, found while the server works, and what is sound of them.

Files are verified when they are used: reports and large models whenever a part of them is read
(`fedserver.store.content.checked`), the models of a task when a device says that it got wrong bytes, and all
at leisure by the caretaker (`repair.caretaker`). What is damaged is restored from its copy or from memory,
with the same bits. Otherwise (`Run.withdraw`, `go_back`)

- a damaged report of the open round is withdrawn, and its device is asked again. The report had been
  acknowledged, so this is logged as an error, in the server's log and in the run's log;
- a run whose current models are damaged goes back to the newest sound checkpoint, like a roll back, and a
  round whose reports were to be combined with them ends.

All of that runs in turn (`Coordinator.in_turn`), except for the reading of files.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress

from fedserver.store.content.blob_cache import BlobCache
from fedserver.store.integrity.redundancy import DamagedRow
from fedserver.store.records import ReportRecord
from fedserver.store.store import Storage
from shoal.core.algorithm import State
from shoal.core.errors import DataFault, NotFound
from shoal.core.types import DeviceId, RunId

log = logging.getLogger("shoal.server")

COMPLAINT_SECONDS = 10.0
"""Seconds in which a blob is not read again because another device complains about it: complaints are cheap
for devices, and reading a large model is not."""
STALE = 600.0
"""Seconds after the repair of a blob in which a device may still complain about what it got before."""
ROW_LOST = "its row in the database is lost"


class DamagedReports(Exception):
    """Reports that were combined are damaged, so the result does not count. `lost` says why, by device."""

    def __init__(self, lost: Mapping[DeviceId, str]) -> None:
        super().__init__(f"the reports of {', '.join(lost)} are damaged")
        self.lost = lost


async def lost_blob(storage: Storage, names: Iterable[str], pace: float = 0.0) -> str:
    """What is wrong with the first of these blobs that is damaged and could not be restored; "" if none is.

    pace: bytes that are read per second at most; 0 for no limit.
    """
    lost = ""
    for name in names:
        found = await storage.damage(name)
        lost = lost or found
        await asyncio.sleep(storage.blobs.size(name) / pace if pace else 0.0)
    return lost


async def drop_checkpoint(storage: Storage, run: RunId, number: int, found: str) -> None:
    """Delete a checkpoint that is damaged. found: how."""
    await storage.when_space(storage.runs.drop_checkpoint, run, number)
    await say(storage, run, f"the checkpoint that round {number} opens with is lost: {found}")


async def drop_report(storage: Storage, run: RunId, round: int, device: DeviceId, found: str) -> None:
    """Let a report that is damaged count no longer. found: how."""
    await storage.when_space(storage.reports.withdraw, run, round, device)
    await say(
        storage, run, f"an ACKNOWLEDGED report of round {round} is lost and requested again: {found}", device
    )


async def say(storage: Storage, run: RunId, text: str, device: DeviceId = "") -> None:
    """Log an error, in the server's log and in the run's log."""
    log.error("run %s: %s%s", run, f"{device}: " if device else "", text)
    await storage.when_space(storage.journal.log, run, text, device)


async def lost_reports(
    storage: Storage, records: Sequence[ReportRecord], expected: Iterable[DeviceId], pace: float = 0.0
) -> dict[DeviceId, str]:
    """Which of the expected reports are damaged or gone, and why."""
    lost = {}
    found = {record.device: record for record in records}
    for device in expected:
        why = await lost_blob(storage, found[device].blobs, pace) if device in found else ROW_LOST
        if why:
            lost[device] = why
    return lost


async def restored(blobs: BlobCache, name: str, storage: Storage) -> tuple[bool, str]:
    """Whether a blob was damaged and is sound again, and if it is not, what is wrong with it."""
    before = len(storage.blobs.restored)
    lost = await storage.damage(name)
    is_restored = bool(lost) and await storage.call(blobs.restore, name)
    if is_restored:
        storage.blobs.restored.append(f"{lost}; it was written again from memory")
        lost = ""
    return not lost and len(storage.blobs.restored) > before, lost


class Repairs:
    """What was damaged of the blobs that a run sends to devices. note: adds a line to the run's log. suspect:
    the round that was open at the start; 0 if none was."""

    def __init__(
        self, blobs: BlobCache, storage: Storage, note: Callable[[str], Awaitable[None]], suspect: int
    ) -> None:
        self.blobs, self._storage, self._note, self._suspect = blobs, storage, note, suspect
        self._began = time.monotonic()
        self._repaired: dict[str, float] = {}
        self._complaints: dict[str, float] = {}

    async def examine(self, names: Iterable[str]) -> tuple[bool, str]:
        """Verify blobs that the run has sent or will send, and restore them.

        Returns whether any was damaged, and what is wrong with the first that could not be restored.
        """
        damaged, first = False, ""
        for name in sorted(set(names)):
            again, lost = await restored(self.blobs, name, self._storage)
            if again:
                self._repaired[name] = time.monotonic()
                found = self._storage.blobs.restored[-1]
                log.error("a blob that devices get was damaged: %s", found)
                await self._note(found)
            damaged, first = damaged or again or bool(lost), first or lost
        return damaged, first

    def were_damaged(self, names: Iterable[str], round: int) -> bool:
        """Whether a blob was repaired lately: a device may have got its bytes before.

        What was repaired before the server's start, or by it, is not known, so that is supposed of all blobs
        of the round that was open then.
        """
        now = time.monotonic()
        if round == self._suspect and now - self._began < STALE:
            return True
        return any(now - self._repaired.get(name, -STALE) < STALE for name in names)

    def complained(self, names: Iterable[str]) -> list[str]:
        """Those of the blobs about which no device has complained lately."""
        now = time.monotonic()
        known = {name: at for name, at in self._complaints.items() if now - at < COMPLAINT_SECONDS}
        fresh = sorted(set(names) - known.keys())
        self._complaints = known | dict.fromkeys(fresh, now)
        return fresh


async def sound_state(
    run: RunId, storage: Storage, load: Callable[[int], State], below: int
) -> tuple[int, State]:
    """The round and the state of the newest checkpoint before round `below` that is sound. load: of a round.
    Raises NotFound."""
    for number, names in await storage.call(storage.runs.checkpoints, run):
        if number < below and not await lost_blob(storage, names):
            with suppress(DamagedRow, DataFault):
                return number, await storage.call(load, number)
    raise NotFound(f"run {run} has no other sound checkpoint", "restore a backup of the state folder")
