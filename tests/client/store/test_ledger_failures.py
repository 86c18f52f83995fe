"""Failures are noted with the ledger; a server that makes tasks fail does not fill the disk with them."""

import json
from itertools import count
from pathlib import Path

import pytest

from fedclient.store import failures as module
from fedclient.store.failures import FAILURES
from fedclient.store.ledger import Ledger
from fedclient.store.ledger_file import LEDGER
from fedclient.store.privacy_report import rows, statement, text
from shoal.core.privacy.budget import Budget
from shoal.core.privacy.ledger.entries import Failed, FailedBefore, chosen, paid, spent
from shoal.core.privacy.payment import ACCURACY
from tests.client.store.paying import ONE_COUNT, counted

LINES, NEWEST = 5, 7


@pytest.fixture
def ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ledger:
    monkeypatch.setattr(module, "LINES", LINES)
    monkeypatch.setattr(module, "NEWEST", NEWEST)
    return Ledger(tmp_path, Budget(), clock=map(float, count()).__next__)


def test_the_first_failures_are_lines_and_of_the_others_the_newest_are_kept(
    ledger: Ledger, tmp_path: Path
) -> None:
    for number in range(LINES):
        ledger.failed("r1", f"code-{number}")
    size = (tmp_path / LEDGER).stat().st_size
    for number in range(LINES, 30):
        ledger.failed("r1", f"code-{number}")
    assert (tmp_path / LEDGER).stat().st_size == size
    entries = ledger.entries()
    codes = [each.code for each in chosen(entries, Failed)]
    assert codes == [f"code-{number}" for number in (*range(LINES), *range(30 - NEWEST, 30))]
    assert chosen(entries, FailedBefore) == [FailedBefore(30 - LINES - NEWEST)]
    assert statement(entries, Budget()).failures == 30
    assert "the server learned that 30 tasks failed" in text(entries, Budget())
    assert "18 tasks failed then, which are only counted; the newest follow" in text(entries, Budget())
    assert {"times": 18} in rows(entries)
    assert chosen(Ledger(tmp_path, Budget()).verify(), Failed) == chosen(entries, Failed)[:LINES]


def test_no_failure_takes_the_place_of_a_debit(ledger: Ledger, tmp_path: Path) -> None:
    for _ in range(30):
        ledger.failed("r1", "bug")
    counted(ledger, ONE_COUNT, lambda: 5)
    for _ in range(30):
        ledger.failed("r1", "bug")
    entries = Ledger(tmp_path, Budget()).verify()
    assert len(paid(entries, ACCURACY)) == 1
    assert spent(entries).rho == ONE_COUNT.cost.rho
    assert text(ledger.entries(), Budget()).count("the server learned 'bug'") == 2, "one line, and the newest"


@pytest.mark.parametrize(
    "damaged",
    ["", "[]", "{", '{"before": 1}', '{"before": -1, "newest": []}', '{"before": 0, "newest": [["r", 1, 2]]}',
     '{"before": 0, "newest": [[1.0]]}', '{"before": 0, "newest": 7}', "[" * 100_000],
)  # fmt: skip
def test_a_damaged_file_of_failures_begins_anew(ledger: Ledger, tmp_path: Path, damaged: str) -> None:
    for _ in range(LINES + 1):
        ledger.failed("r1", "bug")
    (tmp_path / FAILURES).write_text(damaged)
    assert len(ledger.entries()) == LINES
    ledger.failed("r2", "failed")
    assert json.loads((tmp_path / FAILURES).read_text())["before"] == 0
    last = ledger.entries()[-1]
    assert isinstance(last, Failed)
    assert (last.run, last.code) == ("r2", "failed")
    ledger.verify()
