"""A server whose clock is wrong for a while: it signs nothing, says so, and locks no device out."""

from pathlib import Path

from tests.e2e.places import Place

PROGRAM = """
import pathlib, time
real = time.time
time.time = lambda: real() + 86400.0 * float(pathlib.Path({path!r}).read_text())
from fedserver.__main__ import main
main()
"""


def set_clock(path: Path, days: int) -> None:
    """In one step: the server reads it all the time."""
    (path.parent / "next").write_text(str(days))
    (path.parent / "next").replace(path)


def test_nothing_is_signed_while_the_clock_is_in_doubt_and_devices_come_back(tmp_path: Path) -> None:
    place, clock = Place(tmp_path), tmp_path / "days"
    program = ("-c", PROGRAM.format(path=str(clock)))
    set_clock(clock, 0)
    with place.up(*program):
        place.joined("attic")
        assert place.server("status")["notices"] == []
        join = place.server("token", "create", "--ttl", "24h")["join"]
        settings = place.device("cellar")
        set_clock(clock, 20)
        (notice,) = place.server("status")["notices"]
        assert notice.startswith("the server's clock was set forward by 20.0 days while it ran")
        late = place.call(
            "fedclient", "join", "-", "-c", settings, given=place.server("token", "create")["join"]
        )
        assert late.returncode != 0
        assert "no certificate is signed now" in late.stderr
        set_clock(clock, 0)
        assert place.server("status")["notices"] == []
        done = place.call("fedclient", "join", "-", "-c", settings, "--device", "cellar", given=join)
        assert done.returncode == 0, done.stderr

    set_clock(clock, 20)  # it starts with a wrong clock, which no one can tell yet
    (place.state / "address").unlink(missing_ok=True)
    with place.up(*program):
        settings = place.joined("barn")
        set_clock(clock, 0)
        (notice,) = place.server("status")["notices"]
        assert notice.startswith("the server's clock was set back by 20.0 days while it ran")
        assert "restart the server" in notice
    (place.state / "address").unlink(missing_ok=True)
    with place.up(*program), place.running("barn", "-m", "fedclient", "run", "-c", settings):
        assert place.server("status")["notices"] == []
        place.wait_for(lambda: place.happened("rejoined", "barn"))
        place.wait_for(lambda: place.server("status")["devices"][1]["presence"] == "idle")

    # A machine whose clock is lost while the server does not run.
    set_clock(clock, -400)
    (place.state / "address").unlink(missing_ok=True)
    with place.up(*program):
        (notice,) = place.server("status")["notices"]
        assert "400.0 days behind the end of the audit log" in notice
