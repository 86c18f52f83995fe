"""A leader that is killed or stopped, and a database that is restarted: the run goes on, counted once.

This is a short slice; `python -m tests.crash.takeover` tries random moments.
"""

import shutil
import signal
import time
from pathlib import Path

from shoal.shell import crash
from tests.buckets import Buckets
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


def test_with_a_bucket_nothing_of_the_leader_is_needed_and_the_run_waits_for_the_bucket(
    postgresql: Cluster, buckets: Buckets, tmp_path: Path
) -> None:
    pair = Pair(tmp_path, postgresql, DEVICES, ROUNDS, str(buckets.bucket()))
    first, second = pair.servers
    with pair.running(**{crash.VARIABLE: "server.report-committing:4"}):
        assert first.process is not None
        assert second.process is not None
        second.process.send_signal(signal.SIGSTOP)  # it takes over only once the bucket is away
        first.process.wait()
        shutil.rmtree(first.state)
        buckets.stop()
        try:
            second.process.send_signal(signal.SIGCONT)
            deadline = time.monotonic() + HANG
            while "this server stands by: the bucket" not in second.log():
                assert time.monotonic() < deadline
                time.sleep(LOOK)
        finally:
            buckets.start()
        pair.until_led(second)
        pair.check()
