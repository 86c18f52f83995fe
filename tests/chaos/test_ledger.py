"""The account that chaos keeps: it sees a report that is lost, and one that is counted twice."""

from typing import Any

import pytest

from fedserver.store.runs import VERSIONS
from shoal.core.server_kit.history.records import DeviceRound, RoundHistory
from tests.chaos.ledger import account

BLOB = "ab" * 32


def receipt(round: int, outcome: str = "accepted", blob: str = BLOB) -> dict[str, Any]:
    return {"round": round, "outcome": outcome, "failed": False, "blobs": [blob]}


def closed(reported: int, missing: dict[str, str] | None = None, abandoned: str = "") -> RoundHistory:
    absent = tuple(DeviceRound(device, missing=why) for device, why in (missing or {}).items())
    asked = reported + len(absent)
    return RoundHistory(1, asked=asked, reported=reported, abandoned=abandoned, devices=absent)


def payload(blob: str = BLOB) -> str:
    return f'{{"kind": "trained", "blob": "{blob}"}}'


def test_what_is_there_counts_once_however_often_it_was_acknowledged() -> None:
    said = {"ant": [receipt(1), receipt(1, "duplicate")], "bee": [receipt(1, "duplicate")]}
    found = account(said, {1: closed(2)}, {("ant", 1): payload(), ("bee", 1): payload()})
    assert (found.acknowledged, found.lost, found.twice, found.problems) == (2, 0, 0, [])


@pytest.mark.parametrize(
    ("rounds", "reports"),
    [
        pytest.param({}, {}, id="no such round"),
        pytest.param({1: closed(1, {"ant": "gone"})}, {("bee", 1): payload()}, id="it was left out"),
        pytest.param({1: closed(1)}, {("bee", 1): payload()}, id="another one is stored"),
        pytest.param({1: closed(1)}, {("ant", 1): payload("cd" * 32)}, id="other bytes are stored"),
    ],
)
def test_an_acknowledged_report_that_did_not_count_is_lost(rounds: Any, reports: Any) -> None:
    found = account({"ant": [receipt(1)]}, rounds, reports)
    assert found.lost == 1
    assert "lost: the report of ant in round 1" in found.problems


def test_a_report_of_a_round_that_was_given_up_is_not_lost() -> None:
    found = account({"ant": [receipt(1)]}, {1: closed(1, {"bee": "gone"}, "too few")}, {})
    assert (found.acknowledged, found.lost) == (1, 0)


def test_a_report_of_a_round_that_is_not_kept_any_more_counted_unless_it_was_missing() -> None:
    rounds = {1: closed(1), VERSIONS: closed(0, {"ant": "gone"}, "too few")}
    assert account({"ant": [receipt(1)]}, rounds, {}).lost == 0
    rounds[1] = closed(1, {"ant": "gone"})
    assert account({"ant": [receipt(1)]}, rounds, {}).lost == 1


def test_a_report_of_a_round_that_is_kept_has_to_be_there() -> None:
    rounds = {1: closed(1), VERSIONS - 1: closed(0, {"ant": "gone"}, "too few")}
    assert account({"ant": [receipt(1)]}, rounds, {}).lost == 1


def test_a_report_that_is_accepted_again_is_counted_twice() -> None:
    found = account({"ant": [receipt(1), receipt(1)]}, {1: closed(1)}, {("ant", 1): payload()})
    assert found.twice == 1


def test_a_round_counts_as_many_as_it_stores() -> None:
    found = account({}, {1: closed(2)}, {("ant", 1): payload()})
    assert found.problems == ["round 1 counted 2 reports, and 1 are stored"]


def test_late_and_refused_reports_and_failures_are_nobodys_loss() -> None:
    said = [receipt(1, "late"), receipt(1, "refused"), {**receipt(1), "failed": True}]
    assert account({"ant": said}, {1: closed(0, {"ant": "it failed"})}, {}).acknowledged == 0
