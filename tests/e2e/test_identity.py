"""Devices and a server as real processes over mutual TLS: they join, renew, sleep too long, are revoked."""

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shoal.core.identity.certificates import certificate
from shoal.core.identity.join import parse
from tests.waiting import HANG, free_port

SHORT_LIVED = """
import os, pathlib
from fedserver.authority import issuing
issuing.DEVICE_LIFE = 20.0
from fedserver.__main__ import main
made = issuing.device
def device(*given):
    issuing.DEVICE_LIFE = float(pathlib.Path(os.environ["SHOAL_TEST_LIFE"]).read_text())
    return made(*given)
issuing.device = device
main()
"""
"""A server that asks for renewals as if certificates were valid for twenty seconds. How long they really are
is in a file, so that none expires because a machine is busy."""
LONG, SHORT = 3600.0, 20.0
"""Seconds."""


@dataclass
class Place:
    """A folder with a server's state and the folders of devices."""

    root: Path

    @property
    def state(self) -> Path:
        return self.root / "server"

    def call(self, program: str, *arguments: object, given: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", program, *map(str, arguments)],
            input=given,
            capture_output=True,
            text=True,
            timeout=HANG,
            cwd=self.root,
        )

    def server(self, *arguments: object) -> dict[str, Any]:
        """What a verb of the operator found."""
        done = self.call("fedserver", *arguments, "--state", self.state, "--json")
        assert done.returncode == 0, done.stderr
        data: dict[str, Any] = json.loads(done.stdout)["data"]
        return data

    def device(self, name: str) -> Path:
        """The settings of a device with data of its own."""
        folder = self.root / name
        folder.mkdir()
        chance = np.random.default_rng(len(name))
        x, y = chance.random((60, 4), np.float32), chance.integers(0, 2, 60)
        np.savez(folder / "data.npz", x=x, y=y)
        settings = folder / "device.yaml"
        settings.write_text(
            "learner: {builtin: mlp, options: {inputs: 4, hidden: [4], classes: 2}}\ndata: {npz: data.npz}\n"
            "privacy: {allow_unprotected: true, allow_plain_weights: true}\n"
        )
        return settings

    def joined(self, name: str, *terms: str) -> Path:
        """The settings of a device that has joined: two commands."""
        settings, line = self.device(name), self.server("token", "create", *terms)["join"]
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

    def seconds_left(self, device: str) -> float:
        """How long the newest certificate of a device is still valid."""
        ends = certificate(self.identity(device)["certificate"].encode()).not_valid_after_utc
        return (ends - datetime.now(UTC)).total_seconds()

    def has_called(self, device: str) -> bool:
        """Whether the server saw the newest certificate of a device."""
        with closing(sqlite3.connect(self.state / "shoal.db")) as database:
            query = "SELECT first_used FROM certificates WHERE device = ? ORDER BY number DESC LIMIT 1"
            return database.execute(query, (device,)).fetchone() != (None,)

    @contextmanager
    def up(self, *program: str) -> Iterator[subprocess.Popen[str]]:
        """The server, made at the first time; its ports stay the same."""
        if not self.state.exists():
            ports = ("--listen", f"127.0.0.1:{free_port()}", "--join-listen", f"127.0.0.1:{free_port()}")
            made = self.call("fedserver", "init", "--state", self.state, "--host", "127.0.0.1", *ports)
            assert made.returncode == 0, made.stderr
            with (self.state / "fedserver.yaml").open("a") as file:
                file.write("cadence: {poll: 1}\n")  # so that a waiting device soon calls again
        with self.running(
            "server", *(program or ("-m", "fedserver")), "up", "--state", self.state
        ) as process:
            self.wait_for(lambda: (self.state / "address").exists())
            yield process

    @contextmanager
    def running(self, log: str, *line: object) -> Iterator[subprocess.Popen[str]]:
        """Python with these arguments, until the end of the block; what it says goes to a log."""
        with (self.root / f"{log}.log").open("a") as file:
            process = subprocess.Popen(
                [sys.executable, *map(str, line)], stdout=file, stderr=file, text=True, cwd=self.root
            )
        try:
            yield process
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(HANG)

    def log(self, name: str) -> str:
        return (self.root / f"{name}.log").read_text()

    def wait_for(self, condition: Any) -> None:
        until = time.monotonic() + HANG
        while not condition():
            assert time.monotonic() < until, {path.name: path.read_text() for path in self.root.glob("*.log")}
            time.sleep(0.05)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_a_join_string_is_good_once_and_its_secret_is_nowhere(place: Place) -> None:
    with place.up():
        settings, line = place.device("attic"), place.server("token", "create")["join"]
        (place.root / "join.txt").write_text(line)
        first = place.call("fedclient", "join", "join.txt", "-c", settings, "--device", "attic")
        assert (first.returncode, first.stdout.split()[:2]) == (0, ["attic", "joined"])
        again = place.call("fedclient", "join", "join.txt", "-c", settings)
        assert "has already joined" in again.stdout
        other = place.call(
            "fedclient", "join", "join.txt", "-c", place.device("cellar"), "--device", "cellar"
        )
        assert other.returncode == 5
        assert "used up" in other.stderr
        seen = place.call("fedclient", "status", "-c", settings)
        assert "identity:    train in federation shoal until 20" in seen.stdout
        assert ": answers" in seen.stdout
        well = place.call("fedclient", "doctor", "-c", settings)
        assert well.returncode == 0, well.stdout + well.stderr
        assert [line.split()[:2] for line in well.stdout.splitlines()] == [
            ["ok", f"{what}:"] for what in ("packages", "disk", "agent", "identity", "line", "clock")
        ]
        assert "TLS 1.3" in well.stdout
        wrong = place.call("fedclient", "run", "-c", settings, "--device", "cellar")
        assert wrong.returncode == 3
        assert "the identity is that of device attic, but the settings name cellar" in wrong.stderr
    (place.root / "join.txt").unlink()
    text, secret = line.rpartition(":")[2], parse(line).secret
    for done in (first, again, other):
        assert text not in done.stdout + done.stderr
    for path in place.root.rglob("*"):
        if path.is_file():
            content = path.read_bytes()
            assert text.encode() not in content, path
            assert secret not in content, path


