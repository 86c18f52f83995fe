"""Noise of the server: no device moves a cluster's sum by more than the norm, and rounds are counted."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.core.algorithm import Report, find
from shoal.core.engine.rollback import rolled_back
from shoal.core.errors import ConfigError, Refused
from shoal.core.exchange.messages import Trained
from shoal.core.privacy.report import CentralNoise
from shoal.core.server_kit.aggregation.averaging import next_models
from shoal.core.server_kit.aggregation.guard import Guard
from shoal.core.server_kit.aggregation.noised import Noise, charged, noised, promise
from shoal.core.server_kit.aggregation.robust import Update
from shoal.core.server_kit.aggregation.update_geometry import norm
from shoal.core.types import Tensors

QUIET = Noise(1.0, 1e-9, 1e-6)
BASE = {"w": np.ones((3, 2), np.float32), "b": np.zeros(2, np.float32), "steps": np.array(7)}


def model(chance: np.random.Generator, scale: float = 1.0) -> Tensors:
    return {
        "w": BASE["w"] + (scale * chance.normal(size=(3, 2))).astype(np.float32),
        "b": (scale * chance.normal(size=2)).astype(np.float32),
        "steps": np.array(99),
    }


def updates(count: int, scale: float = 1.0) -> dict[str, Update]:
    chance = np.random.default_rng(3)
    return {f"d{i}": Update(model(chance, scale), 1.0) for i in range(count)}


def still(count: int) -> bytes:
    """Entropy that gives the same noise every time."""
    return np.random.default_rng(8).bytes(count)


def test_with_hardly_any_noise_it_is_the_mean_of_the_shortened_updates() -> None:
    own = updates(5)
    found = noised(BASE, own, QUIET)
    steps = [
        (each.model["w"].astype(float) - BASE["w"]) * min(1.0, 1.0 / norm(each.model, BASE))
        for each in own.values()
    ]
    assert found["w"] == pytest.approx(BASE["w"] + np.mean(steps, axis=0), abs=1e-6)
    assert found["steps"] == 7  # whole numbers have no noise that would fit them
    assert {name: array.dtype for name, array in found.items()} == {
        name: array.dtype for name, array in BASE.items()
    }


@settings(deadline=None, max_examples=50)
@given(st.integers(0, 4), st.floats(1e-3, 1e30), st.floats(1e-3, 1e3), st.floats(0.01, 1.0))
def test_no_device_moves_the_sum_by_more_than_the_norm(
    one: int, scale: float, clip: float, share: float
) -> None:
    own = updates(5, scale)
    own[f"d{one}"] = replace(own[f"d{one}"], weight=share)
    nothing = {**own, f"d{one}": Update(BASE, share)}
    noise = Noise(clip, 1e-6, 1e-6)
    double = {name: array.astype(np.float64) for name, array in BASE.items() if name != "steps"}
    first, second = (noised(double, each, noise, still) for each in (own, nothing))
    moved = (4.0 + share) * norm(first, second)
    assert moved <= share * clip * (1.0 + 1e-5)  # the grid of the noise is a millionth of it here


def test_the_noise_has_the_size_that_is_paid_for_whatever_devices_there_are() -> None:
    """In a cluster of one, too: it is then as large as what it hides, and the promise holds all the same."""
    base = {"w": np.zeros(40_000)}
    for count in (1, 4):
        own = {f"d{i}": Update(base, 1.0) for i in range(count)}
        found = noised(base, own, Noise(0.5, 3.0, 1e-6))["w"]
        assert found.std() == pytest.approx(3.0 * 0.5 / count, rel=0.02)
        again = noised(base, own, Noise(0.5, 3.0, 1e-6))["w"]
        assert abs(np.corrcoef(found, again)[0, 1]) < 0.03


def test_what_is_beyond_all_numbers_counts_as_nothing() -> None:
    huge = {"w": np.full((3, 2), 3e38), "b": np.full(2, 1e308), "steps": np.array(1)}
    found = noised(BASE, {"d0": Update(huge, 1.0)}, QUIET)
    assert found["w"] == pytest.approx(BASE["w"])


def report(device: str, examples: int) -> Report:
    return Report(device, Trained(model(np.random.default_rng(1)), examples, 0.0))


def test_samples_give_no_weight_and_operators_are_told_how_loud_the_noise_is() -> None:
    noise = Noise(10.0, 1e-9, 1e-6)
    same, _ = next_models({"g": BASE}, [report("a", 1), report("b", 1)], noise, Guard())
    found, guard = next_models({"g": BASE}, [report("a", 1), report("b", 1000)], noise, Guard())
    assert found["g"]["w"] == pytest.approx(same["g"]["w"], abs=1e-6)
    _, guard = next_models({"g": BASE}, [report("a", 1), report("b", 1)], Noise(1.0, 5.0, 1e-6), Guard())
    assert guard.remarks == (
        "model g: 2 devices; its noise is 7.1 times as long as an update of norm central_clip",
    )


@pytest.mark.parametrize("multiplier", [0.7, 1.0, 4.0])
@pytest.mark.parametrize("rounds", [1, 10, 100])
def test_rounds_cost_what_dp_accounting_says(multiplier: float, rounds: int) -> None:
    events = pytest.importorskip("dp_accounting").dp_event
    from dp_accounting.pld import PLDAccountant
    from dp_accounting.rdp import RdpAccountant

    noise, spent = Noise(1.0, multiplier, 1e-6), {"late": 0.0}
    for number in range(rounds):
        present = [report("a", 5), *([report("late", 5)] if number == rounds - 1 else [])]
        spent = dict(charged(spent, present, noise))
    assert spent["late"] == pytest.approx(spent["a"] / rounds)
    found = CentralNoise(max(spent.values()), 1e-6)
    claimed = float(str(found).split("epsilon ")[1].split(" ")[0])
    events = events.SelfComposedDpEvent(events.GaussianDpEvent(multiplier), rounds)
    orders = [1 + 10 ** (step / 50) for step in range(-150, 200)]
    renyi, exact = (
        RdpAccountant(orders).compose(events),
        PLDAccountant(value_discretization_interval=1e-3).compose(events),
    )
    assert claimed == pytest.approx(renyi.get_epsilon(1e-6), rel=0.01)
    assert exact.get_epsilon(1e-6) <= claimed * (1 + 1e-3)


@pytest.mark.parametrize("name", ["fedavg", "flux"])
@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"aggregation": "noised"}, "central_noise cannot be 0"),
        ({"aggregation": "noised", "central_noise": 1.0, "central_clip": 0.0}, "central_clip cannot be 0"),
        ({"aggregation": "noised", "central_noise": 1.0, "dp_delta": 1.0}, "dp_delta cannot be 1"),
        ({"central_noise": 1.0}, "central_noise is added only with aggregation=noised"),
        ({"central_noise": math.nan}, "central_noise cannot be nan"),
        ({"dp_epsilon": -1.0}, "dp_epsilon cannot be -1.0"),
    ],
    ids=str,
)
def test_what_would_promise_nothing_is_refused(name: str, changes: dict[str, object], reason: str) -> None:
    card = find(name)[0]
    with pytest.raises(ConfigError, match=reason):
        card.server().start(BASE, card.configure(changes=changes))


def test_a_model_that_is_noised_is_not_chosen_by_losses_that_are_not() -> None:
    card = find("fedavg")[0]
    changes = {"aggregation": "noised", "central_noise": 1.0, "select": "lowest_loss"}
    with pytest.raises(ConfigError, match="a noised model cannot be chosen by losses"):
        card.server().start(BASE, card.configure(changes=changes))


@pytest.mark.parametrize("name", ["fedavg", "flux"])
def test_a_run_counts_its_rounds_also_when_it_goes_back(name: str) -> None:
    card = find(name)[0]
    half, changes = card.server(), {"aggregation": "noised", "central_noise": 2.0, "dp_epsilon": 3.0}
    earlier = half.start(BASE, card.configure(changes=changes))
    assert promise(earlier) == CentralNoise(0.0, 1e-6)
    assert "no update has gone into them" in str(promise(earlier))
    later = half.reduce(earlier, [report("a", 5), report("b", 5)])
    assert promise(later) == CentralNoise(0.125, 1e-6)
    assert str(promise(later)).startswith("models: epsilon 2.")
    back = rolled_back(later, earlier)
    assert back.models is earlier.models
    again = half.reduce(back, [report("a", 5)])
    assert promise(again) == CentralNoise(0.25, 1e-6)
    assert half.plan(earlier, ["a"]).tasks["a"].private.epsilon == 3.0  # type: ignore[union-attr]
    plain = half.start(BASE, card.configure())
    assert promise(plain) is None


def test_it_does_not_go_back_to_where_nothing_is_counted() -> None:
    from shoal.core.engine.bootstrap import Unstarted

    card = find("fedavg")[0]
    changes = {"aggregation": "noised", "central_noise": 2.0}
    state = card.server().start(BASE, card.configure(changes=changes))
    assert rolled_back(state, Unstarted()) == Unstarted()
    later = card.server().reduce(state, [report("a", 5)])
    with pytest.raises(Refused, match="would lose spent"):
        rolled_back(later, Unstarted())
