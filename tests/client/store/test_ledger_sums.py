"""What the ledger says of secure aggregation: a line for each masked update, and what all of a run cost."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedclient.store.consent import RUNS, Consents
from fedclient.store.ledger import Ledger
from fedclient.store.privacy_report import facts, sums_by_run, text
from shoal.core.errors import DeviceFault, NoConsent, NotFound
from shoal.core.privacy.accountant import MaskedUpdate
from shoal.core.privacy.asks import Asks, WholeRun
from shoal.core.privacy.budget import Budget
from shoal.core.privacy.cost import ORDERS, Cost, epsilon_of
from shoal.core.privacy.dpsgd import TrainingTerms
from shoal.core.privacy.ledger.entries import Summed, chosen
from shoal.core.privacy.payment import training, voting
from shoal.core.privacy.report import IN_SUMS, NO_WEIGHTS, OPEN, WEIGHTS
from tests.client.store.paying import trained, voted


def share(number: int, noise: float = 0.0) -> MaskedUpdate:
    return MaskedUpdate(f"{number:064x}", 10, 7, 0.5, noise, "d" * 64, f"{number:064x}")


def test_each_sum_has_one_line_although_its_task_is_done_again(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path, Budget(), clock=lambda: 0.0).of("quiet")
    for number in (1, 2, 2, 1, 3):
        ledger.summed(share(number, 1.5))
    entries = Ledger(tmp_path, Budget()).verify()
    assert [int(each.update.cohort, 16) for each in chosen(entries, Summed)] == [1, 2, 3]
    (found,) = sums_by_run(entries, Budget()).values()
    assert found["updates"] == 3
    assert found["epsilon"] == pytest.approx(epsilon_of(3 / (2 * 1.5**2), 1e-6))
    lines = text(entries, Budget()).splitlines()
    assert sum("the server learns a sum over 7 to 10 devices" in line for line in lines) == 3
    assert sum("as long as the other devices add their noise" in line for line in lines) == 1
    assert sum("where they are others" in line for line in lines) == 1


def test_no_other_update_leaves_for_the_same_sum(tmp_path: Path) -> None:
    """Under one mask, the difference of two updates is no secret."""
    ledger = Ledger(tmp_path, Budget(), clock=lambda: 0.0).of("quiet")
    ledger.summed(share(1))
    with pytest.raises(DeviceFault, match="another update has left for this sum"):
        ledger.summed(replace(share(1), masked="f" * 64))
    ledger.summed(share(1))
    assert len(chosen(ledger.verify(), Summed)) == 1


def test_devices_that_share_a_ledger_have_a_line_each_in_one_sum(tmp_path: Path) -> None:
    attic, cellar = (
        Ledger(tmp_path, Budget(), consents=Consents(tmp_path / name / "consent")).of("r")
        for name in ("attic", "cellar")
    )
    attic.summed(share(1, 1.0))
    cellar.summed(replace(share(1, 1.0), masked="f" * 64))
    found = sums_by_run(cellar.verify(), Budget())
    assert found["r"]["updates"] == 2
    assert found["r"]["epsilon"] == pytest.approx(epsilon_of(1.0, 1e-6)), "both have the same records"


def whole(noise: float) -> WholeRun:
    asks = Asks(10, sums=True, noise=noise, opened=("summed",))
    return WholeRun("fedavg", asks, Cost())


def test_no_update_leaves_with_less_noise_than_its_owner_was_shown(tmp_path: Path) -> None:
    consents = Consents(tmp_path / "consent")
    own = Ledger(tmp_path, Budget(allow_plain_weights=None), consents=consents).of("r1")
    own.summed(share(1))  # nothing was announced
    own.summed(share(2, 0.5))
    consents.give("r1", everything=True)
    own.agree(whole(1.0), "d" * 64)
    for noise in (0.0, 0.5, 1.0 - 1e-9):
        with pytest.raises(NoConsent, match="has announced noise of 1 in its sums of updates, and asks for"):
            Ledger(tmp_path, Budget(), consents=consents).of("r1").summed(share(3, noise))
    own.summed(share(3, 1.0))
    own.summed(share(4, 2.0))
    own.of("r2").summed(share(5))
    assert [each.update.noise for each in chosen(own.verify(), Summed)] == [0.0, 0.5, 1.0, 2.0, 0.0]


def test_a_run_that_adds_less_noise_than_it_announced_is_consented_to_again(tmp_path: Path) -> None:
    consents = Consents(tmp_path / "consent")
    own = Ledger(tmp_path, Budget(allow_plain_weights=None), consents=consents).of("r1")
    with pytest.raises(NoConsent):
        own.agree(whole(1.0), "d" * 64)
    consents.give("r1")
    for noise in (1.0, 2.0, 2.0):  # more of it is no worse
        own.agree(whole(noise), "d" * 64)
    for noise in (1.0, 0.0):
        for _ in range(2):
            with pytest.raises(NoConsent, match=r"asks for weights, of which the server sees sums"):
                own.agree(whole(noise), "d" * 64)
        consents.give("r1")
        own.agree(whole(noise), "d" * 64)
    own.summed(share(1))


@pytest.mark.parametrize("consented", [True, False])
@pytest.mark.parametrize("asking", [True, False])
def test_naming_many_other_runs_makes_no_announced_noise_forgotten(
    tmp_path: Path, consented: bool, asking: bool
) -> None:
    """Whether they ask for anything or not, and whether its owner has consented before they come or after."""
    consents = Consents(tmp_path / "consent")
    ledger = Ledger(tmp_path, Budget(allow_plain_weights=None), consents=consents)
    with pytest.raises(NoConsent):
        ledger.of("r1").agree(whole(5.0), "d" * 64)
    if consented:
        consents.give("r1")
    terms = whole(1.0) if asking else WholeRun("flux", Asks(1), Cost())
    for number in range(2 * RUNS):
        with suppress(NoConsent):
            ledger.of(f"x{number}").agree(terms, "d" * 64)
    if asking and not consented:  # its own request is forgotten together with its terms
        with pytest.raises(NotFound):
            consents.give("r1")
    else:
        if not consented:
            consents.give("r1")
        with pytest.raises(NoConsent, match="has announced noise of 5"):
            ledger.of("r1").summed(share(1, 0.0))
        ledger.of("r1").summed(share(1, 5.0))
    assert len(consents.terms()) <= 2 * RUNS + 1, "and the disk is not filled with names"


def test_what_is_said_of_the_weights_is_what_left(tmp_path: Path) -> None:
    """A vote has a curve, as training has one; and sums are of weights."""
    poll = voting(1.0, "e" * 64, "d" * 64)
    lesson = training(TrainingTerms(1.0, 2.0, 0.5, 4, Cost(curve=(1e-3,) * len(ORDERS))), "d" * 64)

    def said(name: str, *steps: Callable[[Ledger], object]) -> str:
        ledger = Ledger(tmp_path / name, Budget(allow_plain_weights=True)).of("r1")
        for step in steps:
            step(ledger)
        return str(facts(ledger.entries(), Budget())["weights"])

    def vote(ledger: Ledger) -> object:
        return voted(ledger, poll, lambda: np.zeros(3, np.int64))

    def train(ledger: Ledger) -> object:
        return trained(ledger, lesson, lambda entropy: {})

    def mask(ledger: Ledger) -> object:
        ledger.unprotected(OPEN["summed"], "d" * 64)
        return ledger.summed(share(1))

    assert said("voted", vote) == NO_WEIGHTS
    assert said("masked", mask) == IN_SUMS
    assert said("both", mask, vote) == IN_SUMS
    assert said("trained", train, vote).startswith("weights: DP-SGD on 1 device, with its other releases")
    assert said("opened", mask, train, lambda own: own.unprotected(OPEN["weights"], "d" * 64)) == WEIGHTS


def test_one_sum_without_noise_leaves_no_epsilon(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path, Budget())
    ledger.of("noisy").summed(share(1, 1.0))
    ledger.of("open").summed(share(2, 1.0))
    ledger.of("open").summed(share(3))
    found = sums_by_run(ledger.entries(), Budget())
    assert found["noisy"]["epsilon"] == pytest.approx(epsilon_of(0.5, 1e-6))
    assert found["noisy"]["if_others"] == pytest.approx(epsilon_of(2.0, 1e-6)), "twice the distance"
    ledger.of("none").summed(share(4, 1e-200))
    assert sums_by_run(ledger.entries(), Budget())["none"]["epsilon"] is None, "noise that hides nothing"
    assert found["open"] == {"updates": 2, "fewest": 7, "epsilon": None, "if_others": None}
    assert "run open: 2 masked updates; the sums over at least 7 devices have no noise" in text(
        ledger.entries(), Budget()
    )
