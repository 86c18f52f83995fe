"""Weights in the device's ledger: paid before the noise, never recalled, and counted with all else."""

from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import IO

import pytest

from fedclient.config import WorkConfig
from fedclient.store.blobs import BlobStore
from fedclient.store.ledger import Ledger
from fedclient.store.ledger_file import LEDGER
from fedclient.store.privacy_report import facts, text
from fedclient.work.runtime import Runtime
from shoal.core.device_kit.learner import initial_weights
from shoal.core.errors import InUse, LedgerFault, OverBudget
from shoal.core.exchange.link import Failure, Task
from shoal.core.exchange.messages import Evaluate, Message, Train, TrainingSettings
from shoal.core.exchange.payload import encode
from shoal.core.exchange.tensors import digest
from shoal.core.privacy.budget import Budget
from shoal.core.privacy.cost import Cost
from shoal.core.privacy.ledger.entries import Debit, Open, Release, chosen, paid, spent
from shoal.core.privacy.noise.chance import Entropy
from shoal.core.privacy.payment import TRAINING
from shoal.core.privacy.report import NO_WEIGHTS, OPEN, WEIGHTS
from shoal.core.types import Tensors
from shoal.shell.disk import lock
from tests.client.store.paying import exact, lesson, order, released, trained, work

EPSILON = 2.0


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(tmp_path, Budget())


def test_it_is_paid_before_any_noise_and_noted_after(ledger: Ledger, tmp_path: Path) -> None:
    def watched(entropy: Entropy) -> Tensors:
        (debit,) = Ledger(tmp_path, Budget()).entries()
        assert isinstance(debit, Debit)
        assert debit.payment.cost == lesson().cost
        return work(entropy)

    weights = trained(ledger, lesson(), watched)
    entries = ledger.verify()
    (release,) = chosen(entries, Release)
    assert release.release == digest(weights)
    assert spent(entries) == spent(entries, "d" * 64) == lesson().cost
    assert spent(entries, "c" * 64) == Cost()


def test_the_same_task_again_is_paid_and_drawn_anew(ledger: Ledger) -> None:
    first, second = trained(ledger, lesson(), work), trained(ledger, lesson(), work)
    assert digest(first) != digest(second)
    assert [each.number for each in paid(ledger.verify(), TRAINING)] == [1, 2]


def test_what_is_paid_is_not_lost_while_another_process_has_the_ledger(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The weights would be lost, and paid for again when the task is done again."""
    held = 0

    def busy(path: Path) -> IO[str]:
        nonlocal held
        if held:
            held -= 1
            raise InUse("the ledger is in use by another process")
        return lock(path)

    def while_it_is_held(entropy: Entropy) -> Tensors:
        nonlocal held
        held = 3
        return work(entropy)

    monkeypatch.setattr("fedclient.store.ledger_file.WAIT", 0.0)
    monkeypatch.setattr("shoal.shell.disk.lock", busy)
    weights = trained(ledger, lesson(), while_it_is_held)
    assert [each.release for each in chosen(ledger.verify(), Release)] == [digest(weights)]
    assert held == 0


def test_what_fails_after_it_was_paid_stays_paid(ledger: Ledger) -> None:
    def failing(entropy: Entropy) -> Tensors:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        trained(ledger, lesson(), failing)
    assert spent(ledger.verify()) == lesson().cost
    assert "epsilon 1.9" in text(ledger.entries(), Budget())
    assert "not finished, so nothing was released" in text(ledger.entries(), Budget())


def test_descriptors_and_weights_share_one_budget(ledger: Ledger, tmp_path: Path) -> None:
    released(ledger, order(), exact)  # all of epsilon 5 for these data
    with pytest.raises(OverBudget, match="of epsilon 5 for these data, 5 is spent"):
        trained(ledger, lesson(), work)
    wide = Ledger(tmp_path, Budget(epsilon=8.0, total_epsilon=8.0))
    with suppress(OverBudget):
        for _ in range(100):
            trained(wide, lesson(), work)
    entries = wide.verify()
    done = len(paid(entries, TRAINING))
    assert 2 <= done < 99
    assert [each.number for each in entries if not isinstance(each, Release)] == list(range(1, done + 2))
    budget = Budget(epsilon=8.0, total_epsilon=8.0)
    assert 7.0 < budget.epsilon_of(spent(entries)) <= 8.0 * (1 + 1e-9)
    total = facts(entries, budget)["total"]
    assert total["epsilon"] == budget.epsilon_of(spent(entries)) < 5.0 + done * EPSILON
    assert facts(entries, budget)["weights"].startswith("weights: DP-SGD on 1 device")


def test_a_person_of_several_samples_pays_more(tmp_path: Path) -> None:
    with pytest.raises(OverBudget):
        trained(Ledger(tmp_path, Budget(group_size=4)), lesson(), work)


def test_a_changed_curve_is_found(ledger: Ledger, tmp_path: Path) -> None:
    trained(ledger, lesson(), work)
    path = tmp_path / LEDGER
    whole = path.read_bytes()
    for changed in (whole.replace(b'"steps": 20', b'"steps": 2'), whole.replace(b"0.10625", b"0.00001", 1)):
        assert changed != whole
        path.write_bytes(changed)
        with pytest.raises(LedgerFault):
            ledger.verify()


def performed(config: WorkConfig, store: BlobStore, message: type[Message]) -> object:
    runtime = Runtime.open(config)
    weights = initial_weights(runtime._context.learner, 5)
    asked = Train(weights, TrainingSettings(epochs=1)) if message is Train else Evaluate(weights)
    return runtime.perform(Task("r1", 1, 1, 7, "", encode(asked, store.keep)))


@pytest.mark.parametrize(
    ("message", "what"),
    [(Train, [OPEN["weights"], OPEN["figures"]]), (Evaluate, [OPEN["figures"]])],
)
def test_what_leaves_without_a_guarantee_is_noted_or_refused(
    work: WorkConfig, store: BlobStore, message: type[Message], what: list[str]
) -> None:
    for _ in range(2):
        assert not isinstance(performed(work, store, message), Failure)
    own = Ledger(work.account, work.privacy)
    assert [each.what for each in chosen(own.verify(), Open)] == what
    assert facts(own.entries(), work.privacy)["total"]["epsilon"] is None
    expected = WEIGHTS if message is Train else NO_WEIGHTS
    assert facts(own.entries(), work.privacy)["weights"] == expected
    strict = replace(work, privacy=Budget(allow_plain_weights=False))
    refused = performed(strict, store, message)
    assert isinstance(refused, Failure)
    assert "set privacy.allow_plain_weights in this device's settings" in refused.message
    assert "ask the run's operator for dp_epsilon" in refused.message
