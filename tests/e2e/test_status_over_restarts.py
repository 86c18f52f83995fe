"""A server is restarted while devices work, and operators see it all the time that it runs."""

import asyncio
from pathlib import Path

from benchmarks.watched_restarts import measure


def test_no_status_fails_because_devices_come_back(tmp_path: Path) -> None:
    found = asyncio.run(measure(tmp_path, 2, 2, without_data=False))

    assert found["why"] == []
    assert found["answered"] > 0
