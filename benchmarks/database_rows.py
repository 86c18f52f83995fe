"""How many rows of the database a report changes: counted by PostgreSQL in a run of the real coordinator.

    python -m benchmarks.database_rows [--devices 40] [--rounds 5]

Devices of the tests work on the coordinator directly, without a network; the database and the folder of blobs
are this program's own. Rows of earlier rounds are deleted some rounds later, so in a long run each row of a
report that was inserted is deleted once: both are counted here.
"""

import argparse
import asyncio
import tempfile
import time
from pathlib import Path

from fedserver.coordinator.coordinator import Coordinator
from fedserver.store.engines import Elsewhere
from shoal.core.engine.rounds import RoundPolicy
from tests import postgresql
from tests.server.servers import SETTINGS, serve_all, start

QUERY = """
SELECT relname, n_tup_ins, n_tup_upd, n_tup_del FROM pg_stat_user_tables
WHERE n_tup_ins + n_tup_upd + n_tup_del > 0 ORDER BY 2 DESC
"""
FLUSHED = 2.0
"""Seconds after which PostgreSQL has counted what a session did."""


async def _play(state: Path, elsewhere: Elsewhere, devices: int, rounds: int) -> None:
    coordinator = await Coordinator.open(state, SETTINGS, elsewhere)
    try:
        policy = RoundPolicy(devices=devices, minimum=devices)
        await start(coordinator, parameters={"rounds": rounds}, policy=policy)
        await serve_all(coordinator, range(devices))
    finally:
        await coordinator.close()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.database_rows")
    parser.add_argument("--devices", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    with postgresql.cluster() as running, tempfile.TemporaryDirectory() as folder:
        elsewhere = Elsewhere(running.database(), Path(folder) / "shared")
        asyncio.run(_play(Path(folder) / "state", elsewhere, options.devices, options.rounds))
        time.sleep(FLUSHED)
        with running.session(elsewhere.database) as session:
            tables = {name: counts for name, *counts in session.execute(QUERY).fetchall()}
    reports, last = tables["reports"][0], options.devices
    of_reports = sum(tables[name][0] for name in ("reports", "report_blobs"))
    for name, (inserted, updated, deleted) in tables.items():
        print(f"{name:18} {inserted:6} inserted {updated:6} updated {deleted:6} deleted")
    print(f"{reports} reports, of which the last {last} have no model")
    print(f"rows of reports, inserted and later deleted: {2 * of_reports / reports:.1f} a report")


if __name__ == "__main__":
    main()
