"""A device takes a new version by itself in the middle of a run: real processes over mutual TLS."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.client import HTTPException
from pathlib import Path
from typing import Any

import pytest

import shoal
from fedserver.rpc.client import OperatorClient
from tests.client.light.asking import ask
from tests.e2e.places import Place
from tests.programs import Running
from tests.releases import PATCH, Maker

CALLED = f"shoal fedclient {PATCH}"


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    """A server with one device, in a run that goes on for as long as a test needs it."""
    found = Place(tmp_path)
    with found.up():
        found.joined("attic")
        found.server("run", "start", "trial", "--algorithm", "fedavg", "--set", "rounds=1000")
        yield found


@contextmanager
def agent(place: Place, name: str = "attic", *more: object) -> Iterator[Running]:
    command = (sys.executable, "-m", "fedclient", "run", "-c", place.root / name / "device.yaml", *more)
    with place.executing(name, *command) as process:
        yield process


def standing(place: Place, name: str = "attic") -> dict[str, Any]:
    path = place.root / name / "state/software/standing.json"
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return found


def runs(found: dict[str, Any]) -> tuple[str | None, bool]:
    """The release that runs, and whether it has done what a release is kept for. One on trial is neither."""
    return found.get("current"), found.get("settled", False)


def software(place: Place) -> str:
    """What the device calls itself, as the server knows it."""
    with OperatorClient(place.state) as client:
        (found,) = client.status().devices
    return found.software


def done(place: Place) -> int:
    """The rounds that the run has closed."""
    return int(place.server("run", "show", "trial")["round"])


def test_a_device_updates_itself_in_the_middle_of_a_run(place: Place, tmp_path: Path) -> None:
    maker = Maker(tmp_path / "releases")
    settings = tmp_path / "attic/device.yaml"
    with settings.open("a") as file:
        file.write(maker.setting)
    with agent(place):
        place.wait_for(lambda: done(place) > 1)
        assert software(place) == f"shoal fedclient {shoal.__version__}"
    maker.publish(PATCH)
    with agent(place) as process:
        place.wait_for(lambda: runs(standing(place)) == (PATCH, True) and software(place) == CALLED)
        rounds = done(place)
        place.wait_for(lambda: done(place) > rounds)
        assert process.poll() is None
    found = json.loads(place.call("fedclient", "status", "-c", settings, "--json").stdout)["data"]["software"]
    assert found == {"version": PATCH, "updates": True, "trial": None, "failed": {}}


def test_a_device_that_serves_predictions_does_it_too(place: Place, tmp_path: Path) -> None:
    """It does no task: what counts is that it is given a model."""
    maker, at = Maker(tmp_path / "releases"), str(tmp_path / "porch.socket")
    settings = place.joined("porch", "--role", "infer-only")
    settings.write_text(settings.read_text() + maker.setting)

    def answers() -> bool:
        body, kind = b'{"x": [[0.1, 0.2, 0.3, 0.4]]}', {"Content-Type": "application/json"}
        with suppress(OSError, HTTPException):
            status, found = ask(at, body, kind)
            return bool(status == 200 and found["run"] == "trial")
        return False

    serving = ("--serve", f"unix:{at}", "--run", "trial", "--every", "1")
    with agent(place):
        place.wait_for(lambda: done(place) > 1)
    with agent(place, "porch", *serving):
        place.wait_for(answers)
    maker.publish(PATCH)
    with agent(place, "porch", *serving) as process:
        place.wait_for(lambda: runs(standing(place, "porch")) == (PATCH, True) and answers())
        assert process.poll() is None
