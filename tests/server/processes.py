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

from fedserver.config import SETTINGS
from fedserver.coordinator.status_types import RunStatus
from fedserver.rpc.client import OperatorClient
from shoal.core.errors import Unavailable
from tests.waiting import HANG


@dataclass
class Daemon:
    """A running `fedserver up`. log: its standard error. address: where devices call."""

    process: subprocess.Popen[str]
    state: Path
    log: Path
    address: str

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
PLAIN = ("--listen", "127.0.0.1:0", "--insecure-loopback")


@contextmanager
def daemon(
    state: Path,
    program: tuple[str, ...] = ("-m", "fedserver"),
    options: tuple[str, ...] = PLAIN,
    environment: Mapping[str, str] = NOTHING,
) -> Iterator[Daemon]:
    """Start a server on `state`, and see to it that it ends. program: what Python is to run.
    environment: variables besides those of this process.

    options: of `fedserver up`; without any it runs as `fedserver init` has set it up.
    """
    log = state.with_suffix(".log")
    up = ["up", "--state", str(state), *options]
    with log.open("ab") as errors:
        process = subprocess.Popen(
            [sys.executable, *program, *up],
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1", **environment},
        )
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        assert line.startswith("listening on 127.0.0.1:"), (line, log.read_text())
        yield Daemon(process, state, log, line.split()[-1])
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        process.stdout.close()


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
