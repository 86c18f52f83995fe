"""Costs of several mechanisms in one sum: against dp-accounting, and what holds of every curve."""

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.core.privacy.cost import ORDERS, Cost, epsilon_of, group, rho_of, total

DELTAS = (1e-4, 1e-6, 1e-9)
LESSONS = [(0.7, 0.02, 500), (1.0, 0.1, 200), (2.0, 0.5, 50), (4.0, 1.0, 10), (8.0, 0.1, 2000)]
"""Noise, rate, steps."""


def linear(rho: float) -> Cost:
    """A curve of something that is rho zCDP."""
    return Cost(curve=tuple(rho * order for order in ORDERS))


def of_training(noise: float, rate: float, steps: int) -> Cost:
    pytest.importorskip("opacus")
    from shoal.core.device_kit.training.private import cost

    return cost(noise, rate, steps)


def accountants(*events: Any) -> tuple[Any, Any]:
    """dp-accounting's Renyi accountant, at our orders, and its numerical one, which is nearly exact."""
    pytest.importorskip("dp_accounting")
    from dp_accounting.pld import PLDAccountant
    from dp_accounting.rdp import RdpAccountant

    renyi, exact = RdpAccountant(list(ORDERS)), PLDAccountant(value_discretization_interval=1e-3)
    for event in events:
        renyi.compose(event)
        exact.compose(event)
    return renyi, exact


def sampled(noise: float, rate: float, steps: int) -> Any:
    events = pytest.importorskip("dp_accounting").dp_event
    step = events.PoissonSampledDpEvent(rate, events.GaussianDpEvent(noise))
    return events.SelfComposedDpEvent(step, steps)


@pytest.mark.parametrize("lesson", LESSONS)
def test_training_costs_what_dp_accounting_says(lesson: tuple[float, float, int]) -> None:
    renyi, exact = accountants(sampled(*lesson))
    cost = of_training(*lesson)
    for delta in DELTAS:
        found = cost.epsilon(delta)
        assert found == pytest.approx(renyi.get_epsilon(delta), rel=0.01)
        assert exact.get_epsilon(delta) <= found < 1.35 * exact.get_epsilon(delta)


@pytest.mark.parametrize("rounds", [1, 5, 20])
def test_descriptors_and_rounds_of_training_add_up_as_dp_accounting_has_it(rounds: int) -> None:
    events = pytest.importorskip("dp_accounting").dp_event
    sigma, lesson = 2.0, (1.2, 0.1, 20)
    cost = total([Cost(rho_of(sigma)), *[of_training(*lesson)] * rounds])
    renyi, exact = accountants(events.GaussianDpEvent(sigma), *[sampled(*lesson)] * rounds)
    for delta in DELTAS:
        assert cost.epsilon(delta) == pytest.approx(renyi.get_epsilon(delta), rel=0.01)
        assert exact.get_epsilon(delta) <= cost.epsilon(delta)


@pytest.mark.parametrize("rho", [0.01, 0.1, 0.5, 2.0])
@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_a_curve_never_claims_more_than_the_number_it_stands_for(rho: float, size: int) -> None:
    """Of a linear curve the exact answer is known, for groups too."""
    for delta in DELTAS:
        exact = epsilon_of(group(rho, size), delta)
        assert exact <= linear(rho).epsilon(delta, size) * (1 + 1e-9)
        if size == 1:
            assert linear(rho).epsilon(delta) < 1.05 * exact
        assert linear(rho).epsilon(delta, size) < 2.5 * exact + 0.5


@settings(deadline=None)
@given(st.floats(0.0, 2.0), st.floats(1e-4, 1.0), st.floats(0.1, 30.0), st.integers(1, 8))
def test_what_fits_into_a_budget_fills_it_and_no_more(
    rho: float, curve: float, epsilon: float, size: int
) -> None:
    for cost in (Cost(rho), Cost(rho) + linear(curve)):
        room = cost.room(epsilon, 1e-6, size)
        if room >= 0.0:
            filled = cost + Cost(room)
            more = filled + Cost(1e-6 * (1 + room))
            assert filled.fits(epsilon, 1e-6, size)
            assert not more.fits(epsilon * (1 - 1e-9), 1e-6, size)
            if not filled.curve:
                assert filled.epsilon(1e-6, size) <= epsilon * (1 + 1e-9)
                assert more.epsilon(1e-6, size) > epsilon * (1 - 1e-9)
        else:
            assert not cost.fits(epsilon, 1e-6, size)


def test_more_samples_of_one_person_than_any_order_are_not_promised_anything() -> None:
    assert linear(0.1).epsilon(1e-6, 512) == math.inf
    assert linear(0.1).room(5.0, 1e-6, 512) == -math.inf
    assert Cost().room(0.0, 1e-6) == 0.0
    assert linear(1e-9).room(0.0, 1e-6) == -math.inf


@pytest.mark.parametrize(
    "curve",
    [(1.0,), (math.inf,) * len(ORDERS), (-1.0,) * len(ORDERS), tuple(map(float, range(len(ORDERS), 0, -1)))],
    ids=["short", "infinite", "negative", "falling"],
)
def test_what_is_no_curve_is_refused(curve: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match=r"curve|cost"):
        Cost(curve=curve)


def test_ledgers_are_written_with_these_orders() -> None:
    assert len(ORDERS) == 29
    assert list(ORDERS) == sorted(ORDERS)
    assert (ORDERS[0], sum(ORDERS), ORDERS[-1]) == (1.25, 1359.0, 512.0)
