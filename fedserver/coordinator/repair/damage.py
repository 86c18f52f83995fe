"""Damaged files of a run, found while the server works, and what becomes of the run then.

Files are verified when they are used: the reports of a round once they were combined and before the result
counts, large models whenever a part of them is read (`fedserver.store.content.checked`), the models of a task
when a device says that it got wrong bytes, and all at leisure by the caretaker (`repair.caretaker`). What is
damaged is restored from its copy or from memory, with the same bits. Otherwise

- a damaged report of the open round is withdrawn, and its device is asked again. The report had been
  acknowledged, so this is logged as an error, in the server's log and in the run's log;
- a run whose current models are damaged goes back to the newest sound checkpoint, like a roll back, and a
  round whose reports were to be combined with them ends.

Everything here runs in turn (`Coordinator.in_turn`), except for the reading of files.
"""

import asyncio
import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from fedserver.store.content.blob_cache import BlobCache
from fedserver.store.integrity.records import ReportRecord
from fedserver.store.integrity.redundancy import DamagedRow
from fedserver.store.store import Storage
from shoal.core.engine.events import Damaged, RolledBack
from shoal.core.engine.rollback import rolled_back
from shoal.core.engine.rounds import Stage
from shoal.core.errors import DataFault, NotFound
from shoal.core.types import DeviceId

if TYPE_CHECKING:
    from fedserver.coordinator.runs import Run

log = logging.getLogger("shoal.server")

COMPLAINT_SECONDS = 10.0
"""Seconds in which a blob is not read again because another device complains about it: complaints are cheap
for devices, and reading a large model is not."""
STALE = 600.0
"""Seconds after the repair of a blob in which a device may still complain about what it got before."""
ROW_LOST = "its row in the database is lost"
WITHDRAWN = "its report was damaged on the server's disk"


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


async def withdraw(run: "Run", round: int, lost: Mapping[DeviceId, str], stage: Stage = Stage.OPEN) -> None:
    """In turn: no longer count these reports of the round, and ask their devices again.

    stage: nothing happens in another one. Only the reduction withdraws reports that are being combined.
    """
    if not run.active or (run.engine.round, run.engine.stage) != (round, stage):
        return
    lost = {device: why for device, why in lost.items() if device in run.engine.reported}
    for device, why in lost.items():
        await run.storage.when_space(run.storage.reports.withdraw, run.run, round, device)
        said = f"an ACKNOWLEDGED report of round {round} is lost and requested again: {why}"
        log.error("run %s: %s: %s", run.run, device, said)
        await run.note(said, device)
    if lost:
        await run.advance(Damaged(round, tuple(sorted(lost)), WITHDRAWN))


async def restored(blobs: BlobCache, name: str, storage: Storage) -> tuple[bool, str]:
    """Whether a blob was damaged and is sound again, and if it is not, what is wrong with it."""
    before = len(storage.blobs.restored)
    lost = await storage.damage(name)
    is_restored = bool(lost) and await storage.call(blobs.restore, name)
    if is_restored:
        storage.blobs.restored.append(f"{lost}; it was written again from memory")
        lost = ""
    return not lost and len(storage.blobs.restored) > before, lost


async def examine(run: "Run", names: Iterable[str]) -> tuple[bool, str]:
    """Verify blobs that the run has sent or will send, and restore them.

    Returns whether any was damaged, and what is wrong with the first that could not be restored.
    """
    damaged, first = False, ""
    for name in sorted(set(names)):
        again, lost = await restored(run.blobs, name, run.storage)
        if again:
            run.repairs[name] = time.monotonic()
            log.error("run %s: %s", run.run, run.storage.blobs.restored[-1])
            await run.note(run.storage.blobs.restored[-1])
        damaged, first = damaged or again or bool(lost), first or lost
    return damaged, first


def were_damaged(run: "Run", names: Iterable[str]) -> bool:
    """Whether a blob was repaired lately: a device may have got its bytes before.

    What was repaired before the server's start, or by it, is not known, so that is supposed of all blobs of
    the round that was open then.
    """
    now = time.monotonic()
    if run.engine.round == run.resumed and now - run.loaded < STALE:
        return True
    return any(now - run.repairs.get(name, -STALE) < STALE for name in names)


def complained(run: "Run", names: Iterable[str]) -> list[str]:
    """Those of the blobs about which no device has complained lately."""
    now = time.monotonic()
    fresh = [
        name
        for name in sorted(set(names))
        if now - run.complaints.get(name, -COMPLAINT_SECONDS) >= COMPLAINT_SECONDS
    ]
    run.complaints = {name: at for name, at in run.complaints.items() if now - at < COMPLAINT_SECONDS}
    run.complaints.update(dict.fromkeys(fresh, now))
    return fresh


async def sound_checkpoint(run: "Run", storage: Storage, below: int) -> int:
    """The newest round before `below` whose checkpoint is sound. Raises NotFound."""
    for number, names in await storage.call(storage.runs.checkpoints, run.run):
        if number < below and not await lost_blob(storage, names):
            try:
                await run.storage.call(run.blobs.load_state, run.state_type, number)
            except (DamagedRow, DataFault):
                continue
            return number
    raise NotFound(f"run {run.run} has no other sound checkpoint", "restore a backup of the state folder")


async def begin_again(run: "Run", round: int, found: str) -> None:
    """In turn: the reports of the round cannot be combined, because a model that they began with is lost."""
    if not run.active or (run.engine.round, run.engine.stage) != (round, Stage.REDUCING):
        return
    reported = sorted(run.engine.reported)
    for device in reported:
        await run.storage.when_space(run.storage.reports.withdraw, run.run, round, device)
    run.engine.feed(Damaged(round, tuple(reported), found))  # whose tasks no one gets: the round ends here
    await go_back(run, found)


async def go_back(run: "Run", found: str) -> None:
    """In turn: continue from the newest sound checkpoint, because the current models are lost."""
    if run.engine.stage is Stage.REDUCING:
        return  # the models of the next round are made just now, and the damaged ones are not needed then
    broken = run.engine.round
    try:
        number = await sound_checkpoint(run, run.storage, broken)
    except NotFound:
        log.error("run %s: %s, and there is no other checkpoint", run.run, found)
        await run.pause(f"its current models are lost ({found}), and there is no older checkpoint")
        return
    earlier = await run.storage.call(run.blobs.load_state, run.state_type, number)
    reason = (
        f"the current models are lost ({found}): the run went back to those after round {earlier.progress}"
    )
    log.error("run %s: %s", run.run, reason)
    state = rolled_back(run.engine.state, earlier)
    run.recorder.rolled_back(number)
    await run.feed(RolledBack(state, reason))
    await run.storage.when_space(run.storage.runs.drop_checkpoint, run.run, broken)
    await run.advance()
