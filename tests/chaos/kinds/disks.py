"""Disks that are full for a while, and system calls that fail once."""

import asyncio
import contextlib
import os
import shutil
from pathlib import Path

from tests.chaos.grounds import failing, no_strace, no_tmpfs
from tests.chaos.kinds.kind import Kind
from tests.chaos.programs import Program
from tests.chaos.trial import GLANCE, Trial

STORAGE = 8
"""The exit code of a process whose own disk has failed it."""
OF_DEVICE = (("fsync", "EIO", 60), ("rename", "EIO", 30), ("rename", "ENOSPC", 30))
OF_SERVER = (
    *(("fsync", "EIO", 30), ("fdatasync", "EIO", 60), ("rename", "EIO", 15), ("rename", "ENOSPC", 15)),
    *(("pwrite64", "EIO", 400), ("pwrite64", "ENOSPC", 400)),
)
"""A system call, how it fails, and how often the busiest thread makes it in a run."""


async def server_disk_full(trial: Trial) -> None:
    """The server's disk is full, to the last bytes or the last megabytes, for up to ten seconds."""
    await _fill(trial, trial.fleet.server, trial.fleet.state)


async def device_disk_full(trial: Trial) -> None:
    """A device's disk is full for up to ten seconds."""
    device = trial.pick()
    await _fill(trial, device.program, device.folder / "state", device.name)


async def server_call_fails(trial: Trial) -> None:
    """One system call of the server fails, in each thread that makes it so often."""
    await _fail(trial, trial.fleet.server, OF_SERVER)


async def device_call_fails(trial: Trial) -> None:
    """One system call of a device's agent fails."""
    await _fail(trial, trial.pick().program, OF_DEVICE)


async def _fill(trial: Trial, program: Program, folder: Path, *device: str) -> None:
    await trial.begin()
    moment, seconds = trial.moment(*device), trial.chance.uniform(0.5, 10.0)
    left = trial.chance.choice([0, trial.chance.randrange(1 << 14), trial.chance.randrange(4 << 20)])
    if not await trial.until(moment):
        return
    trial.expect(program.name, STORAGE)
    strike = trial.struck("disk full", (program.name,), moment, left=left, seconds=seconds)
    filler = folder / "filler"
    _take_all_but(left, filler)
    await asyncio.sleep(seconds)
    filler.unlink()
    strike.heal()


def _take_all_but(left: int, filler: Path) -> None:
    """Leave this many bytes of a file system, give or take what others write at the same time."""
    with filler.open("wb") as file:
        for spare in range(left, left + (8 << 20), 1 << 16):
            with contextlib.suppress(OSError):
                os.posix_fallocate(file.fileno(), 0, max(1, shutil.disk_usage(filler.parent).free - spare))
                return


async def _fail(trial: Trial, program: Program, calls: tuple[tuple[str, str, int], ...]) -> None:
    call, error, most = trial.chance.choice(calls)
    number = trial.chance.randint(1, most)
    trial.expect(program.name, 0, STORAGE)
    known, trace = len(program.ends), trial.fleet.folder / "calls.log"
    await program.restart(within=failing(call, error, number, trace))
    await trial.fleet.answering()
    await trial.begin()
    what = f"{call} number {number} fails with {error}"
    while not trial.over.is_set():
        if not trial.strikes and b"INJECTED" in trace.read_bytes():
            trial.struck(what, (program.name,)).heal()
        await asyncio.sleep(GLANCE)
    if not trial.strikes:
        trial.notes.append(f"{what}: it is not called so often")
    if len(program.ends) == known + 1:
        await program.restart()


KINDS = (
    Kind("server-disk-full", server_disk_full, 4, small_disks=True, forbidden=no_tmpfs),
    Kind("device-disk-full", device_disk_full, 2, small_disks=True, forbidden=no_tmpfs),
    Kind("server-call-fails", server_call_fails, 5, forbidden=no_strace),
    Kind("device-call-fails", device_call_fails, 3, forbidden=no_strace),
)
