"""The device's ledger: paid before it is drawn, drawn once, sent again for nothing, and never over budget."""

import json
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedclient.config import WorkConfig
from fedclient.store.blobs import BlobStore
from fedclient.store.ledger import Ledger
from fedclient.store.ledger_file import HEAD, LEDGER, RELEASES
from fedclient.work.runtime import Runtime
from shoal.core.device_kit.learner import initial_weights
from shoal.core.errors import InUse, LedgerFault, OverBudget, StorageFault, Unprotected
from shoal.core.exchange.link import Task
from shoal.core.exchange.messages import Describe
from shoal.core.exchange.parts import Descriptor, PrivacySettings
from shoal.core.exchange.payload import encode
from shoal.core.privacy.budget import Budget
from shoal.core.privacy.ledger.entries import Debit, Open, Release, chosen, spent
from shoal.core.privacy.sums import ExactSums, sums_of
from shoal.core.server_kit.frozen_encoder import public_projector
from shoal.shell import disk
from tests.client.store import paying
from tests.client.store.paying import CLASSES, DIMS, SAMPLES, exact, order, released, sent


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(tmp_path, Budget())


@pytest.fixture
def draws(monkeypatch: pytest.MonkeyPatch) -> list[Descriptor]:
    """Every release that was drawn."""
    drawn: list[Descriptor] = []
    draw = paying.release_sums

    def counted(*arguments: Any) -> Descriptor:
        drawn.append(draw(*arguments))
        return drawn[-1]

    monkeypatch.setattr(paying, "release_sums", counted)
    return drawn


def test_the_same_data_and_encoder_send_the_same_bytes_for_nothing(
    ledger: Ledger, tmp_path: Path, draws: list[Descriptor]
) -> None:
    first = sent(released(ledger, order(), exact))

    def never() -> ExactSums:
        raise AssertionError("what was released is not computed again")

    again = Ledger(tmp_path, Budget(epsilon=0.0, total_epsilon=0.0))  # nothing may be spent any more
    assert [sent(released(again, order(), never)) for _ in range(3)] == [first] * 3
    assert len(draws) == 1
    (debit,) = chosen(again.verify(), Debit)
    assert spent(again.entries()) == debit.payment.cost == order().cost
    assert (tmp_path / RELEASES / "1").read_bytes() == first


def test_what_was_told_with_classes_answers_for_all_samples_too(
    ledger: Ledger, draws: list[Descriptor]
) -> None:
    first = sent(released(ledger, order(), exact))
    assert sent(released(ledger, order(classes=0), exact)) == first
    assert len(draws) == len(chosen(ledger.verify(), Debit)) == 1


def placed(ledger: Ledger) -> bytes:
    """What a newcomer releases: all samples together, of which no label is known."""
    one = sums_of([(np.ones((SAMPLES, DIMS)), None)], 1.0, DIMS, 0)
    return sent(released(ledger, order(classes=0), lambda: one))


def test_a_newcomer_that_trains_tells_of_its_classes_where_the_budget_has_room(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path, Budget(epsilon=8.0))
    first = placed(ledger)
    assert sent(released(ledger, order(), exact)) != first
    assert [each.payment.facts["classes"] for each in chosen(ledger.verify(), Debit)] == [0, CLASSES]


def test_where_it_has_none_it_tells_again_what_it_told_for_nothing(
    ledger: Ledger, draws: list[Descriptor]
) -> None:
    first = placed(ledger)
    assert sent(released(ledger, order(), exact)) == first
    assert len(draws) == len(chosen(ledger.verify(), Debit)) == 1
    with pytest.raises(OverBudget):
        released(ledger, order(encoder="f"), exact)


def test_another_encoder_another_source_or_other_terms_are_paid_anew(tmp_path: Path) -> None:
    budget = Budget(epsilon=100.0, total_epsilon=100.0)
    ledger, other = Ledger(tmp_path, budget), Ledger(tmp_path, budget, "another file")
    orders = [order(), order(encoder="f"), order(data="c"), order(PrivacySettings("explicit", 4.0, 1e-6))]
    owners = (ledger, ledger, other, ledger)
    assert len({sent(released(own, each, exact)) for own, each in zip(owners, orders, strict=True)}) == 4
    assert [each.number for each in chosen(ledger.verify(), Debit)] == [1, 2, 3, 4]
    assert spent(ledger.entries()).rho == pytest.approx(sum(each.cost.rho for each in orders))
    assert spent(ledger.entries(), orders[2].data) == orders[2].cost


