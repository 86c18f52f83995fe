"""Named crash points: places where a test can kill the process, so that every step is tried with a kill -9.

SHOAL_CRASH_AT=server.report-stored      die when this point is passed
SHOAL_CRASH_AT=disk.renamed:3            die when it is passed for the third time

Without the variable a point does nothing. The process is killed by SIGKILL: no handlers run, nothing is
flushed.
"""

import os
import signal
from collections.abc import Mapping

from shoal.core.errors import ConfigError, near

VARIABLE = "SHOAL_CRASH_AT"

POINTS: Mapping[str, str] = {
    "disk.written": "a file's bytes are written and not yet synced",
    "disk.synced": "a file's bytes are synced and it does not have its name yet",
    "disk.renamed": "a file has its name, and its folder is not yet synced",
    "server.folder-named": "a new name for the folder of blobs is committed, and it still has the former one",
    "server.booted": "this start has its number in the database, nothing else is changed",
    "server.scrubbed": "what the last stop left behind is removed, no run is back yet",
    "server.run-stored": "a new run is committed and its operator does not know",
    "server.opened": "the devices that a round asks are committed, and no task was offered",
    "server.stepped-in": "the devices that step in are committed, and no task was offered to them",
    "server.offered": "a task is offered and was not given",
    "server.chunk-written": "a piece of an upload is in its file, unsynced",
    "server.upload-whole": "an upload is whole, checked and synced, and not answered",
    "server.report-checked": "a report is good and nothing of it is stored",
    "server.spooled": "the blobs that reports carry are synced in the spool, and have no files of their own",
    "server.report-blobs-moved": "a report's blobs are among those that stay, its row is not committed",
    "server.report-committing": "a report's row is written and not committed",
    "server.report-stored": "a report is committed and was not counted",
    "server.report-counted": "a report was counted and its receipt is not sent",
    "server.reducing": "all reports are in and are about to be combined",
    "server.reduced": "the next state exists only in memory",
    "server.graph-taken": "a run has the graph of its first weights, whose round is not over",
    "server.state-stored": "the blobs of the next state are on disk, and no row refers to them",
    "server.round-committing": "the end of a round is written and not committed",
    "server.round-saved": "the end of a round is committed, what it does not need is still there",
    "server.round-tidied": "the end of a round is committed and cleaned up, and nothing else was sent",
    "server.run-ended": "the end of a run is committed, and no one was notified",
    "server.release-committing": "a release is written and not committed",
    "server.release-stored": "a release is committed and its operator does not know",
    "server.channel-moved": "a channel has another release and its operator does not know",
    "server.device-withdrawn": "a device is withdrawn, and what is stored of it is still there",
    "server.device-forgetting": "what is stored of a withdrawn device is deleted and not committed",
    "server.rollout-begun": "a rollout is committed and its operator does not know",
    "server.counts-committing": "a device's counts and what they decide are written and not committed",
    "server.counts-stored": "they are committed and the device was not answered",
    "server.answer-committing": "what a device says of its data is written and not committed",
    "server.store-moved": "a store was moved, the settings say so, and the former one has its name still",
    "server.backup-copied": "a backup is complete and does not have its name yet",
    "server.restored": "a state folder was made from a backup and does not have its name yet",
    "device.named": "the device has its name on disk and has made no call",
    "device.welcomed": "the server's welcome came and nothing of it is kept",
    "device.mark-kept": "the server's newest mark is on the disk",
    "device.task-taken": "a task came and nothing was done for it",
    "device.outbox-emptied": "an older result was thrown away for a new task",
    "device.chunk-fetched": "a piece of a download is in its file, unsynced",
    "device.fetched": "a task's blobs are all here and the work has not begun",
    "device.reserved": "what a run costs in all is reserved for it, and nothing of it is paid",
    "device.given-back": "what a run has not spent of its reservation is free again",
    "device.debited": "a release is paid for and its noise is not drawn",
    "device.drawn": "a release exists only in memory",
    "device.release-stored": "a release is on the disk and the ledger does not say so",
    "device.release-noted": "a release is in the ledger and nothing of it was sent",
    "device.counts-kept": "what was counted in a rollout is on the disk and the server does not know",
    "device.memory-proposed": "what a task leaves to remember is on the disk, and its result is not",
    "device.memory-settled": "what a task left is remembered, and what it replaced is still there",
    "device.performed": "the work is done and its result is not in the outbox",
    "device.result-kept": "the result is in the outbox and nothing of it was sent",
    "device.upload-asked": "the server has said how much of a result it holds",
    "device.chunk-sent": "a piece of a result was handed to the network",
    "device.uploaded": "all of a result is with the server and it is not reported",
    "device.receipt-came": "the server has counted the result, and nothing of that is kept here",
    "device.outbox-cleared": "the result is gone from the outbox, old blobs are still there",
    "device.wheel-kept": "the wheel of a new release is on the disk, and its statement is not",
    "device.release-arrived": "a new release is on the disk and noted, and may not be tried yet",
    "device.trial-due": "a release is to be tried, and the one that runs has not ended",
    "device.trial-begun": "a trial is noted and nothing of the release was started",
    "device.release-unpacked": "a release is unpacked and does not have its name yet",
    "device.trial-judged": "what came of a trial is noted and nothing was started",
    "device.release-started": "a start of an adopted release is noted and it was not started",
    "device.release-settled": "an adopted release has done its work, and what it replaced is still there",
    "device.release-left": "a release that did not settle is left, and the former one was not started",
    "device.trimmed": "the task is over, and the owner was not notified",
}
"""Every point and what is true when it is passed: `disk.` on both sides, the others on the side they name."""

_armed: tuple[str, int] | None = None
_passed = 0


def point(name: str) -> None:
    """Kill the process here if the environment says so. Raises ConfigError when it names an unknown point."""
    global _armed, _passed
    if _armed is None:
        _armed = _parsed(os.environ.get(VARIABLE, ""))
    if name == _armed[0]:
        _passed += 1
        if _passed == _armed[1]:
            os.kill(os.getpid(), signal.SIGKILL)


def _parsed(text: str) -> tuple[str, int]:
    name, colon, count = text.partition(":")
    if name and name not in POINTS:
        raise ConfigError(f"{VARIABLE}: there is no point {name!r}", near(name, list(POINTS)))
    if colon and not (count.isdecimal() and int(count)):
        raise ConfigError(f"{VARIABLE}: {count!r} is not a count", f"{VARIABLE}={name}:3")
    return name, int(count or 1)
