"""A kill -9 at every point that a release passes: one draw at most for a debit, and never over budget."""

import os
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedclient.store.ledger import Ledger
from shoal.core.errors import OverBudget
from shoal.core.exchange.parts import Descriptor
from shoal.core.exchange.tensors import digest
from shoal.core.privacy.budget import Budget
from shoal.core.privacy.ledger.book import Book
from shoal.core.privacy.ledger.entries import Debit, Release, chosen, spent
from shoal.core.privacy.ledger.entries import paid as paid_for
from shoal.core.privacy.noise.chance import Entropy
from shoal.core.privacy.payment import TRAINING
from shoal.core.types import Tensors
from shoal.shell import crash
from tests.client.store import paying
from tests.client.store.paying import exact, lesson, order, released, sent, trained, work
from tests.client.store.test_reservations import whole
from tests.programs import FORKS

TIGHT, AMPLE = Budget(total_epsilon=6.0), Budget(epsilon=20.0, total_epsilon=20.0)
SINGLE = Budget(epsilon=2.5)
LOST = ("device.debited", "device.drawn", "device.release-stored")
WRITES = 6
"""Files that a first release writes: head, ledger, head, release, ledger, head."""
POINTS = [
    *LOST,
    "device.release-noted",
    *(f"disk.{step}:{n}" for step in ("written", "synced", "renamed") for n in range(1, WRITES + 1)),
]
TRAINING_POINTS = [
    *("device.debited", "device.drawn", "device.release-noted"),
    *(f"disk.{step}:{n}" for step in ("written", "synced", "renamed") for n in range(1, 6)),
]

ALL = replace(whole(1.0), cost=lesson().cost + lesson().cost)
"""Two lessons, of which one is given."""
RESERVING_POINTS = [
    *("device.reserved", "device.debited", "device.drawn", "device.release-noted", "device.given-back"),
    *(f"disk.{step}:{n}" for step in ("written", "synced", "renamed") for n in range(1, 10)),
]
"""Nine files are written: a head for the ledger that is new, and for each of four lines ledger and head."""


def life(folder: str, point: str, budget: Budget) -> None:
    """In a process of its own: one release. What was drawn and what was sent is written down beside."""
    os.environ[crash.VARIABLE] = point
    draw = paying.release_sums

    def counted(*arguments: Any) -> Descriptor:
        drawn = draw(*arguments)
        note(Path(folder) / "drawn", sent(drawn))
        return drawn

    paying.release_sums = counted  # type: ignore[assignment]
    note(Path(folder) / "sent", sent(released(Ledger(Path(folder) / "privacy", budget), order(), exact)))


def training_life(folder: str, point: str, budget: Budget) -> None:
    """In a process of its own: one task of training."""
    os.environ[crash.VARIABLE] = point

    def drawn(entropy: Entropy) -> Tensors:
        found = work(entropy)
        note(Path(folder) / "drawn", digest(found).encode())
        return found

    found = trained(Ledger(Path(folder) / "privacy", budget), lesson(), drawn)
    note(Path(folder) / "sent", digest(found).encode())


def reserving_life(folder: str, point: str, budget: Budget) -> None:
    """In a process of its own: a run reserves what it costs, spends a part, and is over."""
    os.environ[crash.VARIABLE] = point
    own = Ledger(Path(folder) / "privacy", budget).of("a")
    own.agree(ALL, "d" * 64)
    trained(own, lesson(), work)
    own.keep_only(())


def note(path: Path, data: bytes) -> None:
    with path.open("a") as file:
        file.write(f"{data.hex()}\n")


def noted(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def lived(folder: Path, point: str, budget: Budget, life: Callable[[str, str, Budget], None] = life) -> int:
    process = FORKS.Process(target=life, args=(str(folder), point, budget))
    process.start()
    process.join()
    assert process.exitcode is not None
    return process.exitcode


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("budget", [TIGHT, AMPLE])
def test_a_kill_at_this_point_loses_at_most_what_was_paid(tmp_path: Path, point: str, budget: Budget) -> None:
    assert lived(tmp_path, point, budget) == -signal.SIGKILL
    ledger = Ledger(tmp_path / "privacy", budget)
    paid, kept = (len(chosen(ledger.verify(), kind)) for kind in (Debit, Release))
    assert len(noted(tmp_path / "drawn")) <= paid  # on the disk before it is drawn
    if point in LOST:
        assert (paid, kept) == (1, 0)
    ended = [lived(tmp_path, "", budget) for _ in range(2)]
    assert len(set(ended)) == 1
    if paid > kept and budget is TIGHT:
        assert ended[0] == 1
        with pytest.raises(OverBudget):
            released(ledger, order(), exact)
        assert noted(tmp_path / "sent") == []
    else:
        assert ended[0] == 0
        assert len(set(noted(tmp_path / "sent"))) == 1
    entries = ledger.verify()
    assert len(noted(tmp_path / "drawn")) <= len(chosen(entries, Debit)) <= 2
    assert budget.epsilon_of(spent(entries)) <= min(budget.epsilon, budget.total_epsilon) * (1 + 1e-9)


@pytest.mark.parametrize("point", TRAINING_POINTS)
@pytest.mark.parametrize("budget", [SINGLE, AMPLE])
def test_a_kill_in_training_never_sends_what_is_not_paid(tmp_path: Path, point: str, budget: Budget) -> None:
    assert lived(tmp_path, point, budget, training_life) == -signal.SIGKILL
    ended = [lived(tmp_path, "", budget, training_life) for _ in range(2)]
    entries = Ledger(tmp_path / "privacy", budget).verify()
    paid = len(paid_for(entries, TRAINING))
    drawn, left = noted(tmp_path / "drawn"), noted(tmp_path / "sent")
    assert len(drawn) == len(set(drawn)) <= paid  # each task draws new noise, and each is paid
    assert len(left) == ended.count(0)
    assert set(left) <= set(drawn)
    if budget is SINGLE:
        assert paid == 1
    assert budget.epsilon_of(spent(entries)) <= budget.epsilon * (1 + 1e-9)


@pytest.mark.parametrize("point", RESERVING_POINTS)
def test_a_kill_at_this_point_loses_no_reservation_and_counts_none_twice(tmp_path: Path, point: str) -> None:
    budget = Budget(epsilon=7.0, total_epsilon=7.0)
    assert lived(tmp_path, point, budget, reserving_life) == -signal.SIGKILL
    ledger = Ledger(tmp_path / "privacy", budget)
    book = Book.of(ledger.verify())
    if book.held(0.0):  # what was paid of it counts as paid, and not as reserved
        assert (book.held(0.0) + book.spent).curve == pytest.approx(ALL.cost.curve)
    before = len(paid_for(book.entries, TRAINING))
    assert lived(tmp_path, "", budget, reserving_life) == 0
    book = Book.of(ledger.verify())
    assert not book.held(0.0), "the run is over"
    assert book.spent == spent(book.entries)
    assert len(paid_for(book.entries, TRAINING)) == before + 1
    ledger.of("b").agree(replace(ALL, cost=lesson().cost), "d" * 64)