def test_over_budget_is_refused_with_what_is_left_and_nothing_is_drawn(
    ledger: Ledger, tmp_path: Path, draws: list[Descriptor]
) -> None:
    released(ledger, order(), exact)
    with pytest.raises(OverBudget, match=r"of epsilon 5 for these data, 5 is spent") as refused:
        released(ledger, order(encoder="f"), exact)
    assert "nothing is left" in refused.value.message
    assert "set privacy.epsilon to 7.43 or more in this device's settings" in refused.value.hint
    for data in ("b", "c"):
        released(Ledger(tmp_path, Budget(), f"{data}.npz"), order(data=data), exact)
    with pytest.raises(OverBudget, match=r"of epsilon 10 for all releases of this device, 9\.412 is spent"):
        released(Ledger(tmp_path, Budget(), "a.npz"), order(data="a"), exact)
    assert len(draws) == len(chosen(ledger.entries(), Debit)) == 3


def test_an_owner_who_counts_in_groups_is_not_overruled(tmp_path: Path) -> None:
    """Four samples of one person cost sixteen times as much, unless the run has made the noise for four."""
    ledger = Ledger(tmp_path, Budget(group_size=4))
    with pytest.raises(OverBudget):
        released(ledger, order(), exact)
    four = PrivacySettings("explicit", 5.0, 1e-6, group_size=4)
    assert released(ledger, order(four), exact).privacy == four


class Crash(BaseException):
    """The process is gone."""


SYSTEM_CALLS = ("os.fsync", "Path.rename", "Path.unlink", "Path.open", "os.open")


@pytest.fixture
def crashing(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int], list[str]]]:
    """Arms the n-th system call on files, counted from 0: even numbers die before a call, odd ones after."""
    armed: list[int] = [-1]
    calls: list[str] = []

    def dying(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*arguments: Any, **named: Any) -> Any:
            for before in (True, False):
                calls.append(name)
                if len(calls) - 1 == armed[0]:
                    raise Crash
                if before:
                    result = call(*arguments, **named)
            return result

        return wrapped

    monkeypatch.setattr(disk.os, "fsync", dying("fsync", disk.os.fsync))
    for name in ("rename", "open", "unlink"):
        monkeypatch.setattr(Path, name, dying(name, getattr(Path, name)))

    def arm(number: int) -> list[str]:
        calls.clear()
        armed[0] = number
        return calls

    yield arm
    armed[0] = -1


def test_a_crash_at_any_step_loses_budget_and_never_draws_twice(
    tmp_path: Path, draws: list[Descriptor], crashing: Callable[[int], list[str]]
) -> None:
    """All bytes that could have left are compared: for each debit there is one draw at most."""
    budget, number, lost = Budget(epsilon=100.0, total_epsilon=6.0), 0, 0
    while True:
        folder = tmp_path / str(number)
        draws.clear()
        calls = crashing(number)
        left: list[bytes] = []
        try:
            left.append(sent(released(Ledger(folder, budget), order(), exact)))
            died = False
        except Crash:
            died = True
        crashing(-1)
        if not died and len(calls) <= number:
            break
        ledger = Ledger(folder, budget)
        paid = len(chosen(ledger.entries(), Debit))
        assert len(draws) <= paid  # on the disk before it is drawn
        try:
            left.append(sent(released(ledger, order(), exact)))
        except OverBudget:  # the budget is for one release, and it was lost
            lost += 1
            assert paid == 1
            assert chosen(ledger.entries(), Release) == []
            assert not left
        entries = ledger.verify()
        assert len(draws) <= len(chosen(entries, Debit)) == 1
        assert budget.epsilon_of(spent(entries)) <= 6.0
        assert len(set(left)) <= 1
        number += 1
    assert number > 20  # it really went through all the steps
    assert 0 < lost < number


