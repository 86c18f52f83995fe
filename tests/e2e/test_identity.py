"""Devices and a server as real processes over mutual TLS: they join, sleep, change their keys, are revoked,
forgotten and installed again, whatever their clocks say."""

import json
import os
import shutil
import signal
import subprocess
import sys
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path

import pytest

from shoal.core.identity.join import parse
from tests.e2e.places import Place
from tests.programs import Running
from tests.waiting import HANG

IDENTITY = "state/identity/identity.json"


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
        assert "fedclient leave" in again.stdout
        other = place.call(
            "fedclient", "join", "join.txt", "-c", place.device("cellar"), "--device", "cellar"
        )
        assert other.returncode == 5
        assert "used up" in other.stderr
        seen = place.call("fedclient", "status", "-c", settings)
        assert "identity:    train in federation shoal\n" in seen.stdout
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


def test_a_revoked_device_is_told_and_no_round_waits_for_it(place: Place) -> None:
    """It is held in the middle of a round. Any wait for it, now or in a later round, would never end."""
    names, long = ("attic", "barn", "cellar"), "100000"
    with place.up(), ExitStack() as started:
        settings = {name: place.joined(name) for name in names}
        agents = {name: started.enter_context(runs(place, name, path)) for name, path in settings.items()}
        place.wait_for(lambda: all(is_idle(place, name) for name in names))
        waits = ("--wait-for-devices", long, "--deadline", long, "--device-timeout", long)
        policy = ("--devices", "3", "--minimum", "2", "--straggler-factor", "0", *waits)
        place.server("run", "start", "a", "--algorithm", "fedavg", "--set", "rounds=60", *policy)
        place.wait_for(lambda: place.server("run", "show", "a")["progress"])
        agents["cellar"].send_signal(signal.SIGSTOP)
        try:
            place.wait_for(lambda: place.server("run", "show", "a")["waiting_devices"] == ["cellar"])
            assert place.server("device", "revoke", "cellar")["standing"] == "revoked"
            place.wait_for(lambda: place.server("run", "show", "a")["stage"] == "finished")
        finally:
            agents["cellar"].send_signal(signal.SIGCONT)
        assert agents["cellar"].wait(HANG) == 5
        rounds = place.server("run", "history", "a", "--rounds", "100", "--devices")["rounds"]
        missing = [device["device"] for each in rounds for device in each["devices"] if device["missing"]]
        assert (missing, rounds[-1]["progress"], rounds[-1]["asked"]) == (["cellar"], 60, 2)
    assert "error[revoked]: device cellar was revoked" in place.log("cellar")


def test_a_device_waits_for_a_server_that_starts_again(place: Place) -> None:
    with place.up() as server:
        settings = place.joined("attic")
        place.server("run", "start", "a", "--algorithm", "fedavg", "--minimum", "1", "--set", "rounds=1")
        server.kill()
        server.wait()
        (place.state / "address").unlink()
    with place.running("attic", "fedclient", "run", "-c", settings, "--until-finished") as agent:
        place.wait_for(lambda: "does not answer" in place.log("attic"))
        with place.up():
            assert agent.wait(HANG) == 0
            assert place.server("run", "show", "a")["stage"] == "finished"


def is_idle(place: Place, device: str) -> bool:
    found = {each["device"]: each["presence"] for each in place.server("status")["devices"]}
    return found.get(device) == "idle"


def runs(place: Place, name: str, settings: Path) -> AbstractContextManager[Running]:
    return place.running(name, "fedclient", "run", "-c", settings)


def test_the_servers_key_changes_under_a_device_and_while_another_sleeps(place: Place) -> None:
    with place.up():
        awake, asleep = place.joined("attic"), place.joined("cellar")
        before = place.identity("attic")
        with runs(place, "attic", awake) as agent:
            place.wait_for(lambda: is_idle(place, "attic"))
            for _ in range(2):
                place.server("authority", "rotate")
        with place.running("attic", "fedclient", "run", "-c", awake) as agent:
            place.wait_for(lambda: place.identity("attic")["authority"] != before["authority"])
            place.wait_for(lambda: is_idle(place, "attic"))
            with runs(place, "cellar", asleep):
                place.wait_for(lambda: is_idle(place, "cellar"))
            assert agent.poll() is None
        assert "came back with its key" in place.log("cellar")
        assert place.identity("attic")["key"] == before["key"]
        late = place.joined("barn")  # with a join string of now
        with runs(place, "barn", late):
            place.wait_for(lambda: is_idle(place, "barn"))
    assert os.listdir(place.root / "attic" / "state" / "identity") == ["identity.json"]


