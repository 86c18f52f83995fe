"""The trimmed mean, without a sort."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from shoal.core.server_kit.aggregation.trimmed_mean import MAX_ROWS, half, trimmed_mean
from shoal.core.types import Array


def expected(rows: Array, cut: int) -> Array:
    """By sorting each column."""
    found: Array = np.sort(rows.astype(np.float64), axis=0)[cut : len(rows) - cut].mean(axis=0)
    return found


@pytest.mark.parametrize("count", [*range(1, 34), 60, MAX_ROWS, MAX_ROWS + 1, 100])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int32", "bool"])
def test_it_is_the_mean_without_the_lowest_and_highest_values(count: int, dtype: str) -> None:
    rows = (50 * np.random.default_rng(count).normal(size=(count, 200))).astype(dtype)
    for cut in {0, min(1, half(count)), min(count // 10, half(count)), half(count)}:
        before = rows.copy()
        np.testing.assert_allclose(trimmed_mean(list(rows), cut), expected(rows, cut), rtol=1e-12, atol=1e-12)
        np.testing.assert_array_equal(rows, before)


@settings(deadline=None)
@given(
    st.integers(1, 9).flatmap(
        lambda n: arrays(np.float64, (n, 3), elements=st.floats(allow_nan=False, allow_infinity=False))
    )
)
def test_it_stays_between_the_values_that_are_left(rows: Array) -> None:
    """Also where their sum is beyond float64."""
    cut = half(len(rows))
    left = np.sort(rows, axis=0)[cut : len(rows) - cut]
    found = trimmed_mean(list(rows), cut)
    assert (left[0] <= found).all()
    assert (found <= left[-1]).all()


@pytest.mark.parametrize("count", [2, 3, 10, 31, MAX_ROWS + 1])
def test_the_order_of_the_rows_changes_no_bit(count: int) -> None:
    chance = np.random.default_rng(count)
    rows = chance.normal(size=(count, 500)).astype(np.float32)
    for cut in (0, half(count)):
        first = trimmed_mean(list(rows), cut)
        assert trimmed_mean(list(chance.permutation(rows)), cut).tobytes() == first.tobytes()
