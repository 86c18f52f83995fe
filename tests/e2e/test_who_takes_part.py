"""`run start` says at once which connected devices take part, which ask their owners, and which cannot."""

from contextlib import ExitStack
from pathlib import Path

import numpy as np

from shoal.core.device_kit.learner import builtin, initial_weights
from shoal.shell.weights import save
from tests.e2e.places import Place

NAMES = ("attic", "barn", "cellar", "dairy")


def test_run_start_and_status_say_who_takes_part_and_why_not(tmp_path: Path) -> None:
    place = Place(tmp_path)
    with place.up(), ExitStack() as agents:
        settings = {name: place.joined(name, rules=name != "cellar") for name in NAMES}
        np.savez(settings["dairy"].parent / "data.npz", x=np.ones((60, 5), np.float32), y=np.arange(60) % 2)
        settings["dairy"].write_text(settings["dairy"].read_text().replace("inputs: 4", "inputs: 5"))
        for name, path in settings.items():
            agents.enter_context(place.running(name, "fedclient", "run", "-c", path))
        place.wait_for(lambda: here(place) == len(NAMES))
        # If a device were asked for them it could be the dairy's, and then the others had the wrong shape.
        first = initial_weights(builtin("mlp", {"inputs": 4, "hidden": (4,), "classes": 2}), 0)
        save(first, tmp_path / "first.safetensors", {})
        start = ("run", "start", "trial", "--algorithm", "fedavg", "--set", "rounds=100000")
        start += ("--initial-weights", "first.safetensors")
        said = place.call("fedserver", *start, "--state", place.state)
        assert said.returncode == 0, said.stderr
        assert "; 1 lacks its owner's consent (`fedclient consent`): cellar" in said.stdout
        place.wait_for(
            lambda: (
                answers(place)
                == {"attic": "yes", "barn": "yes", "cellar": "no-consent", "dairy": "other-shape"}
            )
        )
        (notice,) = place.server("status")["notices"]
        assert notice == (
            "run trial: 2 of 4 devices can take part; 1 lacks its owner's consent (`fedclient consent`): "
            "cellar; 1 cannot, as other-shape: dairy"
        )
        log = place.call("fedserver", "run", "logs", "trial", "--state", place.state).stdout
        assert "the run's model: [4, 4] in the run, and [4, 5] here [other-shape]" in log
        given = place.call("fedclient", "consent", "give", "trial", "-c", settings["cellar"])
        assert given.returncode == 0, given.stderr
        place.wait_for(lambda: answers(place)["cellar"] == "yes")


def answers(place: Place) -> dict[str, str]:
    found: dict[str, str] = place.server("run", "show", "trial")["answers"]
    return found


def here(place: Place) -> int:
    return sum(each["presence"] == "idle" for each in place.server("status")["devices"])
