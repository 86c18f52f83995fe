"""The owner's limit as a privacy filter: an adversary chooses each release by the answers to all before.

Releases are Gaussian, so the privacy loss of a transcript is known exactly: a release of cost rho adds a
normal number of mean rho and variance 2 rho. What a limit of (epsilon, delta) has to keep is the mean of
max(0, 1 - e^(epsilon - loss)), which is the smallest delta that holds for the whole game.
"""

import math
from collections.abc import Callable

import numpy as np
import pytest

from shoal.core.errors import OverBudget
from shoal.core.exchange.parts import FloatArray
from shoal.core.privacy.budget import Budget
from shoal.core.privacy.cost import (
    ORDERS,
    Cost,
    _between,
    _grouped,
    at_order,
    epsilon_of,
    order_for,
    rho_for,
)

EPSILON, DELTA, GAMES = 2.0, 0.01, 20_000
WHOLE = rho_for(EPSILON, DELTA)
Strategy = Callable[[FloatArray, FloatArray], FloatArray]
"""From the losses so far and the rho that is left, of many games, to the rho of the next release; 0 to
stop."""


def played(strategy: Strategy, limited: bool = True) -> FloatArray:
    """The losses of many games, each until the strategy stops or nothing fits.

    limited: by the rule that the ledger follows before each release; else every release only has to be within
    the limit by itself, which is a filter that is broken.
    """
    chance = np.random.default_rng(5)
    losses, spent = np.zeros(GAMES), np.zeros(GAMES)
    playing = np.ones(GAMES, bool)
    for _ in range(40):
        rho = strategy(losses, WHOLE - spent)
        playing &= (rho > 0.0) & (rho <= (WHOLE - spent if limited else WHOLE))
        paid = np.where(playing, rho, 0.0)
        spent += paid
        losses += chance.normal(paid, np.sqrt(2.0 * paid))
    return losses


def test_what_the_games_are_limited_by_is_what_the_budget_leaves() -> None:
    budget = Budget(EPSILON, DELTA, EPSILON)
    for share in (0.0, 0.3, 0.99):
        spent = Cost(share * WHOLE)
        left = budget.left(spent, spent)
        assert left == pytest.approx(WHOLE - spent.rho, rel=1e-9)
        budget.check(Cost(left), spent, spent)
        with pytest.raises(OverBudget):
            budget.check(Cost(1.001 * left), spent, spent)


def delta_of(losses: FloatArray) -> tuple[float, float]:
    """The smallest delta that holds, and its standard error."""
    found = np.maximum(0.0, 1.0 - np.exp(EPSILON - losses))
    return float(found.mean()), float(found.std() / math.sqrt(len(found)))


STRATEGIES: dict[str, Strategy] = {
    "all at once": lambda loss, left: left,
    "in small steps": lambda loss, left: np.where(left < WHOLE / 30, 0.0, WHOLE / 20),
    "until the loss is high enough": lambda loss, left: np.where(loss > EPSILON, 0.0, left / 4),
    "bold when the loss is high": lambda loss, left: np.where(loss > EPSILON / 2, left, left / 8),
    "bold when the loss is low": lambda loss, left: np.where(loss < 0.0, left, left / 8),
}


@pytest.mark.parametrize("name", STRATEGIES)
def test_no_way_of_choosing_and_stopping_gets_more_than_the_limit(name: str) -> None:
    found, error = delta_of(played(STRATEGIES[name]))
    assert found + 5.0 * error < DELTA
    assert found > 0.0  # the attack is not idle


def test_the_same_game_finds_a_filter_that_looks_at_each_release_alone() -> None:
    found, error = delta_of(
        played(lambda loss, left: np.where(loss > EPSILON, 0.0, WHOLE / 2), limited=False)
    )
    assert found - 5.0 * error > 10 * DELTA


def test_the_order_of_a_limit_is_the_one_at_which_the_most_fits() -> None:
    for epsilon, delta in ((1.0, 1e-6), (5.0, 1e-6), (2.0, 0.01)):
        order = order_for(epsilon, delta)
        room = (epsilon - at_order(order, 0.0, delta)) / order
        assert room == pytest.approx(rho_for(epsilon, delta), rel=1e-9)


def test_releases_that_are_tight_at_different_orders_are_held_to_one() -> None:
    """Each of the two is within the limit at an order of its own, and whichever is best afterwards may not
    be used: then the choice between them could depend on the answers before."""
    epsilon, delta = 5.0, 1e-6
    order = order_for(epsilon, delta)
    steep = Cost(curve=tuple(0.05 * alpha if alpha < order else 40.0 + alpha for alpha in ORDERS))
    assert steep.epsilon(delta) < epsilon  # by a low order
    assert not steep.fits(epsilon, delta)  # not by the one that was fixed in advance


@pytest.mark.parametrize("size", [1, 3])
def test_between_the_orders_that_are_known_the_divergence_is_bounded(size: int) -> None:
    """For zCDP it is known everywhere: what is interpolated is above it, by little."""
    rho = 0.3
    points = _grouped(tuple(rho * order for order in ORDERS), size)
    known = [(order, rho * order * size) for order, _ in points]  # of `size` samples: size^2 rho order/size
    for order in np.linspace(1.3, 20.0, 60):
        exact = rho * size**2 * order
        assert exact * (1 - 1e-12) <= _between(known, size, float(order)) < 1.12 * exact
    assert _between(known, size, 1e6) == math.inf


def test_a_limit_that_is_named_suffices_and_is_near_the_epsilon_that_is_reported() -> None:
    for cost in (Cost(0.2), Cost(0.1, tuple(0.05 * order for order in ORDERS))):
        limit = cost.limit(1e-6)
        assert cost.fits(limit, 1e-6)
        assert cost.epsilon(1e-6) <= limit < 1.02 * cost.epsilon(1e-6)
    assert Cost(0.2).limit(1e-6) == pytest.approx(epsilon_of(0.2, 1e-6), rel=2e-3)
    assert Cost(curve=tuple(1e7 for _ in ORDERS)).limit(1e-6) == math.inf
