"""The engines on which the store's contract is tested: a test that takes `engine` runs on each of them."""

import time
from pathlib import Path
from typing import Any

import pytest

from fedserver.store.engines import Elsewhere
from fedserver.store.store import Store
from shoal.core.errors import NotLeader
from tests.postgresql import Cluster
from tests.waiting import HANG


class Engine:
    """Opens stores. A state folder that is opened again has the database that it had.

    cluster: where the databases are; None: in the folders.
    """

    def __init__(self, cluster: Cluster | None) -> None:
        self._cluster, self._urls = cluster, dict[Path, str]()

    def open(self, state: Path) -> Store:
        if self._cluster is None:
            return Store(state)
        if state not in self._urls:
            self._urls[state] = self._cluster.database()
        deadline = time.monotonic() + HANG
        while True:
            try:
                return Store(state, Elsewhere(self._urls[state], state / "shared"))
            except NotLeader:  # PostgreSQL has not noticed yet that the process before was killed
                assert time.monotonic() < deadline
                time.sleep(0.02)

    def blobs(self, state: Path, kind: str = "blobs") -> list[Path]:
        """The files of blobs, or those of another kind, such as partial."""
        top = state if self._cluster is None else next((state / "shared").glob("blobs-*"))
        return sorted((top / kind).glob("*/*" if kind != "tmp" else "*"))

    def is_sqlite(self) -> bool:
        return self._cluster is None


@pytest.fixture(params=["sqlite", "postgresql"])
def engine(request: Any) -> Engine:
    return Engine(None if request.param == "sqlite" else request.getfixturevalue("postgresql"))
