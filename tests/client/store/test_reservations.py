"""What a run costs in all is kept for it: two runs that each fit, but not together, cannot both begin."""

import asyncio
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from fedclient.config import read
from fedclient.store.consent import Consents
from fedclient.store.ledger import CHANGES, DAY, Ledger
from fedclient.store.ledger_file import LEDGER
from fedclient.store.privacy_report import by_run, facts, ledger_of, text
from shoal.core.errors import LedgerFault, NoConsent, NotFound, OverBudget
from shoal.core.privacy.asks import Asks, WholeRun
from shoal.core.privacy.budget import Budget
from shoal.core.privacy.cost import ORDERS, Cost, rho_for, total
from shoal.core.privacy.ledger.book import Book
from shoal.core.privacy.ledger.entries import Entry, GivenBack, Reserved, chosen
from shoal.core.privacy.ledger.lines import Chain, line_of
from shoal.core.privacy.payment import Payment, counting
from tests.client.cli.test_cli import call
from tests.client.store.paying import counted, exact, order, released, sent, settings_of
from tests.client.store.test_ledger_windows import Clock

DATA, SOURCE, DELTA = "d" * 64, "digits.npz", 1e-6
BUDGET = Budget(epsilon=5.0, total_epsilon=5.0)
ALL = rho_for(5.0, DELTA)
"""What the budget has room for."""


def whole(rho: float, opened: tuple[str, ...] = ()) -> WholeRun:
    """Of a run that measures accuracies."""
    return WholeRun("fedavg", Asks(1, accuracies=10, rho=rho / 10, opened=opened), Cost(rho))


def count_of(rho: float, number: int = 0) -> Payment:
    return counting(rho, f"{number:064x}", "test", DATA)


def ledger(folder: Path, clock: Clock, device: str = "one", budget: Budget = BUDGET) -> Ledger:
    return Ledger(
        folder / "privacy", budget, SOURCE, clock=clock, consents=Consents(folder / device / "consent")
    )


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def own(tmp_path: Path, clock: Clock) -> Ledger:
    return ledger(tmp_path, clock)


def test_of_two_runs_that_each_fit_the_second_is_refused_before_it_costs_anything(own: Ledger) -> None:
    own.of("a").agree(whole(0.6 * ALL), DATA)
    with pytest.raises(OverBudget, match=r"all of run b .* is reserved for other runs") as refused:
        own.of("b").agree(whole(0.6 * ALL), DATA)
    assert "refuse one" in refused.value.hint
    assert not Book.of(own.entries()).spent
    own.of("c").agree(whole(0.4 * ALL), DATA)


def test_no_release_of_another_run_takes_what_is_reserved(own: Ledger) -> None:
    own.of("a").agree(whole(0.6 * ALL), DATA)
    with pytest.raises(OverBudget, match="reserved for other runs"):
        counted(own.of("b"), count_of(0.5 * ALL), lambda: 1)
    counted(own.of("b"), count_of(0.4 * ALL), lambda: 1)
    for number in range(6):
        counted(own.of("a"), count_of(0.1 * ALL, number), lambda: 1)
    with pytest.raises(OverBudget):
        counted(own.of("a"), count_of(0.1 * ALL, 7), lambda: 1)


def test_what_is_paid_of_a_reservation_counts_once(own: Ledger, clock: Clock) -> None:
    own.of("a").agree(whole(0.6 * ALL), DATA)
    since = clock() - 30 * DAY
    for number in range(4):
        counted(own.of("a"), count_of(0.1 * ALL, number), lambda: 1)
        book = Book.of(own.entries())
        assert (book.spent + book.held(since)).rho == pytest.approx(0.6 * ALL)
        own.of("a").agree(whole(0.6 * ALL), DATA)  # before the next task
    assert len(chosen(own.verify(), Reserved)) == 1
    # A round that is repeated costs more than was reserved.
    counted(own.of("a"), count_of(0.4 * ALL, 9), lambda: 1)
    book = Book.of(own.entries())
    assert book.held(since) == Cost()
    own.of("a").agree(whole(0.6 * ALL), DATA)  # and the run is not refused for what it has spent


def test_what_is_left_is_free_when_the_run_is_over(own: Ledger, clock: Clock) -> None:
    own.of("a").agree(whole(0.9 * ALL), DATA)
    counted(own.of("a"), count_of(0.1 * ALL), lambda: 1)
    own.keep_only(("a", "other"))
    assert chosen(own.entries(), GivenBack) == []
    for _ in range(2):
        own.keep_only(("other",))
    assert [each.run for each in chosen(own.verify(), GivenBack)] == ["a"]
    own.of("b").agree(whole(0.9 * ALL), DATA)


