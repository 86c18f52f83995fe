"""Two samples of one source, and of two: how often a device takes the ones for the others."""

import numpy as np
import pytest

from shoal.core.exchange.parts import FloatArray
from shoal.core.inference.drift import LEVEL, MIN_SAMPLES, chance


def series(rng: np.random.Generator, n: int, memory: float) -> FloatArray:
    """(n, 2): each number remembers a share of the one before it."""
    found = rng.normal(size=(n, 2))
    for row in range(1, n):
        found[row] = memory * found[row - 1] + np.sqrt(1.0 - memory**2) * found[row]
    return found


@pytest.mark.parametrize("memory", [0.0, 0.8])
def test_samples_of_one_source_are_taken_for_others_at_the_stated_rate(memory: float) -> None:
    rng = np.random.default_rng(43)
    wrong = 0
    for _ in range(150):
        found = series(rng, 240, memory)
        wrong += chance({"latents": found[:120]}, {"latents": found[120:]}) <= LEVEL
    assert wrong <= 6, "more than 6 of 150 have a probability of less than 1 in 1,000"


def test_what_differs_from_stretch_to_stretch_by_itself_has_not_moved() -> None:
    """Each sample remembers 95 % of the one before it; what has moved besides is still found."""
    rng, wrong, right = np.random.default_rng(43), 0, 0
    for _ in range(60):
        found = series(rng, 432, 0.95)
        one, other = {"latents": found[:384]}, {"latents": found[384:]}
        wrong += chance(one, other) <= LEVEL
        right += chance(one, {"latents": other["latents"] + 2.0}) <= LEVEL
    assert wrong <= 4, "exchanges of blocks by themselves are wrong 15 times"
    assert right >= 45


def test_a_shift_is_found_in_the_one_view_that_has_it() -> None:
    rng = np.random.default_rng(43)
    one, other = rng.normal(size=(100, 3)), rng.normal(size=(100, 3))
    still, there = rng.normal(size=(100, 1)), rng.normal(size=(100, 1))
    assert chance({"latents": one, "said": still}, {"latents": other, "said": there}) > LEVEL
    assert chance({"latents": one, "said": still}, {"latents": other, "said": there + 1.0}) <= LEVEL
    assert chance({"latents": one, "said": still}, {"latents": 2.0 * other, "said": there}) <= LEVEL


def test_what_cannot_be_compared_has_not_moved() -> None:
    one = np.zeros((MIN_SAMPLES - 1, 2))
    assert chance({"said": one}, {"said": one + 9.0}) == 1.0
    same = np.full((MIN_SAMPLES, 2), np.nan)
    assert chance({"said": same}, {"said": same}) == 1.0, "numbers that are none say nothing"
