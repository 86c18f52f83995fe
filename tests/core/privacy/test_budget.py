"""The owner's budget: what fits, what does not, and what it means as (epsilon, delta)."""

import math
import re
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.core.errors import ConfigError, OverBudget
from shoal.core.exchange.parts import PrivacySettings
from shoal.core.privacy.budget import Budget
from shoal.core.privacy.cost import ORDERS, Cost, rho_for
from shoal.core.privacy.terms import terms

BALANCED = rho_for(5.0, 1e-6)


def training(slope: float) -> Cost:
    """Of DP-SGD, with a divergence in proportion to the order."""
    return Cost(curve=tuple(slope * order for order in ORDERS))


def test_the_default_is_one_balanced_release_for_each_version_and_three_in_all() -> None:
    budget = Budget()
    cost = terms(PrivacySettings("balanced", 5.0, 1e-6), 600, 0).rho
    budget.check(Cost(cost), Cost(), Cost())
    budget.check(Cost(cost), Cost(), Cost(2 * cost))
    for spent in ((cost, cost), (0.0, 3 * cost)):
        with pytest.raises(OverBudget):
            budget.check(Cost(cost), *map(Cost, spent))
    assert budget.epsilon_of(Cost(cost)) == pytest.approx(5.0)


def test_strict_releases_add_up_to_less_than_their_epsilons() -> None:
    cost = terms(PrivacySettings("strict", 1.0, 1e-6), 600, 0).rho
    fitting = math.floor(BALANCED / cost)
    assert fitting == 19
    Budget().check(Cost(cost), Cost((fitting - 1) * cost), Cost())
    with pytest.raises(OverBudget, match=r"of epsilon 5 for these data, 4\.\d+ is spent"):
        Budget().check(Cost(cost), Cost(fitting * cost), Cost(fitting * cost))


@settings(deadline=None)
@given(
    st.floats(0.0, 50.0),
    st.floats(0.0, 50.0),
    st.integers(1, 20),
    st.lists(st.floats(1e-6, 3.0), max_size=20),
)
def test_whatever_is_asked_for_no_limit_is_passed(
    epsilon: float, total: float, group_size: int, costs: list[float]
) -> None:
    budget, spent = Budget(epsilon, 1e-6, total, group_size), Cost()
    for cost in costs:
        left = budget.left(spent, spent)
        try:
            budget.check(Cost(cost), spent, spent)
        except OverBudget:
            assert cost > left
        else:
            assert cost <= left * (1 + 1e-6)
            spent += Cost(cost)
    assert budget.epsilon_of(spent) <= min(epsilon, total) * (1 + 1e-6)


@settings(deadline=None)
@given(
    st.floats(0.0, 20.0),
    st.floats(0.0, 20.0),
    st.integers(1, 3),
    st.lists(st.one_of(st.floats(1e-6, 3.0).map(Cost), st.floats(1e-4, 0.3).map(training)), max_size=10),
)
def test_the_limit_that_a_refusal_names_is_enough(
    epsilon: float, total: float, group_size: int, costs: list[Cost]
) -> None:
    budget, spent = Budget(epsilon, 1e-6, total, group_size), Cost()
    for cost in costs:
        for _ in range(2):  # each of the two limits may have to be raised
            if (hint := refused(budget, cost, spent)) is not None:
                assert ("dp_epsilon" in hint) == bool(cost.curve)
                named = re.search(r"privacy\.(\w+) to ([\d.]+) or more", hint)
                assert named is not None
                budget = replace(budget, **{named[1]: float(named[2])})
        budget.check(cost, spent, spent)
        spent += cost


def refused(budget: Budget, cost: Cost, spent: Cost) -> str | None:
    """The hint that is named, or None where it fits."""
    try:
        budget.check(cost, spent, spent)
    except OverBudget as refusal:
        return refusal.hint
    return None


def test_where_no_limit_is_enough_none_is_named() -> None:
    with pytest.raises(OverBudget) as refused:
        Budget(group_size=600).check(training(0.1), Cost(), Cost())
    assert refused.value.hint == "ask the run's operator for a smaller dp_epsilon"


SPENT = Cost(BALANCED)
RAISE = "set privacy.epsilon to 7.43 or more in this device's settings, or ask the run's operator for a run "


@pytest.mark.parametrize(
    ("cost", "what", "hint"),
    [
        (SPENT, "all of run r2", RAISE + "with privacy=off, which has no guarantee"),
        (training(0.01), "", "without dp_epsilon, which has no guarantee"),
        (training(0.01) + SPENT, "all of run r2", "with privacy=off and without dp_epsilon, which has no"),
        (training(0.01), "a vote", "or more in this device's settings"),
    ],
)
def test_where_nothing_is_left_a_smaller_request_is_no_advice(cost: Cost, what: str, hint: str) -> None:
    with pytest.raises(OverBudget) as refused:
        Budget().check(cost, SPENT, SPENT, what=what)
    assert "nothing is left (delta 1e-06); what is spent is free again after 30 days" in refused.value.message
    assert hint in refused.value.hint
    assert "smaller" not in refused.value.hint


def test_what_an_owner_rules_out_is_no_advice() -> None:
    with pytest.raises(OverBudget) as refused:
        Budget(allow_unprotected=False).check(SPENT, SPENT, SPENT)
    assert refused.value.hint == "set privacy.epsilon to 7.43 or more in this device's settings"


def test_what_is_spent_for_good_is_never_free_again() -> None:
    with pytest.raises(OverBudget, match=r"privacy\.total_epsilon is never free again") as refused:
        Budget(total_epsilon=5.0).check(SPENT, SPENT, SPENT)
    assert "privacy.epsilon to 7.43 or more and privacy.total_epsilon to 7.43 or more" in refused.value.hint


def test_nothing_may_be_spent_at_all() -> None:
    with pytest.raises(OverBudget, match=r"0 is spent; nothing is left \(delta 1e-06\) \(set"):
        Budget(epsilon=0.0).check(Cost(1e-12), Cost(), Cost())


@pytest.mark.parametrize(
    ("name", "value"),
    [("epsilon", -1.0), ("total_epsilon", math.nan), ("delta", 0.0), ("delta", 1.0), ("group_size", 0)],
)
def test_numbers_that_are_none(name: str, value: float) -> None:
    with pytest.raises(ConfigError, match=name):
        Budget(**{name: value})
