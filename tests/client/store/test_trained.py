"""On which data a device has trained last in a series."""

from pathlib import Path

import pytest

from fedclient.store.ledger import Ledger
from fedclient.store.trained import MAX_SERIES, Trained
from shoal.core.errors import NoNewData
from shoal.core.privacy.budget import Budget
from shoal.core.privacy.ledger.entries import Open, chosen
from shoal.core.privacy.report import OPEN


def test_later_runs_of_a_series_have_no_use_for_the_same_data(tmp_path: Path) -> None:
    trained = Trained.beside(tmp_path / "blobs")
    trained.check("daily", "daily", "one")
    trained.note("daily", "daily", "one")
    trained.check("daily", "daily", "one")  # its next round
    for again in (trained, Trained.beside(tmp_path / "blobs")):
        with pytest.raises(NoNewData, match="run daily-2 goes on from what run daily has learned"):
            again.check("daily", "daily-2", "one")
    trained.check("daily", "daily-2", "two")
    trained.check("other", "other-2", "one")


def test_a_server_that_names_many_series_fills_no_disk_and_a_damaged_file_is_none(tmp_path: Path) -> None:
    file = tmp_path / "trained.json"
    trained = Trained(file)
    for number in range(MAX_SERIES + 1):
        trained.note(f"s{number}", "run", "one")
    trained.check("s0", "later", "one")
    with pytest.raises(NoNewData):
        trained.check("s1", "later", "one")
    for text in (b"", b"{", b"[]", b'{"s1": 3}', b'{"s1": ["run"]}', b"\xff"):
        file.write_bytes(text)
        trained.check("s1", "later", "one")
    trained.note("s1", "run", "one")
    with pytest.raises(NoNewData):
        trained.check("s1", "later", "one")


@pytest.mark.parametrize("allowed", [True, False])
def test_whether_data_have_changed_leaves_only_where_the_owner_lets_it(tmp_path: Path, allowed: bool) -> None:
    ledger = Ledger(tmp_path, Budget(allow_plain_weights=allowed)).of("daily-2")
    assert ledger.tells(OPEN["changes"], "one") is allowed
    assert [each.what for each in chosen(ledger.entries(), Open)] == [OPEN["changes"]] * allowed
