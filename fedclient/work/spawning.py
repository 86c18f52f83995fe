"""Processes beside the agent: they find the same modules, and get no Ctrl-C that is meant for it."""

import asyncio
import contextlib
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Sequence

FRUGAL = {"MALLOC_ARENA_MAX": "2", "MALLOC_TRIM_THRESHOLD_": str(1 << 17)}
"""For devices with little memory: threads share what the C library keeps for them, and it keeps little."""
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


async def spawn(module: str, threads: int, frugal: bool, files: Sequence[int] = ()) -> Process:
    """Start `python -m module` with pipes to its input and output.

    threads: of numerical libraries. frugal: whether to save memory. files: open ones that it gets, too. It is
    spawned and never forked: the threads of PyTorch and gRPC do not survive a fork.
    """
    path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
    limits = dict.fromkeys(THREADS, str(threads))
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", module),
        stdin=PIPE,
        stdout=PIPE,
        env={**os.environ, **limits, **(FRUGAL if frugal else {}), "PYTHONPATH": path},
        pass_fds=tuple(files),
        start_new_session=True,
    )


async def end(process: Process) -> int:
    """Kill a process with all that it started, unless it has ended. Returns its exit code."""
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    return await process.wait()