def test_a_device_gives_back_only_what_it_has_reserved_itself(tmp_path: Path, clock: Clock) -> None:
    """Two devices with the same records share a ledger, and may be in federations of their own."""
    one, two = ledger(tmp_path, clock), ledger(tmp_path, clock, "two")
    one.of("a").agree(whole(0.3 * ALL), DATA)
    two.of("a").agree(whole(0.3 * ALL), DATA)
    with pytest.raises(OverBudget):
        two.of("b").agree(whole(0.6 * ALL), DATA)
    two.keep_only(())
    two.of("b").agree(whole(0.6 * ALL), DATA)
    with pytest.raises(OverBudget):
        two.of("c").agree(whole(0.2 * ALL), DATA)


def test_what_one_device_pays_is_not_taken_from_what_another_has_reserved(
    tmp_path: Path, clock: Clock
) -> None:
    """Neither once the first has left the run, nor while it repeats rounds of it."""
    one, two = ledger(tmp_path, clock), ledger(tmp_path, clock, "two")
    one.of("a").agree(whole(0.3 * ALL), DATA)
    two.of("a").agree(whole(0.3 * ALL), DATA)
    counted(one.of("a"), count_of(0.3 * ALL), lambda: 1)
    with pytest.raises(OverBudget, match="is reserved for other devices in this run"):
        counted(one.of("a"), count_of(0.5 * ALL, 1), lambda: 1)
    counted(one.of("a"), count_of(0.1 * ALL, 2), lambda: 1)
    one.of("a").give_back("a")
    assert Book.of(two.entries()).held(0.0).rho == pytest.approx(0.3 * ALL)
    with pytest.raises(OverBudget, match="reserved for other runs"):
        one.of("b").agree(whole(0.4 * ALL), DATA)
    counted(two.of("a"), count_of(0.3 * ALL, 3), lambda: 1)
    assert not Book.of(two.verify()).held(0.0)


def test_a_device_in_one_run_leaves_another_its_part_of_what_a_run_may_spend(
    tmp_path: Path, clock: Clock
) -> None:
    budget, fits = Budget(5.0, DELTA, 5.0, run_epsilon=2.0), rho_for(2.0, DELTA)
    one, two = ledger(tmp_path, clock, budget=budget), ledger(tmp_path, clock, "two", budget)
    one.of("a").agree(whole(0.5 * fits), DATA)
    two.of("a").agree(whole(0.5 * fits), DATA)
    counted(one.of("a"), count_of(0.5 * fits), lambda: 1)
    with pytest.raises(OverBudget, match="of epsilon 2 for this run"):
        counted(one.of("a"), count_of(0.1 * fits, 1), lambda: 1)
    counted(two.of("a"), count_of(0.5 * fits, 2), lambda: 1)


def test_a_server_that_changes_the_terms_again_and_again_fills_no_disk(own: Ledger, clock: Clock) -> None:
    for number in range(CHANGES):
        own.of("a").agree(whole((0.1 + 0.1 * (number % 2)) * ALL), DATA)
    size = len(own.entries())
    own.of("a").agree(whole(0.2 * ALL), DATA)  # as the last time
    for _ in range(3):
        with pytest.raises(OverBudget, match="20 reservations were made for run a") as refused:
            own.of("a").agree(whole(0.1 * ALL), DATA)
        assert "leave the parameters of a run" in refused.value.hint
    assert len(own.entries()) == size
    own.of("b").agree(whole(0.1 * ALL), DATA)  # another run is as free as before
    clock.day += 31.0
    own.of("a").agree(whole(0.1 * ALL), DATA)