def test_a_revoked_device_is_told_and_ends(place: Place) -> None:
    with place.up():
        settings = place.joined("attic")
        with place.running("attic", "-m", "fedclient", "run", "-c", settings) as agent:
            place.wait_for(lambda: "waiting" in place.log("attic"))
            place.server("device", "revoke", "attic")
            assert agent.wait(HANG) == 5
        assert "error[revoked]: device attic was revoked" in place.log("attic")


def test_a_device_waits_for_a_server_that_starts_again(place: Place) -> None:
    with place.up() as server:
        settings = place.joined("attic")
        place.server("run", "start", "a", "--algorithm", "fedavg", "--minimum", "1", "--set", "rounds=1")
        server.kill()
        server.wait()
        (place.state / "address").unlink()
    with place.running("attic", "-m", "fedclient", "run", "-c", settings, "--until-finished") as agent:
        place.wait_for(lambda: "does not answer" in place.log("attic"))
        with place.up():
            assert agent.wait(HANG) == 0
            assert place.server("run", "show", "a")["stage"] == "finished"


def test_certificates_are_renewed_under_way_and_after_a_sleep_too_long(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    life = place.root / "life"
    life.write_text(str(LONG))
    monkeypatch.setenv("SHOAL_TEST_LIFE", str(life))
    with place.up("-c", SHORT_LIVED):
        settings, other = place.joined("attic"), place.joined("cellar")
        first = place.identity("attic")
        place.server("run", "start", "a", "--algorithm", "fedavg", "--minimum", "2", "--set", "rounds=3")
        agent = ("-m", "fedclient", "run", "-c")
        with place.running("attic", *agent, settings, "--until-finished") as waiting:
            place.wait_for(lambda: place.happened("renewed", "attic") >= 2)
            assert place.identity("attic")["key"] != first["key"]
            assert place.happened("rejoined", "attic") == 0
            life.write_text(str(SHORT))
            place.wait_for(lambda: place.seconds_left("attic") < LONG / 2)
            with place.running("cellar", *agent, other, "--until-finished") as second:
                assert second.wait(HANG) == 0
            assert waiting.wait(HANG) == 0
        place.wait_for(lambda: place.seconds_left("attic") < 0.0)
        life.write_text(str(LONG))
        before, rejoined = place.identity("attic"), place.happened("rejoined", "attic")
        done = place.call("fedclient", "place", "-c", settings, "--run", "a")
        assert done.returncode == 0, done.stderr
        assert "asking for a new one" in done.stderr
        assert place.happened("rejoined", "attic") == rejoined + 1
        assert place.identity("attic")["key"] != before["key"]


def test_the_authority_changes_and_no_device_notices(place: Place) -> None:
    with place.up():
        settings = place.joined("attic")
        (old,) = [each["authority"] for each in place.server("authority", "ls")["authorities"]]
        trusted, new = [], ""
        with place.running("attic", "-m", "fedclient", "run", "-c", settings) as agent:
            place.wait_for(lambda: "waiting" in place.log("attic"))
            for step in ("add", "use", "drop"):
                before = place.identity("attic")
                named = {"add": (), "use": (new,), "drop": (old,)}[step]
                new = place.server("authority", step, *named)["authority"]
                place.wait_for(lambda before=before: place.identity("attic") != before)
                place.wait_for(lambda: place.has_called("attic"))
                trusted.append(place.identity("attic")["authorities"].count("BEGIN CERTIFICATE"))
            assert agent.poll() is None
    assert trusted == [2, 2, 1]
    assert (place.happened("renewed", "attic"), place.happened("rejoined", "attic")) == (3, 0)
    assert os.listdir(place.root / "attic" / "state" / "identity") == ["identity.json"]
