"""Our programs as processes of their own, forked from one that has loaded them.

To import PyTorch, SciPy and gRPC takes two seconds of the processor's time, and tests start hundreds of
processes. One that is forked is as real as one that is executed: it has a number of its own, runs
`python -m program`, is killed, and ends with its exit code. The process that it is forked from has loaded
modules, and has done nothing with them.
"""

import asyncio
import multiprocessing
import multiprocessing.connection
import os
import random
import runpy
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from multiprocessing import forkserver, reduction
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any

from fedclient.work import spawning
from tests.waiting import HANG

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(
    [
        "tests.crash.lab",
        "fedclient.cli.join",
        "fedclient.cli.run",
        "fedclient.agent.service",
        "fedclient.placing.service",
        "fedclient.work.runtime",
        "fedclient.work.selfcheck",
        "fedserver.cli.server",
        "fedserver.daemon",
        "fedserver.page.app",
        "fedserver.page.serve",
        "shoal.core.algorithms.fedavg.server",
        "shoal.core.algorithms.flux.server",
        "kneed",
        "onnx",
        "onnxruntime",
        "sklearn.cluster",
        "sklearn.neighbors",
    ]
)
"""There is one such process for each process of tests: whatever forks takes this context."""
PATH = list(sys.path)
"""Where programs find modules, whatever a test has put in front for itself."""


class Descriptor:
    """An open file that a process is to get."""

    def __init__(self, number: int) -> None:
        self._number = number

    def __reduce__(self) -> tuple[Any, ...]:
        return _received, (reduction.DupFd(self._number),)


def _received(duplicate: Any) -> int:
    number: int = duplicate.detach()
    return number


class Program:
    """What `subprocess.Popen` is, of a process that was forked."""

    _looking = threading.Lock()
    """A start also looks which others have ended, and the exit code of each can be read once."""

    def __init__(
        self,
        line: Sequence[str],
        files: Sequence[int],
        folder: Path | str,
        environment: Mapping[str, str],
        *,
        leads: bool = False,
    ) -> None:
        """line: a module and its arguments. files: its standard input, output and error. leads: whether it
        leads a group of processes, as one does that is started in a new session."""
        ready, begun = os.pipe()
        given = [Descriptor(each) for each in (*files, begun)]
        first = filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))
        what = (list(line), given, str(folder), dict(environment), leads, [str(folder), *first, *PATH])
        self._process = FORKS.Process(target=_live, args=what)
        with self._looking:
            self._process.start()
        os.close(begun)
        os.read(ready, 1)  # from here on signals do what they are to do
        os.close(ready)
        assert self._process.pid is not None
        self.pid = self._process.pid

    @property
    def returncode(self) -> int | None:
        return self.poll()

    def poll(self) -> int | None:
        """Its exit code, or less than 0 by a signal; None while it runs."""
        with self._looking:
            return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        """Its exit code. Raises subprocess.TimeoutExpired."""
        multiprocessing.connection.wait([self._process.sentinel], timeout)
        code = self.poll()
        if code is None:
            raise subprocess.TimeoutExpired("a program", timeout or 0.0)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    @property
    def sentinel(self) -> int:
        """It can be read from as soon as the process has ended."""
        return self._process.sentinel


def _live(
    line: list[str],
    files: list[int],
    folder: str,
    environment: dict[str, str],
    leads: bool,
    path: list[str],
) -> None:
    """In the process: become what `python -m` with this line is."""
    *standard, begun = files
    for number, file in enumerate(standard):
        os.dup2(file, number)
        os.close(file)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    sys.stdout, sys.stderr = (open(file, "w", buffering=1, closefd=False) for file in (1, 2))  # noqa: SIM115
    if leads:
        os.setsid()
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    random.seed()  # each process waits as long as chance has it
    sys.path[:] = PATH[:] = path  # also for processes that it starts
    sys.argv = ["", *line[1:]]
    # It knows the address of the process that it was forked from, and would start another one all the same.
    forkserver._forkserver.ensure_running = lambda: None  # type: ignore[method-assign]
    spawning.spawn = forking(spawning.spawn, also_frugal=True)
    sys.modules.pop(line[0], None)  # of some programs, others use a part
    os.write(begun, b".")
    os.close(begun)
    try:
        runpy.run_module(line[0], run_name="__main__", alter_sys=True)
    except SystemExit as ended:
        sys.stdout.flush()
        sys.exit(ended.code)