def test_every_changed_lost_or_moved_line_is_found(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path, Budget(epsilon=100.0, total_epsilon=100.0))
    for encoder in "abc":
        released(ledger, order(encoder=encoder), exact)
    ledger.unprotected("bounds of latents", "d" * 64)
    path = tmp_path / LEDGER
    whole = path.read_bytes()
    lines = whole.splitlines(keepends=True)
    assert len(lines) == 7

    def refused(changed: bytes) -> None:
        path.write_bytes(changed)
        for use in (ledger.verify, lambda: released(ledger, order(), exact)):
            with pytest.raises(LedgerFault) as fault:
                use()
            assert "Restore the folder from a backup" in fault.value.hint
        assert path.read_bytes() == changed

    for number, line in enumerate(lines):
        refused(b"".join(lines[:number] + lines[number + 1 :]))  # taken away
        refused(b"".join(lines[:number]))  # cut off
        refused(b"".join([*lines[: number + 1], line, *lines[number + 1 :]]))  # there twice
        if number:
            swapped = [*lines[: number - 1], line, lines[number - 1], *lines[number + 1 :]]
            refused(b"".join(swapped))
        cheaper = {**json.loads(line), "at": 0.0}
        refused(b"".join([*lines[:number], json.dumps(cheaper).encode() + b"\n", *lines[number + 1 :]]))
        for place in range(len(line)):  # any byte of it
            altered = line[:place] + bytes([line[place] ^ 1]) + line[place + 1 :]
            path.write_bytes(b"".join([*lines[:number], altered, *lines[number + 1 :]]))
            with pytest.raises(LedgerFault):
                ledger.entries()
    refused(whole[:-1])
    refused(b"")
    path.write_bytes(whole)
    assert len(ledger.verify()) == 7
    (tmp_path / HEAD).unlink()
    with pytest.raises(LedgerFault, match="the ledger's head is missing"):
        ledger.entries()


def test_a_release_that_was_changed_is_not_sent_and_one_that_is_gone_is_paid_anew(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path, Budget(epsilon=100.0, total_epsilon=100.0))
    first, path = sent(released(ledger, order(), exact)), tmp_path / RELEASES / "1"
    path.write_bytes(first[:-1] + b"?")
    for use in (ledger.verify, lambda: released(ledger, order(), exact)):
        with pytest.raises(LedgerFault, match="is not what was released"):
            use()
    path.unlink()
    with pytest.raises(LedgerFault, match="is gone"):
        ledger.verify()
    assert sent(released(ledger, order(), exact)) != first
    assert len(chosen(ledger.entries(), Debit)) == 2


def test_a_failing_disk_stops_the_release(
    ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, draws: list[Descriptor]
) -> None:
    def broken(descriptor: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(disk.os, "fsync", broken)
    with pytest.raises(StorageFault, match="Input/output error"):
        released(ledger, order(), exact)
    assert draws == []


def test_two_processes_do_not_pay_at_once(ledger: Ledger, tmp_path: Path, draws: list[Descriptor]) -> None:
    with disk.lock(tmp_path / "lock"), pytest.raises(InUse, match="in use by another process"):
        released(ledger, order(), exact)
    assert draws == []
    released(ledger, order(), exact)


def test_what_leaves_without_a_guarantee_is_noted_once_or_not_allowed(ledger: Ledger, tmp_path: Path) -> None:
    for data in ("a", "a", "b"):
        ledger.unprotected("a descriptor with privacy=paper", data * 64)
    noted = chosen(ledger.verify(), Open)
    assert [(each.what, each.data[0]) for each in noted] == [
        ("a descriptor with privacy=paper", "a"),
        ("a descriptor with privacy=paper", "b"),
    ]
    closed = Ledger(tmp_path, Budget(allow_unprotected=False))
    with pytest.raises(Unprotected, match="releases nothing without a privacy guarantee"):
        closed.unprotected("bounds of latents", "a" * 64)


def test_a_failing_author_costs_nothing(ledger: Ledger) -> None:
    def failing() -> ExactSums:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        released(ledger, order(), failing)
    assert ledger.entries() == []


def test_noise_follows_from_the_operating_systems_entropy_and_from_no_seed(
    work: WorkConfig, store: BlobStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The whole device, with every seed the same: only what the operating system gives makes a difference."""
    task = None

    def release(folder: str) -> list[int]:
        nonlocal task
        budget = Budget(epsilon=20.0, total_epsilon=20.0)
        runtime = Runtime.open(replace(work, account=tmp_path / folder, privacy=budget))
        if task is None:
            weights = initial_weights(runtime._context.learner, 5)
            asked = Describe(weights, public_projector(8, 2), 0, PrivacySettings("explicit", 20.0, 1e-6))
            task = Task("r1", 1, 1, 7, "", encode(asked, store.keep))
        random.seed(1)
        np.random.seed(1)
        torch.manual_seed(1)
        answer: Any = runtime.perform(task)
        values: list[int] = answer.parts["descriptor"].statistics.values.ravel().tolist()
        return values

    first, second = release("first"), release("second")
    assert first != second
    for folder in ("third", "fourth"):
        known = np.random.default_rng(0)
        monkeypatch.setattr(random, "_urandom", known.bytes)
        second, first = first, release(folder)
    assert first == second
