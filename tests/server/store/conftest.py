"""The engines on which the store's contract is tested: a test that takes `engine` runs on each of them."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fedserver.store.engines import Elsewhere
from fedserver.store.store import Store
from shoal.core.errors import NotLeader
from tests.buckets import Buckets
from tests.postgresql import Cluster
from tests.server.store.samples import RECORD, checkpoint
from tests.waiting import HANG


class Engine:
    """Opens stores. A state folder that is opened again has the database and the bucket that it had.

    cluster: where the databases are; None: in the folders. buckets: where the blobs are; None: in folders.
    """

    def __init__(self, cluster: Cluster | None, buckets: Buckets | None = None) -> None:
        self._cluster, self._buckets, self._places = cluster, buckets, dict[Path, Elsewhere]()

    def open(self, state: Path) -> Store:
        if self._cluster is None:
            return Store(state)
        if state not in self._places:
            blobs = self._buckets.bucket() if self._buckets else state / "shared"
            self._places[state] = Elsewhere(self._cluster.database(), blobs)
        deadline = time.monotonic() + HANG
        while True:
            try:
                return Store(state, self._places[state])
            except NotLeader:  # PostgreSQL has not noticed yet that the process before was killed
                assert time.monotonic() < deadline
                time.sleep(0.02)

    def blobs(self, state: Path, kind: str = "blobs") -> list[Path]:
        """The files of blobs, or those of another kind, such as partial."""
        shared = self._cluster is not None and self._buckets is None
        top = next((state / "shared").glob("blobs-*")) if shared else state
        return sorted((top / kind).glob("*/*" if kind != "tmp" else "*"))

    def is_sqlite(self) -> bool:
        return self._cluster is None


ENGINES = {"sqlite": (), "postgresql": ("postgresql",), "bucket": ("postgresql", "buckets")}


@pytest.fixture(params=ENGINES)
def engine(request: Any) -> Engine:
    needed = [request.getfixturevalue(name) for name in ENGINES[request.param]]
    return Engine(*needed or [None])


@pytest.fixture
def store(engine: Engine, tmp_path: Path) -> Iterator[Store]:
    """A store that has one run, `RECORD`."""
    opened = engine.open(tmp_path / "state")
    opened.runs.add(RECORD, checkpoint(opened, 0.0))
    yield opened
    opened.close()
