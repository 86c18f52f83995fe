"""What the tests of reducers on other machines share."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from fedserver.store.engines import Elsewhere
from tests.postgresql import Cluster

if TYPE_CHECKING:  # it needs psycopg, which may be missing here
    from tests.server.reducers import Leader


@pytest.fixture(params=["folder", "bucket"])
def elsewhere(request: Any, postgresql: Cluster, tmp_path: Path) -> Elsewhere:
    blobs = tmp_path / "shared"
    return Elsewhere(
        postgresql.database(),
        request.getfixturevalue("buckets").bucket() if request.param == "bucket" else blobs,
    )


@pytest.fixture
def in_folder(postgresql: Cluster, tmp_path: Path) -> Elsewhere:
    return Elsewhere(postgresql.database(), tmp_path / "shared")


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.server.reducers import leave_all_jobs_to_reducers

    leave_all_jobs_to_reducers(monkeypatch)


@pytest.fixture
def leader(elsewhere: Elsewhere, tmp_path: Path, small: None) -> Iterator["Leader"]:
    from tests.server.reducers import Leader

    with closing(Leader(tmp_path / "state", elsewhere)) as found:
        yield found


@pytest.fixture
def leading(in_folder: Elsewhere, tmp_path: Path, small: None) -> Iterator["Leader"]:
    """A leader whose blobs are in a folder."""
    from tests.server.reducers import Leader

    with closing(Leader(tmp_path / "state", in_folder)) as found:
        yield found
