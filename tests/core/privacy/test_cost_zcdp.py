"""The ledger's arithmetic against published numbers and itself, and where they are installed against
dp-accounting and opendp, to 1 %."""

import math
from functools import cache
from typing import Any

import pytest

from shoal.core.privacy.cost import epsilon_of, group, rho_for, rho_of, sigma_of

from .reference import delta_of, gaussian_delta, gaussian_epsilon, gaussian_sigma, sigma_for

GRID = [(epsilon, delta) for epsilon in (0.1, 0.5, 1.0, 2.0, 5.0, 10.0) for delta in (1e-4, 1e-6, 1e-9)]
SIGMAS = [0.4, 0.7, 1.0, 2.5, 6.0, 20.0]


@pytest.mark.parametrize(("epsilon", "sigma"), [(0.5, 8.06), (1, 4.22), (2, 2.23), (5, 0.98), (10, 0.541)])
def test_the_exact_gaussian_needs_the_noise_that_balle_and_wang_give(epsilon: float, sigma: float) -> None:
    assert gaussian_sigma(epsilon, 1e-6) == pytest.approx(sigma, abs=0.005)


@pytest.mark.parametrize(("epsilon", "delta"), GRID)
def test_rho_sigma_epsilon_and_delta_are_inverse_to_each_other(epsilon: float, delta: float) -> None:
    rho = rho_for(epsilon, delta)
    assert epsilon_of(rho, delta) <= epsilon
    assert epsilon_of(rho * (1 + 1e-9), delta) > epsilon * (1 - 1e-9)
    assert delta_of(rho, epsilon) == pytest.approx(delta, rel=1e-6)
    assert rho_of(sigma_of(rho)) == pytest.approx(rho, rel=1e-14)
    assert sigma_for(epsilon, delta) == sigma_of(rho)
    assert gaussian_delta(gaussian_sigma(epsilon, delta), epsilon) <= delta * (1 + 1e-9)


@pytest.mark.parametrize(("epsilon", "delta"), GRID)
def test_the_conversion_never_claims_more_than_the_exact_formula(epsilon: float, delta: float) -> None:
    sigma = sigma_for(epsilon, delta)
    exact = gaussian_epsilon(sigma, delta)
    assert 0.75 * epsilon < exact <= epsilon
    assert gaussian_delta(sigma, epsilon) <= delta


def test_the_conversion_is_no_worse_than_the_textbook_one() -> None:
    """Bun and Steinke, Proposition 1.3: epsilon = rho + 2 sqrt(rho log(1/delta))."""
    for rho in (1e-4, 0.01, 0.1, 1.0, 10.0):
        assert epsilon_of(rho, 1e-6) < rho + 2 * math.sqrt(rho * math.log(1e6))


def test_twenty_releases_at_epsilon_one_cost_what_one_with_less_noise_does() -> None:
    rho = rho_of(gaussian_sigma(1.0, 1e-6))
    assert gaussian_epsilon(sigma_of(20 * rho), 1e-6) == pytest.approx(5.21, abs=0.01)


def test_nothing_released_costs_nothing() -> None:
    assert (epsilon_of(0.0, 1e-6), delta_of(0.0, 1.0)) == (0.0, 0.0)


def test_a_person_with_three_samples_pays_nine_times() -> None:
    assert group(0.5, 1) == 0.5
    assert group(0.5, 3) == 4.5


@pytest.mark.parametrize("sigma", SIGMAS)
@pytest.mark.parametrize("delta", [1e-4, 1e-9])
@pytest.mark.parametrize("releases", [1, 20])
def test_composition_agrees_with_dp_accounting(sigma: float, delta: float, releases: int) -> None:
    rho = releases * rho_of(sigma)
    assert epsilon_of(rho, delta) == pytest.approx(renyi(sigma, releases).get_epsilon(delta), rel=0.01)
    numerical = exact(sigma, releases).get_epsilon(delta)
    assert gaussian_epsilon(sigma_of(rho), delta) == pytest.approx(numerical, rel=0.01)


@pytest.mark.parametrize(("epsilon", "delta"), GRID)
def test_sigma_agrees_with_dp_accounting(epsilon: float, delta: float) -> None:
    assert renyi(sigma_for(epsilon, delta), 1).get_epsilon(delta) == pytest.approx(epsilon, rel=0.01)
    assert exact(gaussian_sigma(epsilon, delta), 1).get_epsilon(delta) == pytest.approx(epsilon, rel=0.01)


def renyi(sigma: float, releases: int) -> Any:
    """dp-accounting's Renyi accountant after this many releases."""
    events = pytest.importorskip("dp_accounting").dp_event
    from dp_accounting.rdp import RdpAccountant

    orders = [1 + 10 ** (step / 50) for step in range(-150, 200)]
    return RdpAccountant(orders).compose(events.SelfComposedDpEvent(events.GaussianDpEvent(sigma), releases))


@cache
def exact(sigma: float, releases: int) -> Any:
    """Its numerical accountant, with steps that cost a tenth of the usual ones and change 1 in 10,000."""
    events = pytest.importorskip("dp_accounting").dp_event
    from dp_accounting.pld import PLDAccountant

    return PLDAccountant(value_discretization_interval=1e-3).compose(
        events.SelfComposedDpEvent(events.GaussianDpEvent(sigma), releases)
    )


@pytest.mark.parametrize(("epsilon", "delta"), GRID)
def test_it_agrees_with_opendp(epsilon: float, delta: float) -> None:
    prelude = pytest.importorskip("opendp.prelude")
    prelude.enable_features("contrib")
    counts = (prelude.vector_domain(prelude.atom_domain(T=int)), prelude.l2_distance(T=float))
    release = prelude.c.make_zCDP_to_approxDP(
        prelude.m.make_gaussian(*counts, scale=sigma_for(epsilon, delta))
    )
    assert release.map(1.0).epsilon(delta) == pytest.approx(epsilon, rel=0.01)
