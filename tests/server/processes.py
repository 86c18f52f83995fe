"""The server as a process of its own."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from fedserver.config import SETTINGS
from fedserver.coordinator.status_types import RunStatus
from fedserver.rpc.client import OperatorClient
from shoal.core.errors import Unavailable
from tests.programs import Running, started
from tests.waiting import HANG


@dataclass
class Daemon:
    """A running `fedserver up`. log, said: its standard error and output. address: where devices call."""

    process: Running
    state: Path
    log: Path
    address: str
    said: IO[str]

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Its exit code after this signal."""
        self.process.send_signal(number)
        return self.process.wait(HANG)


def add_settings(state: Path, lines: str) -> None:
    """Add lines to the settings of a server, which may have none yet."""
    state.mkdir(exist_ok=True)
    with (state / SETTINGS).open("a") as file:
        file.write(lines)


NOTHING: Mapping[str, str] = {}
PROGRAM = ("-m", "fedserver")
PLAIN = ("--listen", "127.0.0.1:0", "--insecure-loopback")


@contextmanager
def daemon(
    state: Path,
    program: tuple[str, ...] = PROGRAM,
    options: tuple[str, ...] = PLAIN,
    environment: Mapping[str, str] = NOTHING,
) -> Iterator[Daemon]:
    """Start a server on `state`, and see to it that it ends. program: what Python is to run.
    environment: variables besides those of this process.

    options: of `fedserver up`; without any it runs as `fedserver init` has set it up.
    """
    log = state.with_suffix(".log")
    up = ["up", "--state", str(state), *options]
    surroundings = {**os.environ, "PYTHONUNBUFFERED": "1", **environment}
    source, sink = os.pipe()
    with log.open("a") as errors, os.fdopen(sink, "w") as out:
        if program == PROGRAM:
            process: Running = started(["fedserver", *up], os.getcwd(), surroundings, out, errors)
        else:
            command = [sys.executable, *program, *up]
            process = subprocess.Popen(command, stdout=out, stderr=errors, text=True, env=surroundings)
    with os.fdopen(source) as said:
        try:
            line = said.readline()
            assert line.startswith("listening on 127.0.0.1:"), (line, log.read_text())
            yield Daemon(process, state, log, line.split()[-1], said)
        finally:
            if process.poll() is None:
                process.kill()
            process.wait()


def restored(operator: OperatorClient, run: str) -> RunStatus:
    """How a run stands, when a server that has just started has looked at its files."""
    until = time.monotonic() + HANG
    while True:
        try:
            return operator.show(run)
        except Unavailable:
            if time.monotonic() > until:
                raise
            time.sleep(0.05)
