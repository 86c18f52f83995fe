"""A device is withdrawn between real processes over mutual TLS; the server is killed with -9 in each step."""

import signal
from pathlib import Path

from tests.e2e.places import Place
from tests.waiting import HANG

RUN = ("fedclient", "run", "--until-finished")


def trained(place: Place, *names: str) -> None:
    """Each device runs until no run is left."""
    work = [
        place.running(name, "fedclient", "run", "-c", place.root / name / "device.yaml", "--until-finished")
        for name in names
    ]
    devices = [each.__enter__() for each in work]
    try:
        assert [device.wait(HANG) for device in devices] == [0] * len(names)
    finally:
        for each in work:
            each.__exit__(None, None, None)


def test_a_withdrawal_survives_kills_at_every_step_and_the_run_goes_on_without_it(tmp_path: Path) -> None:
    place = Place(tmp_path)
    verb = ("device", "withdraw", "zelda", "--yes", "--replay", "a")

    def killed_at(point: str) -> None:
        place.of_server["SHOAL_CRASH_AT"] = point
        with place.up() as server:
            place.of_server.clear()
            # Until its files are checked, it answers that it does not know yet.
            place.wait_for(lambda: place.verb(*verb) and server.poll())
            assert server.wait(HANG) == -signal.SIGKILL

    with place.up():
        for name in ("pi-17", "zelda"):
            place.joined(name)
        place.server("run", "start", "a", "--algorithm", "fedavg", "--set", "rounds=2", "--minimum", "2")
        trained(place, "pi-17", "zelda")
        place.server("run", "start", "b", "--algorithm", "fedavg", "--set", "rounds=1")
        trained(place, "pi-17")
        price = place.server("device", "withdraw", "zelda")
        (run,) = price["runs"]
        assert (run["run"], run["with_it"], run["rounds"], run["devices"]) == ("a", ["global"], 2, 1)
        assert (price["standing"], run["epsilon"], run["back_to"] > 0) == ("approved", 0.0, True)
        kept = place.server("run", "show", "b")["models"]
        place.server("release", "create", "a", "v1")
    for point in ("server.device-withdrawn", "server.round-committing", "server.round-saved"):
        killed_at(point)
    killed_at("server.device-forgetting")
    with place.up():
        place.wait_for(lambda: not place.verb(*verb).returncode)
        done = place.server(*verb[:-2])
        assert (done["standing"], done["runs"]) == ("withdrawn", [])
        marks = {each["release"]: each["withdrawn"] for each in place.server("release", "ls")["releases"]}
        assert marks["a@v1"] == ["zelda"]
        assert place.happened("withdrawn", "zelda") == 1
        assert place.server("run", "show", "b")["models"] == kept, "bit by bit"
        back = place.call("fedclient", "run", "-c", tmp_path / "zelda" / "device.yaml", "--until-finished")
        assert (back.returncode, "zelda was withdrawn" in back.stderr) == (5, True), back.stderr
        assert place.server("run", "show", "a")["stage"] == "waiting"
        place.server("run", "set", "a", "--minimum", "1")
        trained(place, "pi-17")
        again = place.server("run", "show", "a")
        assert (again["stage"], again["progress"]) == ("finished", 2)
        assert list(again["clusters"].values()) == [["pi-17"]]