def test_a_stolen_key_ends_with_its_change_and_a_lost_answer_locks_no_one_out(place: Place) -> None:
    with place.up():
        settings = place.joined("attic")
        stolen = place.root / "stolen"
        shutil.copytree(place.root / "attic", stolen)
        done = place.call("fedclient", "rekey", "-c", settings)
        assert done.returncode == 0, done.stderr
        thief = place.call("fedclient", "run", "-c", stolen / "device.yaml")
        assert (thief.returncode, "error[revoked]" in thief.stderr) == (5, True)
        lost = place.root / "lost"
        shutil.copytree(place.root / "attic", lost)
        crash = {**os.environ, "SHOAL_CRASH_AT": "disk.synced:2"}  # the answer came, and was not stored
        program = [sys.executable, "-m", "fedclient", "rekey", "-c", str(settings)]
        assert subprocess.run(program, env=crash, cwd=place.root, timeout=HANG).returncode != 0
        assert place.identity("attic")["key"] == json.loads((lost / IDENTITY).read_text())["key"]
        assert place.happened("key-changed", "attic") == 2
        with runs(place, "attic", settings):
            place.wait_for(lambda: is_idle(place, "attic"))
        assert place.happened("key-changed", "attic") == 2
        thief = place.call("fedclient", "run", "-c", lost / "device.yaml")
        assert (thief.returncode, "error[revoked]" in thief.stderr) == (5, True)


def test_a_server_from_an_old_backup_lets_nobody_in_by_mistake_and_all_by_one_approval(place: Place) -> None:
    with place.up():
        first, out = place.joined("attic"), place.joined("shed")
        place.server("backup", place.root / "backup")
        late = place.joined("barn")
        place.server("device", "revoke", "shed")
        done = place.call("fedclient", "rekey", "-c", first)
        assert done.returncode == 0, done.stderr
    shutil.rmtree(place.state)
    place.server("restore", place.root / "backup")
    with place.up():
        revoked = place.call("fedclient", "run", "-c", out)
        assert (revoked.returncode, "error[revoked]" in revoked.stderr) == (5, True)
        with runs(place, "attic", first), runs(place, "barn", late):
            waits = "2 devices wait for approval, attic, barn: fedserver device approve --all"
            place.wait_for(lambda: waits in place.server("status")["notices"])
            place.server("device", "approve", "--all", "--yes")
            place.wait_for(lambda: is_idle(place, "attic") and is_idle(place, "barn"))


def test_a_device_that_was_installed_again_takes_its_place_once_approved(place: Place) -> None:
    with place.up():
        settings = place.joined("attic")
        with runs(place, "attic", settings) as former:
            place.wait_for(lambda: is_idle(place, "attic"))
            line = place.server("token", "create")["join"]
            again = place.device("again")
            with place.running("joins", "fedclient", "join", line, "-c", again, "--device", "attic") as it:
                place.wait_for(lambda: "waiting for an operator's approval" in place.log("joins"))
                assert former.poll() is None
                place.server("device", "approve", "attic", "--yes")
                assert it.wait(HANG) == 0
            assert former.wait(HANG) == 5
        assert "error[revoked]" in place.log("attic")
        with runs(place, "again", again):
            place.wait_for(lambda: is_idle(place, "attic"))
        done = place.call("fedclient", "leave", "-c", again, "--yes")
        assert done.returncode == 0, done.stderr
        back = ("fedclient", "join", place.server("token", "create")["join"], "-c", again)
        with place.running("back", *back) as it:  # its folder knows its name
            place.wait_for(lambda: "waiting for an operator's approval" in place.log("back"))
            place.server("device", "approve", "--all", "--yes")
            assert it.wait(HANG) == 0
        assert "attic joined federation shoal" in place.log("back")
        assert f"next: fedclient run --config {again}" in place.log("back")


FAKETIME = os.environ.get("SHOAL_FAKETIME", "/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1")
LONG_AGO, FAR = "@1970-01-02 00:00:00", "@2100-01-01 00:00:00"


def clock(file: Path) -> dict[str, str]:
    """The variables of a process whose clock is what this file says, also for TLS."""
    return {
        "LD_PRELOAD": FAKETIME,
        "FAKETIME_TIMESTAMP_FILE": str(file),
        "FAKETIME_CACHE_DURATION": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
    }


@pytest.mark.skipif(not Path(FAKETIME).is_file(), reason="libfaketime is not installed (SHOAL_FAKETIME)")
def test_no_clock_locks_a_fleet_out(tmp_path: Path) -> None:
    """On either side: of 1970, of 2100, and one that is twenty days ahead for a while."""
    theirs, ours = tmp_path / "theirs", tmp_path / "ours"
    theirs.write_text(LONG_AGO)
    ours.write_text("+20d")
    place = Place(tmp_path, clock(ours), clock(theirs))
    with place.up():
        settings = place.joined("attic")  # its certificate is made by a clock that is ahead
        with runs(place, "attic", settings):
            place.wait_for(lambda: is_idle(place, "attic"))
            ours.write_text("+0")
            place.wait_for(lambda: is_idle(place, "attic"))
    for server, device in ((LONG_AGO, FAR), (FAR, LONG_AGO), ("+0", FAR)):
        ours.write_text(server)
        theirs.write_text(device)
        (place.state / "address").unlink(missing_ok=True)
        with place.up():
            place.server("authority", "rotate")
            with runs(place, "attic", settings):
                place.wait_for(lambda: is_idle(place, "attic"))
            name = f"d{server[1:5]}{device[1:5]}".replace("-", "")
            with runs(place, name, place.joined(name)):
                place.wait_for(lambda name=name: is_idle(place, name))