def test_a_server_that_invents_runs_fills_no_disk(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedclient.store.ledger.RESERVATIONS", 5)
    one, two = ledger(tmp_path, clock), ledger(tmp_path, clock, "two")
    for number in range(5):
        one.of(f"r{number}").agree(whole(0.01 * ALL), DATA)
        one.keep_only(())
    with pytest.raises(OverBudget, match="5 reservations were made for the runs of this device"):
        one.of("r5").agree(whole(0.01 * ALL), DATA)
    two.of("r5").agree(whole(0.01 * ALL), DATA)  # in a federation of its own


def test_what_one_device_has_spent_leaves_no_room_for_another_in_the_same_run(
    tmp_path: Path, clock: Clock
) -> None:
    one, two = ledger(tmp_path, clock), ledger(tmp_path, clock, "two")
    one.of("a").agree(whole(0.6 * ALL), DATA)
    counted(one.of("a"), count_of(0.6 * ALL), lambda: 1)
    one.of("b").agree(whole(0.2 * ALL), DATA)
    with pytest.raises(OverBudget, match="the rest of run a"):
        two.of("a").agree(whole(0.6 * ALL), DATA)
    two.of("a").agree(whole(0.2 * ALL), DATA)
    counted(one.of("b"), count_of(0.2 * ALL, 1), lambda: 1)
    counted(two.of("a"), count_of(0.2 * ALL, 2), lambda: 1)


def test_two_devices_in_one_run_may_not_reserve_more_than_a_run_may_spend(
    tmp_path: Path, clock: Clock
) -> None:
    budget = Budget(5.0, DELTA, 5.0, run_epsilon=2.0)
    one, two = ledger(tmp_path, clock, budget=budget), ledger(tmp_path, clock, "two", budget)
    one.of("a").agree(whole(0.6 * rho_for(2.0, DELTA)), DATA)
    with pytest.raises(OverBudget, match="of epsilon 2 for this run"):
        two.of("a").agree(whole(0.6 * rho_for(2.0, DELTA)), DATA)
    two.of("a").agree(whole(0.4 * rho_for(2.0, DELTA)), DATA)


def test_nothing_is_reserved_before_the_owner_consents(tmp_path: Path, clock: Clock) -> None:
    own = ledger(tmp_path, clock, budget=Budget(5.0, DELTA, 5.0, allow_plain_weights=None)).of("a")
    asked = whole(0.5 * ALL, ("weights",))
    with pytest.raises(NoConsent):
        own.agree(asked, DATA)
    assert own.entries() == []
    Consents(tmp_path / "one" / "consent").give("a")
    own.agree(asked, DATA)
    assert len(chosen(own.verify(), Reserved)) == 1


def test_a_reservation_lapses_when_its_run_spends_nothing_for_a_window(own: Ledger, clock: Clock) -> None:
    own.of("gone").agree(whole(0.9 * ALL), DATA)
    clock.day += 29.0
    with pytest.raises(OverBudget):
        own.of("b").agree(whole(0.9 * ALL), DATA)
    clock.day += 2.0
    own.of("b").agree(whole(0.9 * ALL), DATA)
    with pytest.raises(OverBudget):  # it is back, and too late
        own.of("gone").agree(whole(0.9 * ALL), DATA)


def test_what_was_reserved_by_a_clock_that_was_ahead_is_not_held_until_then(
    own: Ledger, clock: Clock
) -> None:
    day, clock.day = clock.day, clock.day + 9000.0
    own.of("a").agree(whole(0.6 * ALL), DATA)
    clock.day = day
    own.of("b").agree(whole(0.4 * ALL), DATA)
    own.of("a").agree(whole(0.6 * ALL), DATA)  # it still goes on, and reserves it again
    with pytest.raises(OverBudget, match="reserved for other runs"):
        own.of("c").agree(whole(0.1 * ALL), DATA)
    clock.day += 31.0
    own.of("c").agree(whole(1.0 * ALL), DATA)


def test_a_long_run_keeps_what_it_has_reserved(own: Ledger, clock: Clock) -> None:
    own.of("long").agree(whole(0.9 * ALL), DATA)
    for number in range(9):
        own.of("long").agree(whole(0.9 * ALL), DATA)
        counted(own.of("long"), count_of(0.1 * ALL, number), lambda: 1)
        with pytest.raises(OverBudget):
            own.of("b").agree(whole(0.2 * ALL), DATA)
        clock.day += 20.0
    assert len(chosen(own.verify(), Reserved)) == 1


def test_more_rounds_are_reserved_in_place_of_fewer(own: Ledger) -> None:
    own.of("a").agree(whole(0.3 * ALL), DATA)
    own.of("a").agree(whole(0.9 * ALL), DATA)
    with pytest.raises(OverBudget):
        own.of("b").agree(whole(0.2 * ALL), DATA)
    own.of("b").agree(whole(0.1 * ALL), DATA)


def test_no_run_can_reserve_more_than_a_run_may_spend(tmp_path: Path, clock: Clock) -> None:
    own = ledger(tmp_path, clock, budget=Budget(5.0, DELTA, 5.0, run_epsilon=2.0))
    with pytest.raises(OverBudget, match="of epsilon 2 for this run"):
        own.of("greedy").agree(whole(0.6 * ALL), DATA)
    own.of("modest").agree(whole(rho_for(2.0, DELTA)), DATA)


@pytest.mark.parametrize("seed", range(20))
def test_no_history_passes_the_limit_and_what_fits_at_the_start_fits_to_the_end(
    tmp_path: Path, clock: Clock, seed: int
) -> None:
    """Random runs of two devices that share a ledger, with restarts: each accepted run can spend all that it
    reserved, and in all no more is spent than the limit allows."""
    chance = Random(seed)
    left: dict[str, tuple[str, list[float]]] = {}
    for number in range(60):
        device = chance.choice(("one", "two"))
        own = ledger(tmp_path, clock, device)
        step = chance.random()
        if step < 0.3:
            run, lessons = f"r{number}", chance.randrange(1, 6)
            rho = ALL * chance.choice((0.05, 0.2, 0.5)) / lessons
            try:
                own.of(run).agree(whole(lessons * rho), DATA)
            except OverBudget:
                continue
            left[run] = device, [rho] * lessons
        elif step < 0.85 and left:
            run = chance.choice(sorted(left))
            device, rest = left[run]
            counted(ledger(tmp_path, clock, device).of(run), count_of(rest.pop(), number), lambda: 1)
            if not rest:
                del left[run]
        elif left:
            run = chance.choice(sorted(left))
            device, _ = left.pop(run)
            ledger(tmp_path, clock, device).give_back(run)
        book = Book.of(own.verify())
        assert BUDGET.epsilon_of(book.spent) <= 5.0 * (1 + 1e-9)
        assert {run for run in book.runs if book.held_for(run, clock() - 30 * DAY)} <= {*left}


def test_the_rest_of_a_curve_is_a_curve(tmp_path: Path) -> None:
    curve = tuple(0.01 * order for order in ORDERS)
    once, all_of_it = Cost(0.1, curve), Cost(0.3, tuple(3 * each for each in curve))
    rest = all_of_it - once
    assert rest.rho == pytest.approx(0.2)
    assert rest.curve == pytest.approx([2 * each for each in curve])
    assert not once - all_of_it
    assert Cost(0.1) - once == Cost()
    assert once - Cost(0.1) == Cost(0.0, curve)
    tenth = Cost(0.1, tuple(each / 10 for each in curve))
    assert not Cost(1.0, curve) - total([tenth] * 10), "the last bits of a sum are no rest"
    steps = tuple(float(order > 1.25) for order in ORDERS)  # from which the first orders keep nothing
    late = tuple(float(order > 2.0) for order in ORDERS)
    left = (Cost(curve=steps) - Cost(curve=late)).curve
    assert left == steps, "it would fall at order 2.5, and stays"


def test_a_chain_goes_on_where_it_stopped_and_finds_every_change() -> None:
    entries: list[Entry] = [
        Reserved(1.0, "a", Cost(0.1), DATA),
        GivenBack(2.0, "a"),
        Reserved(3.0, "b", Cost(0.2), DATA),
    ]
    chain, data = Chain(), b""
    for entry in entries:
        data += line_of(entry, chain.head.last)
        chain.read(data, chain.head)
    assert [line_of(entry, "") for entry in chain.book.entries] == [line_of(entry, "") for entry in entries]
    assert chain.book.held(0.0).rho == pytest.approx(0.2)
    again = Chain()
    again.read(data, chain.head)
    assert again.head == chain.head
    lines = data.splitlines(keepends=True)
    for changed in (
        data.replace(b'"rho": 0.1', b'"rho": 0.0001'),
        data.replace(b'"rho": 0.2', b'"rho": 0.0002'),
        b"".join(lines[:2]),
        b"".join(lines[1:]),
        b"".join([lines[1], lines[0], lines[2]]),
    ):
        with pytest.raises(LedgerFault):
            Chain().read(changed, chain.head)


def test_only_new_lines_are_read_and_a_change_of_an_old_one_is_found(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[bytes] = []
    usual = Chain._take

    def noted(self: Chain, line: bytes) -> None:
        taken.append(line)
        usual(self, line)

    monkeypatch.setattr(Chain, "_take", noted)
    own, other = ledger(tmp_path, clock), ledger(tmp_path, clock)
    for number in range(10):
        counted(own.of("a"), count_of(0.01 * ALL, number), lambda: 1)
    assert len(taken) == 20
    assert len(other.entries()) == 20
    taken.clear()
    other.failed("a", "learner-failed")
    assert len(taken) == 1
    assert len(own.entries()) == 21, "what another process has added is read, too"
    assert len(taken) == 2
    file = tmp_path / "privacy" / LEDGER
    file.write_bytes(file.read_bytes().replace(b'"accuracy"', b'"accuracv"', 1))
    for each in (own, other):
        with pytest.raises(LedgerFault, match="does not follow from the line before it"):
            each.entries()


def test_the_owner_sees_what_is_reserved_and_frees_it(tmp_path: Path) -> None:
    path = tmp_path / "device.yaml"
    path.write_text("privacy: {epsilon: 5, total_epsilon: 5}\n")
    settings = read(path, {})
    own = Ledger(settings.account, settings.privacy, SOURCE, consents=settings.consents)
    own.of("a").agree(whole(0.6 * ALL), DATA)
    counted(own.of("a"), count_of(0.1 * ALL), lambda: 1)
    entries = ledger_of(settings).entries()
    assert by_run(entries, BUDGET)["a"]["reserved"] == pytest.approx(BUDGET.epsilon_of(Cost(0.5 * ALL)))
    assert facts(entries, BUDGET)["total"]["left"] == pytest.approx(BUDGET.epsilon_of(Cost(0.4 * ALL)))
    assert "is reserved for it, and no other run can spend that" in text(entries, BUDGET)

    async def fedclient() -> None:
        shown = await call("consent", "-c", path)
        assert "is reserved for it" in shown.out
        assert (await call("consent", "revoke", "a", "-c", path)).code == 0
        again = await call("consent", "revoke", "a", "-c", path)
        assert again.code == NotFound.exit_code
        assert "you have refused run 'a' already" in again.err
        shown = await call("consent", "-c", path)
        assert "run a: you have refused it" in shown.out
        assert "is reserved" not in shown.out
        listed = await call("ledger", "-c", path)
        assert "what it has not spent is free again" in listed.out

    asyncio.run(fedclient())
    with pytest.raises(NoConsent, match="you have refused run a"):
        own.of("a").check_not_refused()
    settings.consents.give("a")
    own.of("a").check_not_refused()
    own.of("b").agree(whole(0.9 * ALL), DATA)


# -- a description that an earlier run has paid for ---------------------------------------------------------


def described(asked: Payment) -> WholeRun:
    """Of a run that asks for this description."""
    return WholeRun("flux", Asks(1, descriptor=settings_of(asked)), asked.cost, asked)


def test_a_later_run_costs_nothing_where_its_description_is_paid(own: Ledger) -> None:
    own.of("a").agree(described(order()), DATA)
    first = released(own.of("a"), order(), exact)
    own.of("b").agree(described(order()), DATA)
    assert sent(released(own.of("b"), order(), exact)) == sent(first)
    assert [each.run for each in chosen(own.entries(), Reserved)] == ["a"]
    with pytest.raises(OverBudget):
        own.of("c").agree(described(order(encoder="f")), DATA)


def test_a_run_is_judged_by_all_that_it_has_paid_itself(own: Ledger) -> None:
    """Its terms name the encoder only once there is one, and then its own release is there already."""
    own.of("a").agree(replace(described(order()), description=None), DATA)
    released(own.of("a"), order(), exact)
    before = own.entries()
    own.of("a").agree(described(order()), DATA)
    assert own.entries() == before


def test_after_the_window_it_is_paid_again_and_given_again_where_there_is_no_room(
    tmp_path: Path, clock: Clock
) -> None:
    roomy = ledger(tmp_path, clock, budget=replace(BUDGET, total_epsilon=10.0))
    first = released(roomy.of("a"), order(), exact)
    clock.day += 31
    roomy.of("b").agree(described(order()), DATA)
    assert [each.run for each in chosen(roomy.entries(), Reserved)] == ["b"]
    second = released(roomy.of("b"), order(), exact)
    assert sent(second) != sent(first)
    clock.day += 31
    strict = ledger(tmp_path, clock)
    strict.of("c").agree(described(order()), DATA)
    assert sent(released(strict.of("c"), order(), exact)) == sent(second)
    assert [each.run for each in chosen(roomy.entries(), Reserved)] == ["b"], "nothing is kept for c"
