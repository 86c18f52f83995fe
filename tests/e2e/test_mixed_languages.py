"""FLUX with four devices in Python and two in JavaScript over mutual TLS, and a newcomer in JavaScript."""

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from shoal.simulation.images import digits, rotate
from tests.e2e.places import Place
from tests.e2e.test_conformance import EXAMPLE, NODE, ROOT, needs_node
from tests.programs import Running
from tests.waiting import HANG

PYTHON, JAVASCRIPT, NEWCOMER = range(4), range(4, 6), 7
IMAGES, HIDDEN = 140, 64
LEARNER = {"builtin": "mlp", "options": {"inputs": 64, "hidden": [HIDDEN], "classes": 10}}
OWNER = {"allow_unprotected": True, "allow_plain_weights": True}


def samples(number: int) -> tuple[Any, Any]:
    """Images of its own; those of odd devices are turned by 90 degrees. x (140, 64) float32, y (140,)."""
    train, _ = digits()
    mine = slice(number * IMAGES, (number + 1) * IMAGES)
    images = rotate(train.x[mine], 90 * (number % 2))
    assert train.y is not None
    return (images.reshape(-1, 64) / 255.0).astype(np.float32), train.y[mine]


def in_python(place: Place, number: int) -> Path:
    """A device that has joined. Returns its settings."""
    settings = place.joined(f"d{number}")
    x, y = samples(number)
    np.savez(settings.with_name("data.npz"), x=x, y=y)
    settings.write_text(yaml.safe_dump({"learner": LEARNER, "data": {"npz": "data.npz"}, "privacy": OWNER}))
    return settings


@contextmanager
def in_javascript(place: Place, number: int, *line: object) -> Iterator[Running]:
    """The example with these arguments, after the folder of its state."""
    script = (EXAMPLE / "device.js", place.root / f"d{number}" / "state", *line)
    with place.executing(f"d{number}", NODE, *script) as process:
        yield process


def joined_in_javascript(place: Place, number: int) -> Path:
    """A device that has joined. Returns its data."""
    data = place.root / f"d{number}" / "data.json"
    data.parent.mkdir()
    x, y = samples(number)
    data.write_text(json.dumps({"x": x.tolist(), "y": y.tolist()}))
    line = place.server("token", "create")["join"]
    with in_javascript(place, number, "join", line, f"d{number}") as joining:
        assert joining.wait(HANG) == 0, place.log(f"d{number}")
    return data


@needs_node
def test_both_languages_form_the_groups_and_a_newcomer_gets_the_model_of_its_own(tmp_path: Path) -> None:
    place = Place(tmp_path, of_devices={"SHOAL_PROTO": str(ROOT / "proto")})
    with place.up(), ExitStack() as stack:
        settings = {number: in_python(place, number) for number in PYTHON}
        data = {number: joined_in_javascript(place, number) for number in (*JAVASCRIPT, NEWCOMER)}
        everyone = f"{len(PYTHON) + len(JAVASCRIPT)}"
        policy = ("--devices", everyone, "--minimum", everyone, "--wait-for-devices", "600")
        parameters = ("--set", "rounds=4", "--set", "privacy=off")
        place.server("run", "start", "mixed", "--seed", "42", *policy, "--straggler-factor", "0", *parameters)
        agents = [
            place.running(f"d{number}", "fedclient", "run", "-c", path, "--until-finished")
            for number, path in settings.items()
        ] + [in_javascript(place, number, "train", data[number], HIDDEN) for number in JAVASCRIPT]
        for agent in [stack.enter_context(each) for each in agents]:
            assert agent.wait(HANG) == 0, place.log("server")
        found = place.server("run", "show", "mixed")
        assert found["stage"] == "finished"
        groups = {cluster: sorted(members) for cluster, members in found["clusters"].items()}
        assert sorted(groups.values()) == [["d0", "d2", "d4"], ["d1", "d3", "d5"]]
        rounds = place.server("run", "history", "mixed")["rounds"]
        reports = {(each["asked"], each["reported"], each["abandoned"]) for each in rounds}
        assert reports == {(3, 3, ""), (6, 6, "")}, "three devices make the first weights"
        with in_javascript(place, NEWCOMER, "place", data[NEWCOMER], HIDDEN) as placing:
            assert placing.wait(HANG) == 0, place.log(f"d{NEWCOMER}")
        cluster = place.log(f"d{NEWCOMER}").split("placed in ")[-1].strip()
        assert "d1" in groups[cluster], "whose images are turned as the newcomer's"
