"""Devices and a server as real processes over mutual TLS: they join, renew, sleep too long, are revoked."""

import os
from pathlib import Path

import pytest

from shoal.core.identity.join import parse
from tests.e2e.places import Place
from tests.waiting import HANG

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
