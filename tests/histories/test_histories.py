"""Every history keeps every promise; SHOAL_HISTORIES says how many are played (40; 10,000 at night).

They are played by processes of their own: a history answers for the machine's clock and files itself.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.postgresql import Cluster
from tests.programs import Verb

ROOT = Path(__file__).parents[2]
COUNT = int(os.environ.get("SHOAL_HISTORIES", "40"))
PROCESSES = 2
ON_POSTGRESQL = max(8, COUNT // 20)
"""Histories whose store is in PostgreSQL, which take a little longer."""


def started(*arguments: object) -> Verb:
    return Verb(["tests.histories", *map(str, arguments)], ROOT, os.environ)


@pytest.mark.timeout(900 + 10 * COUNT)  # only what hangs takes this long
def test_every_history_keeps_every_promise() -> None:
    share = -(-COUNT // PROCESSES)
    running = [started("--count", share, "--first", 1 + share * place) for place in range(PROCESSES)]
    ended = [process.end(None) for process in running]
    print("".join(each.stdout + each.stderr for each in ended))
    assert [each.returncode for each in ended] == [0] * PROCESSES


@pytest.mark.timeout(600)  # only what hangs takes this long
def test_histories_on_postgresql_keep_every_promise(postgresql: Cluster) -> None:
    ended = started("--count", ON_POSTGRESQL, "--postgresql", postgresql.database()).end(None)
    print(ended.stdout + ended.stderr)
    assert ended.returncode == 0


@pytest.mark.parametrize("seed", [11, 14])
def test_a_seed_is_the_same_history_in_every_process(seed: int) -> None:
    running = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.histories", str(seed), "--verbose"],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for hash_seed in ("1", "2")
    ]
    first, second = (process.communicate()[0] for process in running)
    assert len(first.splitlines()) > 500
    assert first == second
