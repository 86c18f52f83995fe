"""A device takes new releases by itself in a run, and leaves those that fail: real processes."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from fedserver.rpc.client import OperatorClient
from tests.e2e.places import Place
from tests.programs import Running
from tests.releases import MINOR, PATCH, Maker

CALLED = f"shoal fedclient {PATCH}"
BREAKS = {"fedclient/cli/check.py": ("import asyncio\n", "import asynci0\n")}
"""It does not come up."""


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    """A server with one device, in a run that goes on for as long as a test needs it."""
    found = Place(tmp_path)
    with found.up():
        found.joined("attic")
        found.server("run", "start", "trial", "--algorithm", "fedavg", "--set", "rounds=1000")
        yield found


@contextmanager
def agent(place: Place, name: str = "attic") -> Iterator[Running]:
    command = (sys.executable, "-m", "fedclient", "run", "-c", place.root / name / "device.yaml")
    with place.executing(name, *command) as process:
        yield process


def standing(place: Place) -> dict[str, Any]:
    path = place.root / "attic/state/software/standing.json"
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return found


def software(place: Place) -> str:
    """What the device calls itself, as the server knows it."""
    with OperatorClient(place.state) as client:
        (found,) = client.status().devices
    return found.software


def done(place: Place) -> int:
    """The rounds that the run has closed."""
    return int(place.server("run", "show", "trial")["round"])


def test_a_device_updates_itself_in_a_run_and_leaves_a_release_that_fails(
    place: Place, tmp_path: Path
) -> None:
    maker = Maker(tmp_path / "releases")
    with (tmp_path / "attic/device.yaml").open("a") as file:
        file.write(maker.setting)
    maker.publish(PATCH)
    with agent(place) as process:
        place.wait_for(lambda: standing(place).get("settled") and software(place) == CALLED)
        maker.publish(MINOR, BREAKS)
        process.kill()
    with agent(place) as process:  # what it runs now looks for a newer one
        place.wait_for(lambda: MINOR in standing(place).get("failed", {}))
        rounds = done(place)
        place.wait_for(lambda: done(place) > rounds)
        assert software(place) == CALLED
        assert process.poll() is None
    found = json.loads(
        place.call("fedclient", "status", "-c", tmp_path / "attic/device.yaml", "--json").stdout
    )
    assert found["data"]["software"]["version"] == PATCH
    assert found["data"]["software"]["failed"].keys() == {MINOR}
    kept = {path.name for path in (tmp_path / "attic/state/software").iterdir()}
    assert not any(MINOR in name for name in kept)