Running = Program | subprocess.Popen[str]


def started(
    line: Sequence[str],
    folder: Path | str,
    environment: Mapping[str, str],
    out: IO[str] | int,
    errors: IO[str] | int,
    source: IO[str] | int = subprocess.DEVNULL,
) -> Running:
    """`python -m` with this line. It is executed where it cannot be forked."""
    if _can_be_forked(environment):
        with open(os.devnull) as nothing:
            given = nothing if source == subprocess.DEVNULL else source
            files = [each if isinstance(each, int) else each.fileno() for each in (given, out, errors)]
            return Program(line, files, folder, environment)
    command = [sys.executable, "-m", *line]
    process = subprocess.Popen(
        command, stdin=source, stdout=out, stderr=errors, text=True, cwd=folder, env=environment
    )
    # One that was killed is to be gone at once: a verb takes the number of a process for a server that will
    # answer soon, and waits for it.
    threading.Thread(target=process.wait, daemon=True).start()
    return process


class Verb:
    """A program whose words are kept until its end. given: what it reads."""

    def __init__(
        self, line: Sequence[str], folder: Path | str, environment: Mapping[str, str], given: str = ""
    ) -> None:
        self._line = list(line)
        self._out, self._errors = TemporaryFile("w+"), TemporaryFile("w+")  # noqa: SIM115
        with TemporaryFile("w+") as source:
            source.write(given)
            source.seek(0)
            self.process = started(line, folder, environment, self._out, self._errors, source)

    def end(self, within: float | None = HANG) -> subprocess.CompletedProcess[str]:
        code = self.process.wait(within)
        with self._out, self._errors:
            self._out.seek(0)
            self._errors.seek(0)
            return subprocess.CompletedProcess(self._line, code, self._out.read(), self._errors.read())


def _can_be_forked(environment: Mapping[str, str]) -> bool:
    """Unless it is to have another library than ours, such as one that tells it another time, or other
    modules in place of ours, such as those of the version before."""
    return all(environment.get(name) == os.environ.get(name) for name in ("LD_PRELOAD", "PYTHONSAFEPATH"))


# -- the processes of a device ------------------------------------------------------------------------------


def forking(executed: Callable[..., Any], also_frugal: bool = False) -> Callable[..., Any]:
    """In place of `fedclient.work.spawning.spawn`: it forks, but for processes that get open files.

    also_frugal: those of devices with little memory, too, whose memory is then not what it would be.
    """

    async def spawn(module: str, threads: int, frugal: bool, files: Sequence[int] = ()) -> Any:
        if files or (frugal and not also_frugal):
            return await executed(module, threads, frugal, files)
        return await Worker.start(module, {**os.environ, **dict.fromkeys(spawning.THREADS, str(threads))})

    return spawn


class Worker:
    """What `asyncio.subprocess.Process` is, of a process that was forked."""

    def __init__(self, program: Program, stdin: asyncio.StreamWriter, stdout: asyncio.StreamReader) -> None:
        self.stdin, self.stdout, self.pid = stdin, stdout, program.pid
        self._program = program
        self._loop = asyncio.get_running_loop()
        self._ended = asyncio.Event()
        self._loop.add_reader(program.sentinel, self._end)

    @classmethod
    async def start(cls, module: str, environment: Mapping[str, str]) -> "Worker":
        loop, (source, to_it), (from_it, sink) = asyncio.get_running_loop(), os.pipe(), os.pipe()
        program = Program([module], (source, sink, 2), os.getcwd(), environment, leads=True)
        os.close(source)
        os.close(sink)
        reader = asyncio.StreamReader()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(from_it, "rb"))
        transport, protocol = await loop.connect_write_pipe(
            asyncio.streams.FlowControlMixin, os.fdopen(to_it, "wb")
        )
        return cls(program, asyncio.StreamWriter(transport, protocol, None, loop), reader)

    @property
    def returncode(self) -> int | None:
        return self._program.returncode if self._ended.is_set() else None

    async def wait(self) -> int:
        await self._ended.wait()
        return self._program.wait()

    def _end(self) -> None:
        self._loop.remove_reader(self._program.sentinel)
        self._program.wait()
        self._ended.set()
        self.stdin.close()
