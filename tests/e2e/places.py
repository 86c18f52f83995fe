"""A server and devices as real processes over mutual TLS, in one folder."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import chdir, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from click.testing import CliRunner

from fedserver.__main__ import main
from tests.programs import Running, Verb, started
from tests.waiting import HANG, free_port


@contextmanager
def ending(process: Running) -> Iterator[None]:
    """End the process with the block."""
    try:
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(HANG)


@dataclass
class Place:
    """A folder with a server's state and the folders of devices. of_server, of_devices: variables that only
    the processes of one side have, besides those of this process."""

    root: Path
    of_server: dict[str, str] = field(default_factory=dict)
    of_devices: dict[str, str] = field(default_factory=dict)

    @property
    def state(self) -> Path:
        return self.root / "server"

    def call(self, program: str, *arguments: object, given: str = "") -> subprocess.CompletedProcess[str]:
        line = [program, *map(str, arguments)]
        return Verb(line, self.root, self._environment(program), given).end()

    def _environment(self, *line: object) -> dict[str, str]:
        return {**os.environ, **(self.of_server if "fedserver" in line else self.of_devices)}

    def verb(self, *arguments: object) -> subprocess.CompletedProcess[str]:
        """A verb of the operator, over the server's socket. It runs in this process, which has loaded Python
        already, unless the server's processes have variables of their own."""
        line = [*map(str, arguments), "--state", str(self.state)]
        if self.of_server:
            return self.call("fedserver", *line)
        with chdir(self.root):
            done = CliRunner(catch_exceptions=False).invoke(main, line)
        return subprocess.CompletedProcess(line, done.exit_code, done.stdout, done.stderr)

    def server(self, *arguments: object) -> dict[str, Any]:
        """What a verb of the operator found."""
        done = self.verb(*arguments, "--json")
        assert done.returncode == 0, done.stderr
        data: dict[str, Any] = json.loads(done.stdout)["data"]
        return data

    def device(self, name: str, rules: bool = True) -> Path:
        """The settings of a device with data of its own. rules: its owner allows all runs everything, and is
        not asked for each."""
        folder = self.root / name
        folder.mkdir()
        chance = np.random.default_rng(len(name))
        x, y = chance.random((60, 4), np.float32), chance.integers(0, 2, 60)
        np.savez(folder / "data.npz", x=x, y=y)
        settings = folder / "device.yaml"
        settings.write_text(
            "learner: {builtin: mlp, options: {inputs: 4, hidden: [4], classes: 2}}\ndata: {npz: data.npz}\n"
            + ("privacy: {allow_unprotected: true, allow_plain_weights: true}\n" if rules else "")
        )
        return settings

    def joined(self, name: str, *terms: str, rules: bool = True) -> Path:
        """The settings of a device that has joined: two commands."""
        settings, line = self.device(name, rules), self.server("token", "create", *terms)["join"]
        done = self.call("fedclient", "join", "-", "-c", settings, "--device", name, given=line)
        assert done.returncode == 0, done.stderr
        return settings

    def identity(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.root / name / "state/identity/identity.json").read_text())
        return found

    def events(self) -> list[dict[str, Any]]:
        """The audit log."""
        lines = (self.state / "audit.jsonl").read_text().splitlines()
        return [json.loads(line) for line in lines]

    def happened(self, event: str, device: str) -> int:
        found = [line for line in self.events() if line["event"] == event]
        return sum(line["facts"].get("device") == device for line in found)

    @contextmanager
    def up(self) -> Iterator[Running]:
        """The server, made at the first time; its ports stay the same."""
        if not self.state.exists():
            ports = ("--listen", f"127.0.0.1:{free_port()}", "--join-listen", f"127.0.0.1:{free_port()}")
            made = self.call("fedserver", "init", "--state", self.state, "--host", "127.0.0.1", *ports)
            assert made.returncode == 0, made.stderr
            with (self.state / "fedserver.yaml").open("a") as file:
                file.write("cadence: {poll: 1}\n")  # so that a waiting device soon calls again
        with self.running("server", "fedserver", "up", "--state", self.state) as process:
            self.wait_for(lambda: (self.state / "address").exists())
            yield process

    @contextmanager
    def running(self, log: str, *line: object) -> Iterator[Running]:
        """`python -m` with this line, until the end of the block; what it says goes to a log."""
        with (self.root / f"{log}.log").open("a") as file:
            process = started([*map(str, line)], self.root, self._environment(*line), file, file)
        with ending(process):
            yield process

    @contextmanager
    def executing(self, log: str, *command: object) -> Iterator[Running]:
        """Another program than ours, in the same way."""
        with (self.root / f"{log}.log").open("a") as file:
            process = subprocess.Popen(
                [*map(str, command)],
                stdout=file,
                stderr=file,
                text=True,
                cwd=self.root,
                env=self._environment(),
            )
        with ending(process):
            yield process

    def log(self, name: str) -> str:
        return (self.root / f"{name}.log").read_text()

    def wait_for(self, condition: Any) -> None:
        until = time.monotonic() + HANG
        while not condition():
            assert time.monotonic() < until, {path.name: path.read_text() for path in self.root.glob("*.log")}
            time.sleep(0.1)
