"""Recall and budget by public dates: no answer tells whether the data have changed."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedclient.store.ledger import DAY, Ledger
from fedclient.store.ledger_file import LEDGER, LedgerFile
from fedclient.store.privacy_report import statement, text
from shoal.core.errors import ConfigError, LedgerFault, OverBudget
from shoal.core.privacy.budget import Budget
from shoal.core.privacy.cost import Cost
from shoal.core.privacy.ledger.entries import Debit, Failed, chosen, paid
from shoal.core.privacy.payment import ACCURACY, DESCRIPTOR, VOTE, Payment, counting, voting
from tests.client.store.paying import ONE_COUNT, ONE_VOTE, counted, exact, order, released, voted

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
    first = released(own, order(data="a"), exact)
    clock.day += 29.9
    again = released(own, order(data="b"), unexpected)  # type: ignore[arg-type]
    assert again.statistics.values.tolist() == first.statistics.values.tolist()  # type: ignore[union-attr]
    assert len(chosen(own.verify(), Debit)) == 1


def test_after_the_window_a_new_one_is_drawn_even_of_the_same_data(tmp_path: Path, clock: Clock) -> None:
    own = ledger(tmp_path, clock)
    first = released(own, order(), exact)
    clock.day += 30.1
    second = released(own, order(), exact)
    assert second.statistics.values.tolist() != first.statistics.values.tolist()  # type: ignore[union-attr]
    assert len(chosen(own.verify(), Debit)) == 2


def test_what_is_refused_does_not_depend_on_whether_data_changed(tmp_path: Path, clock: Clock) -> None:
    for changed in (False, True):
        own = ledger(tmp_path / str(changed), clock)
        released(own, order(data="a"), exact)
        now = "b" if changed else "a"
        with pytest.raises(OverBudget):
            released(own, order(encoder="f", data=now), exact)


def test_when_the_budget_is_spent_for_good_the_old_bytes_are_better_than_none(
    tmp_path: Path, clock: Clock
) -> None:
    own = ledger(tmp_path, clock)
    releases = []
    for _ in range(6):
        releases.append(released(own, order(), exact).statistics.values.tolist())  # type: ignore[union-attr]
        clock.day += 31
    assert len(chosen(own.verify(), Debit)) == 3  # total_epsilon is three of balanced
    assert releases[3:] == [releases[2]] * 3


def test_what_was_paid_while_the_clock_was_behind_counts_from_the_line_before(
    tmp_path: Path, clock: Clock
) -> None:
    """As on a machine that starts in 1970 until it has heard the time."""
    own = ledger(tmp_path, clock, Budget(epsilon=5.0, total_epsilon=50.0))
    own.failed("r1", "bug")
    for number, day in enumerate((1000.0, 0.1, 1001.0)):
        clock.day = day
        asked = counting(0.2, f"{number:064x}", "test", "data")
        if day > 1000.0:
            with pytest.raises(OverBudget, match="is over this device's budget"):
                counted(own, asked, lambda: 9)
            clock.day = 1030.1
        counted(own, asked, lambda: 9)
    assert len(paid(own.verify())) == 3


def test_a_clock_that_was_ahead_once_takes_no_window_away_for_good(tmp_path: Path, clock: Clock) -> None:
    own = ledger(tmp_path, clock, Budget(epsilon=5.0, total_epsilon=50.0))
    for day in (1000.0, 1031.0, 1062.0):
        clock.day = 90000.0
        own.failed("r1", "bug")
        clock.day = day
        counted(own, counting(0.3, f"{int(day):064x}", "test", "data"), lambda: 9)


def test_another_file_is_another_source(tmp_path: Path, clock: Clock) -> None:
    first = released(ledger(tmp_path, clock), order(data="a"), exact)
    other = released(ledger(tmp_path, clock, source="other.npz"), order(data="b"), exact)
    assert other.statistics.values.tolist() != first.statistics.values.tolist()  # type: ignore[union-attr]


def test_one_run_cannot_spend_what_others_need(tmp_path: Path, clock: Clock) -> None:
    own = ledger(tmp_path, clock, Budget(epsilon=8.0, total_epsilon=8.0, run_epsilon=5.0))
    released(own.of("greedy"), order(), exact)
    with pytest.raises(OverBudget, match="of epsilon 5 for this run"):
        released(own.of("greedy"), order(encoder="f"), exact)
    counted(own.of("modest"), ONE_COUNT, lambda: 7)
    assert [each.run for each in paid(own.verify(), DESCRIPTOR)] == ["greedy"]
    assert [each.run for each in paid(own.verify(), ACCURACY)] == ["modest"]


def test_two_devices_that_share_a_ledger_share_its_budget(tmp_path: Path, clock: Clock) -> None:
    """One machine, two state folders, the same records: the owner gives both one folder for the ledger."""
    one, other = ledger(tmp_path, clock), ledger(tmp_path, clock)
    released(one, order(), exact)
    with pytest.raises(OverBudget):
        released(other, order(encoder="f"), exact)


def test_a_count_is_paid_once_and_given_again(tmp_path: Path, clock: Clock) -> None:
    own = ledger(tmp_path, clock)
    asked = ONE_COUNT
    first = counted(own, asked, lambda: 50)
    assert counted(own, asked, unexpected) == first  # type: ignore[arg-type]
    assert len(own.verify()) == 2
    with pytest.raises(OverBudget):
        counted(own, counting(100.0, "m" * 64, "test", "d" * 64), lambda: 50)


def test_a_vote_is_paid_once_and_given_again_for_the_same_question(tmp_path: Path, clock: Clock) -> None:
    own, asked = ledger(tmp_path, clock), ONE_VOTE
    lead = np.array([-(1 << 30), 0, -(1 << 30)])
    assert voted(own.of("r1"), asked, lambda: lead) == 1
    assert voted(own, replace(asked, data="e" * 64), unexpected) == 1  # type: ignore[arg-type]
    assert [each.run for each in paid(own.verify(), VOTE)] == ["r1"]
    budget = Budget()
    assert statement(own.entries(), budget).epsilon == pytest.approx(1.0, abs=0.05)
    assert statement(own.entries(), budget).unprotected == ()
    assert "voting: epsilon 1." in text(own.entries(), budget)
    voted(own, replace(asked, question=("other",)), lambda: lead)
    assert statement(own.entries(), budget).epsilon == pytest.approx(2.0, abs=0.05)
    with pytest.raises(OverBudget, match=r"a vote of epsilon 9.* is over") as refused:
        voted(own, voting(9.0, *asked.question, "d" * 64), unexpected)  # type: ignore[arg-type]
    assert "a smaller vote_epsilon" in refused.value.hint
    clock.day += 31
    assert voted(own, asked, lambda: np.array([0, -(1 << 30)])) == 0, "after the window, it is paid again"


@pytest.mark.parametrize(("asked", "ask"), [(ONE_COUNT, counted), (ONE_VOTE, voted)])
def test_an_old_number_is_given_again_where_there_is_no_room_for_a_new_one(
    tmp_path: Path, clock: Clock, asked: Payment, ask: Callable[..., int]
) -> None:
    first = ask(ledger(tmp_path, clock), asked, {counted: lambda: 9, voted: lambda: np.array([0, -1])}[ask])
    clock.day += 31
    spent = ledger(tmp_path, clock, Budget(epsilon=0.0, total_epsilon=0.0))
    assert ask(spent, asked, unexpected) == first
    assert len(paid(spent.verify())) == 1
    with pytest.raises(OverBudget):
        ask(spent, replace(asked, question=("other",)), unexpected)


@pytest.mark.parametrize("epsilon", [5e-324, 1e-300, 1e-12])
def test_a_vote_that_costs_nearly_nothing_leaves_a_ledger_that_can_be_read(
    tmp_path: Path, clock: Clock, epsilon: float
) -> None:
    """A hostile server chooses epsilon. A ledger that cannot be read releases nothing any more."""
    own = ledger(tmp_path, clock)
    voted(own, voting(epsilon, "q" * 64, "d" * 64), lambda: np.array([0, -1, -2]))
    voted(own, ONE_VOTE, lambda: np.array([0, -1, -2]))
    votes = paid(ledger(tmp_path, clock).verify(), VOTE)
    assert [each.payment.facts["epsilon"] for each in votes] == [epsilon, 1.0]


def test_no_line_is_written_with_which_the_ledger_could_not_be_read(tmp_path: Path) -> None:
    file, nothing = LedgerFile(tmp_path), Debit(1, 0.0, replace(ONE_VOTE, cost=Cost()))
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
