"""Before its first task of a run a device knows what all of it costs and asks for; its owner decides."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from fedclient.cli.consent import consent
from fedclient.config import LearnerConfig, WorkConfig
from fedclient.store.blobs import BlobStore
from fedclient.store.consent import TERMS, Consents
from fedclient.store.ledger import Ledger
from fedclient.work.failures import outgoing
from fedclient.work.runtime import RUNS, Runtime
from shoal.core.algorithm import find
from shoal.core.algorithm.asks import asks_of, terms_of
from shoal.core.algorithm.training import private_training
from shoal.core.data.dataset import Dataset
from shoal.core.data.views import Views
from shoal.core.device_kit.context import DeviceContext
from shoal.core.device_kit.learner import builtin
from shoal.core.device_kit.training.private import terms as private_terms
from shoal.core.device_kit.training.whole_run import whole_run
from shoal.core.exchange.link import Failure, Task
from shoal.core.exchange.messages import (
    Build,
    Built,
    Evaluate,
    Message,
    PrivateTraining,
    Score,
    Train,
    TrainingSettings,
)
from shoal.core.exchange.payload import Payload, decode, encode
from shoal.core.privacy.asks import Asks, RunTerms, read_terms
from shoal.core.privacy.budget import Budget
from shoal.core.privacy.cost import total
from shoal.core.privacy.ledger.entries import Open, Reserved, chosen, paid
from shoal.core.privacy.payment import TRAINING
from shoal.core.privacy.report import OPEN
from shoal.core.server_kit.standard import training
from shoal.core.types import Tensors

SETTINGS = TrainingSettings(epochs=1, batch_size=8)


def terms(**changes: Any) -> str:
    found = {"rounds": 2, "epochs": 1, "batch_size": 8, **changes}
    card, _ = find("fedavg")
    return terms_of(card, card.configure("default", found))


def opened(work: WorkConfig, budget: Budget) -> Runtime:
    learner = LearnerConfig(builtin="mlp", options={"inputs": 4, "hidden": [4], "classes": 3})
    consent = work.account.parent / "consent"
    return Runtime.open(replace(work, learner=learner, privacy=budget, consent=consent))


def perform(runtime: Runtime, store: BlobStore, message: Message, terms: str, run: str = "r1") -> Any:
    return runtime.perform(Task(run, 1, 1, 7, "", encode(message, store.keep), terms))


def initial(runtime: Runtime, store: BlobStore) -> Tensors:
    found = perform(runtime, store, Build(), "")
    model: Tensors = decode(found, {Built.kind: Built}, store.load).model  # type: ignore[attr-defined]
    return model


def lesson(model: Tensors, epsilon: float, rounds: int = 2) -> Train:
    return Train(model, SETTINGS, private=PrivateTraining(1.0, 0.0, epsilon, 1e-6, rounds))


def test_a_run_that_costs_too_much_in_all_is_refused_before_it_costs_anything(
    work: WorkConfig, store: BlobStore
) -> None:
    """One round of it would fit."""
    pytest.importorskip("opacus")
    budget = Budget(epsilon=5.0, total_epsilon=10.0)
    runtime = opened(work, budget)
    model = initial(runtime, store)
    found = perform(runtime, store, lesson(model, 8.0, 20), terms(rounds=20, dp_epsilon=8.0, evaluate=False))
    assert isinstance(found, Failure)
    assert found.code == "over-budget"
    assert "all of run r1 of epsilon" in found.message
    assert paid(Ledger(work.account, budget).entries(), TRAINING) == []
    without = perform(runtime, store, lesson(model, 8.0, 20), "", run="r2")
    assert isinstance(without, Payload), "terms are not known: each task is judged by itself"
    (spent,) = paid(Ledger(work.account, budget).entries(), TRAINING)
    assert spent.payment.cost.fits(5.0, 1e-6)


def test_a_run_is_not_refused_for_what_it_has_spent_itself(work: WorkConfig, store: BlobStore) -> None:
    pytest.importorskip("opacus")
    budget = Budget(epsilon=5.0, total_epsilon=10.0)
    asked = terms(dp_epsilon=4.0, evaluate=False)
    model = initial(opened(work, budget), store)
    for _ in range(2):  # the training process begins again
        found = perform(opened(work, budget), store, lesson(model, 4.0), asked)
        assert isinstance(found, Payload), found
    again = perform(opened(work, budget), store, lesson(model, 4.0), asked, run="r2")
    assert isinstance(again, Failure)
    assert again.code == "over-budget"


def test_the_owner_sees_all_of_it_before_the_first_task(work: WorkConfig, store: BlobStore) -> None:
    budget = replace(Budget(), allow_unprotected=None, allow_plain_weights=None)
    runtime, consents = opened(work, budget), Consents(work.account.parent / "consent")
    model = initial(runtime, store)
    assert consents.terms() == {}
    found = perform(runtime, store, Train(model, SETTINGS), terms(rounds=7))
    assert isinstance(found, Failure)
    assert found.code == "no-consent"
    assert set(consents.asked()["r1"]) == {OPEN["weights"], OPEN["summary"], OPEN["figures"]}, "of all rounds"
    known = consents.terms()["r1"]
    assert (known["algorithm"], known["lessons"], known["epsilon"], known["sums"]) == ("fedavg", 7, 0.0, None)
    consents.give("r1")
    assert isinstance(perform(runtime, store, Train(model, SETTINGS), terms(rounds=7)), Payload)


def test_other_terms_are_asked_for_again(work: WorkConfig, store: BlobStore) -> None:
    budget = replace(Budget(), allow_unprotected=None, allow_plain_weights=None)
    runtime, consents = opened(work, budget), Consents(work.account.parent / "consent")
    model = initial(runtime, store)
    few = terms(inputs="raw")
    assert isinstance(perform(runtime, store, Train(model, SETTINGS), few), Failure)
    consents.give("r1")
    assert isinstance(perform(runtime, store, Train(model, SETTINGS), few), Payload)
    found = perform(runtime, store, Train(model, SETTINGS), terms(inputs="scaled"))
    assert isinstance(found, Failure)
    assert found.code == "no-consent"


@pytest.mark.parametrize("bad", ["{", '{"algorithm": "none", "asks": {}}'])
def test_terms_that_cannot_be_read_fail_the_task(work: WorkConfig, store: BlobStore, bad: str) -> None:
    runtime = opened(work, Budget())
    found = perform(runtime, store, Train(initial(runtime, store), SETTINGS), bad)
    assert isinstance(found, Failure)
    assert found.code == "bad-payload"
    assert "update this device" in found.message


def of_unknown(*tasks: str, **asks: Any) -> str:
    """The terms of a run of an algorithm that this device has never heard of."""
    return str(RunTerms("nova", "shoal-nova", tasks, Asks(**asks)))


PRIVATE = PrivateTraining(1.0, 0.0, 4.0, 1e-6, 2)
STRICT = Budget(epsilon=5.0, total_epsilon=5.0, allow_unprotected=False, allow_plain_weights=False)


def test_an_algorithm_that_only_the_server_has_is_judged_like_any_other(
    work: WorkConfig, store: BlobStore
) -> None:
    pytest.importorskip("opacus")
    runtime, consents = opened(work, STRICT), Consents(work.account.parent / "consent")
    model = initial(runtime, store)
    asked = of_unknown(lessons=2, training=PRIVATE, batch_size=8)
    for _ in range(2):
        assert isinstance(perform(runtime, store, lesson(model, 4.0), asked), Payload)
    known = consents.terms()["r1"]
    assert (known["algorithm"], known["lessons"], known["opened"]) == ("nova", 2, [])
    ledger = Ledger(work.account, STRICT)
    (held,) = chosen(ledger.entries(), Reserved)
    assert STRICT.epsilon_of(held.cost) == pytest.approx(known["epsilon"])
    assert held.cost.curve == pytest.approx(total(each.payment.cost for each in paid(ledger.entries())).curve)
    again = perform(runtime, store, lesson(model, 4.0), asked, run="r2")
    assert isinstance(again, Failure)
    assert again.code == "over-budget", "its reservation is as good as any"


def test_a_server_gains_nothing_by_lies_about_an_algorithm_that_no_one_knows(
    work: WorkConfig, store: BlobStore
) -> None:
    """It says that the run trains once, by DP-SGD, for nearly nothing, and lets nothing leave in the open."""
    pytest.importorskip("opacus")
    runtime, ledger = opened(work, STRICT), Ledger(work.account, STRICT)
    model = initial(runtime, store)
    lie = of_unknown(lessons=1, training=replace(PRIVATE, epsilon=0.1), batch_size=8)
    for open_task in (Train(model, SETTINGS), Evaluate(model), Score((model, model))):
        found = perform(runtime, store, open_task, lie)
        assert isinstance(found, Failure)
        assert found.code == "unprotected"
    assert chosen(ledger.entries(), Open) == []
    answers = [perform(runtime, store, lesson(model, 1.5, 1), lie) for _ in range(20)]
    assert isinstance(answers[0], Payload), "it may ask for more than it said, as long as that is paid"
    refused = [each.code for each in answers if isinstance(each, Failure)]
    assert refused == ["over-budget"] * len(refused) != []
    spent = total(each.payment.cost for each in paid(ledger.entries()))
    assert spent.fits(STRICT.epsilon, STRICT.delta), "every task is paid by what it asks itself"


def test_consent_to_what_was_announced_is_none_to_anything_else(work: WorkConfig, store: BlobStore) -> None:
    budget = replace(Budget(), allow_unprotected=None, allow_plain_weights=None)
    runtime, consents = opened(work, budget), Consents(work.account.parent / "consent")
    model = initial(runtime, store)
    only_figures = of_unknown(opened=("figures",))
    assert perform(runtime, store, Evaluate(model), only_figures).code == "no-consent"
    assert consents.give("r1") == [OPEN["figures"]]
    assert isinstance(perform(runtime, store, Evaluate(model), only_figures), Payload)
    found = perform(runtime, store, Train(model, SETTINGS), only_figures)
    assert isinstance(found, Failure)
    assert found.code == "no-consent"
    assert OPEN["weights"] in found.message


@pytest.mark.parametrize("newcomer", [False, True])
def test_tasks_of_an_algorithm_that_is_not_here_name_it_and_its_package(
    work: WorkConfig, store: BlobStore, newcomer: bool
) -> None:
    """One that trains learns it before its first task; a newcomer only if it is asked for such a task."""
    runtime = opened(replace(work, newcomer=newcomer), Budget())
    asked, own = of_unknown("nova_look", lessons=1, opened=("weights",)), Payload("nova_look", {})
    first = perform(runtime, store, Build(), asked)
    second = runtime.perform(Task("r1", 1, 1, 7, "", own, asked))
    assert isinstance(first, Payload if newcomer else Failure)
    for found in (second, first)[: 1 if newcomer else 2]:
        assert isinstance(found, Failure)
        assert found.code == "no-algorithm"
        assert "algorithm nova has tasks of its own" in found.message
        assert "nova_look" in found.message
        assert "install the package shoal-nova" in found.message
    sent = outgoing(second)
    assert "fedserver algorithm show" in sent.message
    assert "nova" not in sent.message
    unannounced = runtime.perform(Task("r1", 1, 1, 7, "", Payload("nova_tell", {}), asked))
    assert isinstance(unannounced, Failure)
    assert unannounced.code == "bad-payload", "no package is named for what is not announced"


def test_a_newcomer_reserves_nothing_for_a_run_that_it_takes_no_part_in(
    work: WorkConfig, store: BlobStore
) -> None:
    pytest.importorskip("opacus")
    for newcomer, lines in ((True, 0), (False, 1)):
        runtime = opened(replace(work, newcomer=newcomer), Budget())
        model, asked = initial(runtime, store), of_unknown(lessons=2, training=PRIVATE, batch_size=8)
        assert isinstance(perform(runtime, store, Evaluate(model), asked), Payload)
        assert len(chosen(Ledger(work.account, Budget()).entries(), Reserved)) == lines


def test_the_terms_of_few_runs_are_kept_in_memory(work: WorkConfig, store: BlobStore) -> None:
    runtime = opened(work, Budget())
    model = initial(runtime, store)
    for number in range(RUNS + 2):
        assert isinstance(perform(runtime, store, Evaluate(model, "train"), terms(), f"r{number}"), Payload)
    assert [*runtime._wholes] == [f"r{number}" for number in range(2, RUNS + 2)]


@pytest.mark.parametrize("rounds", [10**9, 10**30, 10**400], ids=["many", "more", "beyond"])
def test_terms_with_very_many_rounds_take_no_memory(work: WorkConfig, store: BlobStore, rounds: int) -> None:
    pytest.importorskip("opacus")
    runtime = opened(work, Budget())
    asked = terms(rounds=2, dp_epsilon=4.0).replace('"lessons": 2', f'"lessons": {rounds}')
    assert str(rounds) in asked
    found = perform(runtime, store, lesson(initial(runtime, store), 4.0), asked)
    assert isinstance(found, Failure)
    assert found.code in ("over-budget", "bad-payload")


def test_the_terms_are_shown_and_a_damaged_file_of_them_is_not_worse_than_none(tmp_path: Path) -> None:
    config = tmp_path / "device.yaml"
    config.write_text("state: state\n")
    kept = Consents(tmp_path / "state" / "consent")
    kept.allows("r1", OPEN["summed"])
    shown = {
        "algorithm": "fedavg",
        "lessons": 20,
        "epsilon": 3.0,
        "if_replaced": 7.25,
        "delta": 1e-6,
        "sums": 8.0,
        "opened": [OPEN["summed"]],
    }
    kept.note("r1", shown)
    found = CliRunner().invoke(consent, ["--config", str(config)])
    assert found.exit_code == 0, found.output
    for text in (
        "run r1: fedavg, which trains 20 times",
        "all of it costs epsilon 3 at delta 1e-06 (7.25 where one sample is replaced by another)",
        "epsilon 8 at delta 1e-06 for all data of this device together",
        f"without a guarantee it asks for: {OPEN['summed']}",
        "waits for your consent",
    ):
        assert text in found.output
    for damage in ('{"r1": {}}', '{"r1": {"algorithm": 3, "lessons": "x"', "rubbish"):
        (tmp_path / "state" / "consent" / TERMS).write_text(damage)
        found = CliRunner().invoke(consent, ["--config", str(config)])
        assert found.exit_code == 0, found.output


@pytest.mark.parametrize("name", ["fedavg", "flux"])
def test_the_preset_private_opens_nothing_and_fits_into_the_budget_of_every_owner(name: str) -> None:
    pytest.importorskip("opacus")
    card, _ = find(name)
    parameters = card.configure("private")
    assert asks_of(card, parameters).in_the_open == ()
    chance = np.random.default_rng(0)
    data = Dataset(chance.random((600, 4), np.float32), chance.integers(0, 3, 600))
    learner = builtin("mlp", {"inputs": 4, "hidden": [4], "classes": 3})
    context = DeviceContext(learner, Views.of(data), "cpu", 0, chance)
    whole, budget = whole_run(read_terms(terms_of(card, parameters)), context), Budget()
    assert whole.cost.fits(budget.epsilon, budget.delta)
    asked = private_training(parameters)
    assert asked is not None
    agreed = private_terms(asked, training(parameters), len(data))
    assert (agreed.rate, agreed.steps) == (1.0, 1), "one step over all samples in each round"
