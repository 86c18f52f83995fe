"""Recall and budget by public dates: no answer tells whether the data have changed."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedclient.store.ledger import DAY, Ledger
from fedclient.store.ledger_file import LEDGER, LedgerFile
from fedclient.store.privacy_report import statement, text
from shoal.core.errors import ConfigError, LedgerFault, OverBudget
from shoal.core.privacy.accountant import Poll, Tally
from shoal.core.privacy.budget import Budget
from shoal.core.privacy.cost import ORDERS
from shoal.core.privacy.ledger import Cast, Counted, Debit, Failed, chosen
from tests.client.store.test_ledger import exact, order

DEFAULT = Budget()


class Clock:
    """Days since 1970."""

    def __init__(self) -> None:
        self.day = 1000.0

    def __call__(self) -> float:
        return self.day * DAY


@pytest.fixture
def clock() -> Clock:
    return Clock()


def ledger(folder: Path, clock: Clock, budget: Budget = DEFAULT, source: str = "digits.npz") -> Ledger:
    return Ledger(folder, budget, source, clock=clock)


def unexpected() -> None:
    raise AssertionError("nothing is to be computed")


def test_within_the_window_the_same_bytes_leave_whatever_became_of_the_data(
    tmp_path: Path, clock: Clock
) -> None:
    own = ledger(tmp_path, clock)
    first = own.release(order(data="a"), exact)
    clock.day += 29.9
    again = own.release(order(data="b"), unexpected)  # type: ignore[arg-type]
    assert again.statistics.values.tolist() == first.statistics.values.tolist()  # type: ignore[union-attr]
    assert len(chosen(own.verify(), Debit)) == 1


def test_after_the_window_a_new_one_is_drawn_even_of_the_same_data(tmp_path: Path, clock: Clock) -> None:
    own = ledger(tmp_path, clock)
    first = own.release(order(), exact)
    clock.day += 30.1
    second = own.release(order(), exact)
    assert second.statistics.values.tolist() != first.statistics.values.tolist()  # type: ignore[union-attr]
    assert len(chosen(own.verify(), Debit)) == 2


def test_what_is_refused_does_not_depend_on_whether_data_changed(tmp_path: Path, clock: Clock) -> None:
    for changed in (False, True):
        own = ledger(tmp_path / str(changed), clock)
        own.release(order(data="a"), exact)
        now = "b" if changed else "a"
        with pytest.raises(OverBudget):
            own.release(order(encoder="f", data=now), exact)


def test_when_the_budget_is_spent_for_good_the_old_bytes_are_better_than_none(
    tmp_path: Path, clock: Clock
) -> None:
    own = ledger(tmp_path, clock)
    releases = []
    for _ in range(6):
        releases.append(own.release(order(), exact).statistics.values.tolist())  # type: ignore[union-attr]
        clock.day += 31
    assert len(chosen(own.verify(), Debit)) == 3  # total_epsilon is three of balanced
    assert releases[3:] == [releases[2]] * 3


def test_another_file_is_another_source(tmp_path: Path, clock: Clock) -> None:
    first = ledger(tmp_path, clock).release(order(data="a"), exact)
    other = ledger(tmp_path, clock, source="other.npz").release(order(data="b"), exact)
    assert other.statistics.values.tolist() != first.statistics.values.tolist()  # type: ignore[union-attr]


def test_one_run_cannot_spend_what_others_need(tmp_path: Path, clock: Clock) -> None:
    own = ledger(tmp_path, clock, Budget(epsilon=8.0, total_epsilon=8.0, run_epsilon=5.0))
    own.of("greedy").release(order(), exact)
    with pytest.raises(OverBudget, match="of epsilon 5 for this run"):
        own.of("greedy").release(order(encoder="f"), exact)
    own.of("modest").count(Tally("accuracy", 0.01, "m" * 64, "test part", "d" * 64), lambda: 7)
    assert [each.run for each in chosen(own.verify(), Debit)] == ["greedy"]
    assert [each.run for each in chosen(own.verify(), Counted)] == ["modest"]


def test_two_devices_that_share_a_ledger_share_its_budget(tmp_path: Path, clock: Clock) -> None:
    """One machine, two state folders, the same records: the owner gives both one folder for the ledger."""
    one, other = ledger(tmp_path, clock), ledger(tmp_path, clock)
    one.release(order(), exact)
    with pytest.raises(OverBudget):
        other.release(order(encoder="f"), exact)


def test_a_count_is_paid_once_and_given_again(tmp_path: Path, clock: Clock) -> None:
    own = ledger(tmp_path, clock)
    asked = Tally("accuracy", 0.01, "m" * 64, "test part", "d" * 64)
    first = own.count(asked, lambda: 50)
    assert own.count(asked, unexpected) == first  # type: ignore[arg-type]
    assert len(own.verify()) == 2
    with pytest.raises(OverBudget):
        own.count(Tally("accuracy", 100.0, "m" * 64, "test part", "d" * 64), lambda: 50)


def test_a_vote_is_paid_once_and_given_again_for_the_same_question(tmp_path: Path, clock: Clock) -> None:
    own, asked = ledger(tmp_path, clock), Poll("a vote for a model", 1.0, "q" * 64, "d" * 64)
    lead = np.array([-(1 << 30), 0, -(1 << 30)])
    assert own.of("r1").vote(asked, lambda: lead) == 1
    assert own.vote(replace(asked, data="e" * 64), unexpected) == 1  # type: ignore[arg-type]
    assert [each.run for each in chosen(own.verify(), Cast)] == ["r1"]
    budget = Budget()
    assert statement(own.entries(), budget).epsilon == pytest.approx(1.0, abs=0.05)
    assert statement(own.entries(), budget).unprotected == ()
    assert "a vote for a model: epsilon 1." in text(own.entries(), budget)
    own.vote(replace(asked, question="other"), lambda: lead)
    assert statement(own.entries(), budget).epsilon == pytest.approx(2.0, abs=0.05)
    with pytest.raises(OverBudget, match=r"a vote of epsilon 9.* is over") as refused:
        own.vote(replace(asked, epsilon=9.0), unexpected)  # type: ignore[arg-type]
    assert "a smaller vote_epsilon" in refused.value.hint
    clock.day += 31
    assert own.vote(asked, lambda: np.array([0, -(1 << 30)])) == 0, "after the window, it is paid again"


@pytest.mark.parametrize("epsilon", [5e-324, 1e-300, 1e-12])
def test_a_vote_that_costs_nearly_nothing_leaves_a_ledger_that_can_be_read(
    tmp_path: Path, clock: Clock, epsilon: float
) -> None:
    """A hostile server chooses epsilon. A ledger that cannot be read releases nothing any more."""
    own = ledger(tmp_path, clock)
    own.vote(Poll("a vote for a model", epsilon, "q" * 64, "d" * 64), lambda: np.array([0, -1, -2]))
    own.vote(Poll("a vote for a model", 1.0, "q" * 64, "d" * 64), lambda: np.array([0, -1, -2]))
    assert [each.epsilon for each in chosen(ledger(tmp_path, clock).verify(), Cast)] == [epsilon, 1.0]


def test_no_line_is_written_with_which_the_ledger_could_not_be_read(tmp_path: Path) -> None:
    file, nothing = LedgerFile(tmp_path), Cast(1, 0.0, "a vote", 1.0, (0.0,) * len(ORDERS), "q", "d")
    with file.locked(), pytest.raises(LedgerFault, match="its number is 1 and its cost"):
        file.append(nothing)
    assert not (tmp_path / LEDGER).exists()
    with file.locked():
        file.append(Failed(1.0, "r1", "bug"))
        with pytest.raises(LedgerFault):
            file.append(nothing)
    assert LedgerFile(tmp_path).read().entries == [Failed(1.0, "r1", "bug")]


@pytest.mark.parametrize("days", [0.0, -1.0, float("inf"), float("nan")])
def test_a_window_has_to_have_a_length(days: float) -> None:
    with pytest.raises(ConfigError, match="window_days is"):
        Budget(window_days=days)
