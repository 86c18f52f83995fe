"""Processes that benchmarks start, and what these have used."""

import asyncio
import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedclient.identity.join import join
from fedclient.identity.keyring import Identity
from fedclient.store.state import DeviceFolder
from fedserver.rpc.client import OperatorClient
from fedserver.store.identities.records import Terms
from shoal.core.identity.join import JoinString, parse
from shoal.shell.console import Console

AT_ONCE = 8
"""Devices that join at the same time."""
TICKS = os.sysconf("SC_CLK_TCK")
ONE_CORE = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
"""Numerical libraries that start a thread for each core would make processes wait for each other."""


@dataclass
class Server:
    """A process of ours that listens."""

    process: "subprocess.Popen[str]"
    address: str

    def memory(self) -> float:
        """What it has now, in MB."""
        return self._of_status("VmRSS")

    def peak(self) -> float:
        """The most memory that it ever had, in MB."""
        return self._of_status("VmHWM")

    def _of_status(self, what: str) -> float:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.partition(f"{what}:")[2].split()[0]) / 1024

    def cpu(self) -> float:
        """Processor seconds that it has used."""
        return cpu_of(self.process.pid)


def cpu_of(process: int) -> float:
    """Processor seconds that a process and its children have used, those included that have ended."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        children = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    except FileNotFoundError:
        return 0.0
    return sum(map(int, fields[11:15])) / TICKS + sum(cpu_of(int(child)) for child in children)


@contextlib.contextmanager
def started(*arguments: str, log: Path | None = None) -> Iterator[Server]:
    """Python with these arguments, until the end of the block; it says on its first line where it listens.
    log: where its log goes; by default to this process's."""
    with contextlib.ExitStack() as stack:
        errors = None if log is None else stack.enter_context(log.open("a"))
        process = subprocess.Popen(
            [sys.executable, *arguments],
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env={**os.environ, **ONE_CORE},
        )
        assert process.stdout is not None
        stack.enter_context(process.stdout)
        stack.callback(process.wait)
        stack.callback(process.kill)
        line = process.stdout.readline()
        assert line.startswith("listening on "), line
        yield Server(process, line.split()[-1])


@contextlib.contextmanager
def clients(commands: Sequence[Sequence[str]], log: Path) -> "Iterator[list[subprocess.Popen[str]]]":
    """Python with each of these arguments, until the end of the block. log: where all of them write."""
    with log.open("a") as file, contextlib.ExitStack() as stack:
        made = []
        for command in commands:
            environment = {**os.environ, **ONE_CORE}
            one = subprocess.Popen(
                [sys.executable, *command], stdout=file, stderr=file, text=True, env=environment
            )
            stack.callback(ended, one)
            made.append(one)
        yield made


def ended(process: "subprocess.Popen[str]") -> None:
    """End it, politely at first."""
    process.terminate()
    try:
        process.wait(30.0)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


class Quiet(Console):
    """Prints nothing: there are too many devices to report how each one joins."""

    def progress(self, text: str) -> None:
        pass

    say = progress


async def joined(state: Path, folder: Path, count: int) -> list[Identity]:
    """The identities of this many devices, which have joined the server of this state folder. Each has its
    own folder in `folder`, named by its number."""

    def token() -> JoinString:
        with OperatorClient(state) as operator:
            return parse(operator.create_token(Terms(uses=count))[1])

    line, turns = await asyncio.to_thread(token), asyncio.Semaphore(AT_ONCE)

    async def one(number: int) -> Identity:
        async with turns:
            own = DeviceFolder(folder / f"{number}")
            return (await join(own, line, f"device-{number:05}", Quiet()))[0]

    return await asyncio.gather(*map(one, range(count)))
