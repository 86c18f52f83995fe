"""The audit in short: its bounds on mechanisms whose epsilon is known, and some hundred real releases."""

import asyncio
import math
import time
from contextlib import aclosing
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import mannwhitneyu

from shoal.core.exchange.parts import Descriptor, FloatArray
from tests.audit.bounds import epsilon_bound, gaussian_bound, highest, lowest
from tests.audit.cases import BALANCED, CASES, PAPER, bytes_of, collect
from tests.audit.client import from_worker
from tests.audit.world import World
from tests.core.privacy.reference import gaussian_epsilon
from tests.waiting import HANG

pytestmark = pytest.mark.usefixtures("forked_workers")

DELTA = 1e-6
BLOCK = 60
"""Releases of each side that are asked for at a time."""


def gaussian(sigma: float, count: int, seed: int = 0) -> tuple[FloatArray, FloatArray]:
    """Statistics of releases with this noise, for a sensitivity of 1."""
    chance = np.random.default_rng(seed)
    return sigma * chance.normal(size=count), 1.0 + sigma * chance.normal(size=count)


def test_the_interval_is_that_of_clopper_and_pearson() -> None:
    assert highest(0, 100, 0.975) == pytest.approx(1 - 0.025 ** (1 / 100))
    assert lowest(100, 100, 0.975) == pytest.approx(0.025 ** (1 / 100))
    assert (lowest(0, 9, 0.975), highest(9, 9, 0.975)) == (0.0, 1.0)
    # The textbook's example: 10 of 100 are from 4.9 % to 17.6 %.
    assert (lowest(10, 100, 0.975), highest(10, 100, 0.975)) == pytest.approx((0.0490, 0.1762), abs=1e-4)


def test_a_bound_stays_under_an_epsilon_that_is_known_in_nineteen_cases_of_twenty() -> None:
    flipped = 1 / (1 + math.e)  # randomized response of epsilon 1
    above = 0
    for seed in range(100):
        chance = np.random.default_rng(seed)
        absent = (chance.random(400) < flipped).astype(float)
        present = (chance.random(400) >= flipped).astype(float)
        bound = epsilon_bound(absent, present, 0.0)
        above += bound > 1.0
        assert bound > 0.3
    assert above <= 5


@pytest.mark.parametrize("sigma", [1.0, 4.0])
def test_the_bound_for_gaussian_noise_is_nearly_tight(sigma: float) -> None:
    true = gaussian_epsilon(sigma, DELTA)
    sides = gaussian(sigma, 100_000)
    assert 0.9 * true < gaussian_bound(*sides, DELTA) < true
    assert 0.0 < epsilon_bound(*sides, DELTA) < true


def test_noise_that_is_too_small_is_found() -> None:
    claimed = gaussian_epsilon(1.0, DELTA)
    assert gaussian_bound(*gaussian(0.8, 10_000), DELTA) > claimed
    assert epsilon_bound(*gaussian(0.1, 10_000), DELTA) > claimed


def test_two_data_sets_that_cannot_be_told_apart_prove_nothing() -> None:
    absent, _ = gaussian(1.0, 1000)
    other, _ = gaussian(1.0, 1000, seed=1)
    assert epsilon_bound(absent, other, DELTA) == gaussian_bound(absent, other, DELTA) == 0.0


@pytest.mark.parametrize("classes", [0, 2])
def test_the_sample_is_the_worst_that_there_is(classes: int) -> None:
    assert 0.99999 < World(BALANCED, classes).sensitivity <= 1.0


def play(name: str, count: int) -> tuple[FloatArray, FloatArray]:
    case, until = CASES[name], time.monotonic() + HANG
    absent, present = (asyncio.run(collect(case, there, count, until)) for there in (False, True))
    assert (len(absent), len(present)) == (count, count)
    return absent, present


@pytest.mark.parametrize(
    ("name", "chance"),
    [("balanced, trainer", 1e-5), ("balanced, one replaced", 1e-3), ("DP-SGD, hostile weights", 1e-3)],
)
def test_what_leaves_the_real_client_tells_no_more_than_is_claimed(name: str, chance: float) -> None:
    """`make audit` proves more, by many more releases."""
    if name.startswith("DP-SGD"):
        pytest.importorskip("opacus")
    absent, present = play(name, BLOCK)
    # The attack works: it tells them apart as chance would so seldom. A block may not suffice for that.
    while mannwhitneyu(present, absent, alternative="greater").pvalue >= chance:
        assert len(absent) < 10 * BLOCK
        more = play(name, BLOCK)
        absent, present = np.concatenate([absent, more[0]]), np.concatenate([present, more[1]])
    # The noise is the operating system's: what so few releases prove must be far from what chance does.
    surely, world = 1.0 - 1e-6, CASES[name].world
    assert epsilon_bound(absent, present, DELTA, surely) < world.claimed  # no better than it may
    assert gaussian_bound(absent, present, DELTA, surely) < world.claimed


def test_a_record_that_changes_changes_no_byte_that_is_given_again(tmp_path: Path) -> None:
    """The same file, once with the sample and once with another in its place, and the device starts again."""
    world = World(BALANCED, replaced=True)

    async def one(present: bool) -> Descriptor:
        async with aclosing(from_worker(world, present, tmp_path, keep=True)) as releases:  # type: ignore[type-var]
            return await anext(releases)

    first, second = asyncio.run(one(False)), asyncio.run(one(True))
    assert bytes_of(first) == bytes_of(second)


def test_the_hole_in_the_papers_mechanism_is_found() -> None:
    # 80 of a side choose the threshold, 80 are judged by it: with half of that, chance may choose a bad one.
    assert epsilon_bound(*play("paper, newcomer", 160), PAPER.delta) > PAPER.epsilon
