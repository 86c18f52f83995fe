"""An accuracy with a guarantee: a count that one sample moves by at most 1, with exact noise, paid once."""

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from shoal.core import algorithm
from shoal.core.data.views import Views
from shoal.core.device_kit import standard
from shoal.core.device_kit.context import DeviceContext
from shoal.core.device_kit.evaluation.evaluate import correct, evaluate
from shoal.core.device_kit.learner import Learner, initial_weights
from shoal.core.errors import BadPayload, ConfigError, LearnerFault
from shoal.core.exchange.admit import admit_message
from shoal.core.exchange.choosing import Choose
from shoal.core.exchange.messages import CountLatents, Evaluate, Evaluated, LatentsCounted
from shoal.core.privacy.accountant import R, T, Unmetered
from shoal.core.privacy.cost import Cost
from shoal.core.privacy.noise.chance import Entropy
from shoal.core.privacy.payment import Payment
from shoal.core.privacy.release import noisy_count
from shoal.core.privacy.report import OPEN, left_open
from tests.core.device_kit.conftest import blobs, small


class Exact(Unmetered):
    """Adds no noise, and remembers what was asked."""

    def __init__(self) -> None:
        super().__init__(np.random.default_rng(0).bytes)
        self.asked: list[Payment] = []

    def pay(self, payment: Payment, exact: Callable[[], T], noised: Callable[[T, Entropy], R]) -> R:
        self.asked.append(payment)
        return exact()  # type: ignore[return-value]


def context(learner: Learner | None = None, samples: int = 120) -> DeviceContext:
    views = Views.of(blobs(samples))
    return DeviceContext(learner or small(), views, "cpu", 1, np.random.default_rng(0), account=Exact())


def test_without_noise_it_is_the_accuracy_and_the_loss_stays() -> None:
    on = context()
    model = initial_weights(on.learner, 1)
    found = standard.perform(Evaluate(model, rho=0.5), on)
    assert isinstance(found, Evaluated)
    exact = evaluate(on.learner, on.load(model), on.samples("held_out"))[0]
    assert (found.accuracy, found.loss, found.rho) == (exact, 0.0, 0.5)
    assert found.baseline is None, "the share of a class would be exact"
    assert isinstance(on.account, Exact)
    (asked,) = on.account.asked
    assert (asked.cost, asked.facts) == (Cost(0.5), {"part": "held_out", "rho": 0.5})


def test_one_sample_moves_the_count_by_at_most_one() -> None:
    on = context()
    model, samples = on.load(initial_weights(on.learner, 1)), on.samples("train")
    whole = correct(on.learner, model, samples)
    assert 0 < whole < len(samples)
    for one in range(0, len(samples), 7):
        kept = [number for number in range(len(samples)) if number != one]
        some = replace(samples, x=samples.x[kept], y=samples.labels[kept])
        assert 0 <= whole - correct(on.learner, model, some) <= 1


def test_the_noise_has_the_size_that_was_paid_for() -> None:
    entropy = np.random.default_rng(3).bytes
    draws = np.array([noisy_count(100, 0.02, entropy) for _ in range(2000)])
    assert abs(draws.mean() - 100) < 0.5
    assert draws.std() == pytest.approx(math.sqrt(1 / (2 * 0.02)), rel=0.08)  # rho = 1 / (2 sigma^2)


def test_a_learner_that_measures_in_its_own_way_is_refused() -> None:
    own = Learner("own", small().build, evaluate=lambda model, samples: (1.0, 0.0))
    with pytest.raises(LearnerFault, match="its own evaluate"):
        standard.perform(Evaluate(initial_weights(own, 1), rho=0.5), context(own))


def test_the_number_of_latents_does_not_depend_on_data() -> None:
    task = CountLatents(initial_weights(small(), 1))
    on = context()
    on.samples("train").x.fill_(math.nan)
    found = standard.perform(task, on)
    assert isinstance(found, LatentsCounted)
    admit_message(task, found)
    assert left_open(task) == left_open(Evaluate(task.model, rho=0.5)) == ()
    assert left_open(Evaluate(task.model)) == (OPEN["figures"],)
    assert left_open(Choose((task.model, task.model), "c0 common", (1.0,))) == ()  # it stays on the device
    with pytest.raises(BadPayload, match="0 latents"):
        admit_message(task, LatentsCounted(0))


def test_an_answer_has_to_have_the_noise_that_was_asked_for() -> None:
    task = Evaluate(initial_weights(small(), 1), rho=0.5)
    admit_message(task, Evaluated(0.5, 0.0, 10, rho=0.5))
    for rho in (None, 0.4):
        with pytest.raises(BadPayload, match=r"answers a task of rho 0\.5"):
            admit_message(task, Evaluated(0.5, 0.0, 10, rho=rho))
    with pytest.raises(BadPayload, match="cannot cost"):
        Evaluate(task.model, rho=0.0)


@pytest.mark.parametrize("name", ["ifca", "cornflqs", "feddrift", "srfca", "haccs", "pacfl", "fmcl", "fecfl"])
def test_a_run_that_could_not_keep_the_promise_is_refused_before_it_starts(name: str) -> None:
    card = algorithm.discover()[name]
    with pytest.raises(ConfigError, match="DP-SGD protects only the weights here"):
        card.configure("default", {"dp_epsilon": 3.0})
    assert card.configure("default", {"dp_epsilon": 3.0, "dp_open_figures": True}).private


@pytest.mark.parametrize("name", ["flux", "feroma", "fedavg", "fedprox", "flhc", "cfl", "fesem", "fedgroup"])
def test_the_others_ask_for_nothing_in_the_open(name: str) -> None:
    assert algorithm.discover()[name].configure("default", {"dp_epsilon": 3.0}).private
