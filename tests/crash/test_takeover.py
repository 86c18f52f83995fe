"""A leader that is killed or stopped, and a database that is restarted: the run goes on, counted once.

This is a short slice; `python -m tests.crash.takeover` tries random moments.
"""

import time
from pathlib import Path

from shoal.shell import crash
from tests.crash.takeover import LOOK, Pair
from tests.postgresql import Cluster
from tests.waiting import HANG

DEVICES, ROUNDS = 3, 6
AWAY = "this server stands by: the database"


def test_the_run_goes_on_whatever_becomes_of_the_leader_and_of_the_database(
    postgresql: Cluster, tmp_path: Path
) -> None:
    pair = Pair(tmp_path, postgresql, DEVICES, ROUNDS)
    first, second = pair.servers
    with pair.running(**{crash.VARIABLE: "server.report-committing:4"}):
        assert first.process is not None
        first.process.wait()
        pair.until_led(second)
        first.start()
        pair.until_led(first, "stands by")
        pair.stop_and_wake(second)
        pair.until_led(second, "stands by")
        assert "leads no more" in second.log()
        postgresql.stop()
        deadline = time.monotonic() + HANG
        while not all(AWAY in server.log() for server in pair.servers):
            assert time.monotonic() < deadline
            time.sleep(LOOK)
        postgresql.start()
        pair.check()
