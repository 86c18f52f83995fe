"""A short campaign for every change, of the kinds that have found the most; `make chaos` has them all."""

import asyncio

import pytest

from tests.chaos.campaign import Campaign, Planned
from tests.chaos.report import table

PLAN = [Planned("server-and-device-kill", 2), Planned("cut-after-last-chunk", 3)]


@pytest.fixture(scope="module")
def campaign(tmp_path_factory: pytest.TempPathFactory) -> Campaign:
    found = Campaign(tmp_path_factory.mktemp("chaos"), seed=1)
    asyncio.run(found.play(PLAN))
    print(table(found))
    return found


def test_nothing_that_was_acknowledged_is_lost_or_counted_twice(campaign: Campaign) -> None:
    assert [(facts.lost, facts.twice) for facts in campaign.trials] == [(0, 0)] * len(PLAN)
    assert sum(facts.acknowledged for facts in campaign.trials) >= 10 * len(PLAN)


def test_the_models_are_the_same_bits_as_without_faults(campaign: Campaign) -> None:
    assert all(facts.equal for facts in campaign.trials)


def test_every_fault_struck(campaign: Campaign) -> None:
    assert all(facts.strikes for facts in campaign.trials)


def test_nothing_else_is_wrong_and_nothing_is_left_behind(campaign: Campaign) -> None:
    problems = [problem for facts in campaign.trials for problem in facts.problems]
    assert problems + [problem for fleet in campaign.fleets for problem in fleet["problems"]] == []
