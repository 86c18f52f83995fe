"""Sensitivity is attained and never exceeded, whatever a sample looks like; sums depend on nothing else."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.core.exchange.parts import FloatArray, Integers
from shoal.core.privacy.sums import GRID, REPLACED, SHARES, sample_vectors, sums_of, weights

DIMS, CLASSES = 3, 4

anything = st.floats(allow_nan=True, allow_infinity=True) | st.sampled_from(
    [0.0, -0.0, 5e-324, 1e-200, 1e154, 1e308, -1e308]
)
radii = st.floats(1e-6, 1e6)


def values(latents: FloatArray, labels: list[int] | None, radius: float = 1.0, classes: int = 0) -> Integers:
    batch = (latents, None if labels is None else np.array(labels, np.int64))
    return sums_of([batch], radius, latents.shape[1], classes).values


def length_of(moved: Integers) -> int:
    """Squared L2 norm, in whole numbers: 2^40 is one unit of sensitivity."""
    return sum(int(value) ** 2 for value in moved.ravel())


@given(st.lists(anything, min_size=DIMS, max_size=DIMS), radii, st.integers(-3, CLASSES + 3), st.booleans())
def test_no_sample_moves_the_sums_by_more_than_one(
    sample: list[float], radius: float, label: int, single: bool
) -> None:
    with np.errstate(over="ignore"):
        latents = np.array([sample], np.float32 if single else np.float64)
    assert length_of(values(latents, [label], radius, CLASSES)) <= GRID**2
    assert length_of(values(latents, None, radius)) <= GRID**2


@given(st.integers(1, 1024), st.integers(0, 1 << 32), st.sampled_from([1e-30, 0.1, 1.0, 30.0, 1e30]), radii)
def test_no_sample_of_many_dimensions_does(dims: int, seed: int, size: float, radius: float) -> None:
    latents = np.random.default_rng(seed).normal(size=(1, dims)) * size * radius
    assert length_of(values(latents, [0], radius, 1)) <= GRID**2


@pytest.mark.parametrize("classes", [0, CLASSES])
@pytest.mark.parametrize("radius", [1e-3, 1.0, 7.0])
@pytest.mark.parametrize("axis", range(DIMS))
def test_the_bound_is_attained_on_the_edge_of_the_ball(classes: int, radius: float, axis: int) -> None:
    latents = np.zeros((1, DIMS))
    latents[0, axis] = -radius
    moved = length_of(values(latents, [0] if classes else None, radius, classes))
    assert (1 - 1e-5) * GRID**2 < moved <= GRID**2


def test_shares_and_weights_are_normalised() -> None:
    assert np.linalg.norm(SHARES) == pytest.approx(1.0, rel=1e-15)
    assert pytest.approx([0.80, 0.50, 0.33], abs=1e-3) == SHARES
    assert sum(weight**2 for weight in weights(3)) == pytest.approx(1.0, rel=1e-15)
    assert weights(0) == (1.0, 0.0)


def test_sums_of_two_samples_by_hand() -> None:
    found = values(np.array([[0.5, 0.0], [0.0, -6.0]]), [1, 0], radius=1.0, classes=2) / GRID
    a, b, c = SHARES * np.sqrt(0.5)
    first, second = [a / 2, 0, b / 4, 0, c], [0, -a, 0, b, c]
    expected = [np.add(first, second), second, first]
    np.testing.assert_allclose(found, expected, atol=2 / GRID)


def test_values_are_cut_off_towards_zero() -> None:
    a, _, _ = SHARES
    up, down = (values(np.array([[x]]), None)[0, 0] for x in (0.3, -0.3))
    assert up == -down == int(a * 0.3 * GRID)


@pytest.mark.parametrize("odd", [np.nan, np.inf, -np.inf])
def test_a_sample_that_is_not_finite_counts_as_an_empty_place(odd: float) -> None:
    good = np.array([[0.1, 0.2, 0.3]])
    both = np.array([[0.1, 0.2, 0.3], [0.0, odd, 0.0]])
    assert np.array_equal(values(both, [1, 1], 1.0, CLASSES), values(good, [1], 1.0, CLASSES))


@pytest.mark.parametrize("label", [-1, CLASSES, 1 << 40])
def test_a_sample_of_an_unknown_class_counts_as_an_empty_place(label: int) -> None:
    good, both = np.ones((1, DIMS)), np.ones((2, DIMS))
    assert np.array_equal(values(both, [1, label], 1.0, CLASSES), values(good, [1], 1.0, CLASSES))


def test_class_rows_add_up_to_the_row_of_all_samples() -> None:
    chance = np.random.default_rng(0)
    found = values(chance.normal(size=(50, DIMS)), list(chance.integers(0, CLASSES, 50)), 2.0, CLASSES)
    assert np.array_equal(found[0], found[1:].sum(axis=0))


@given(st.integers(0, 1 << 32), st.lists(st.integers(1, 60), max_size=6), st.booleans())
def test_order_batches_and_memory_layout_change_nothing(seed: int, sizes: list[int], fortran: bool) -> None:
    chance = np.random.default_rng(seed)
    latents, labels = chance.normal(size=(120, 10)), chance.integers(0, CLASSES, 120)
    once = sums_of([(latents, labels)], 2.0, 10, CLASSES).values
    order = chance.permutation(120)
    mixed = np.asfortranarray(latents[order]) if fortran else latents[order]
    cuts = np.cumsum(sizes)
    batches = zip(np.split(mixed, cuts), np.split(labels[order], cuts), strict=True)
    assert np.array_equal(sums_of(batches, 2.0, 10, CLASSES).values, once)


def test_many_samples_are_worked_off_in_parts() -> None:
    latents = np.random.default_rng(1).normal(size=(10_000, 2))
    halves = [(latents[:3000], None), (latents[3000:], None)]
    assert np.array_equal(sums_of(halves, 1.0, 2, 0).values, values(latents, None))


def test_nothing_sums_to_nothing() -> None:
    assert not values(np.zeros((0, DIMS)), [], 1.0, CLASSES).any()


def test_a_sample_that_is_replaced_moves_the_vector_by_at_most_twice_its_first_share() -> None:
    """Random pairs, pairs that an optimizer would find, and the one that attains it."""
    chance = np.random.default_rng(0)
    worst = 0.0
    for dims in (1, 2, 3, 10):
        one, other = (chance.normal(size=(4000, dims)) * chance.exponential(size=(4000, 1)) for _ in range(2))
        near = -one + 0.1 * chance.normal(size=one.shape)
        for another in (other, near, -one):
            moved = np.linalg.norm(sample_vectors(one, 1.0) - sample_vectors(another, 1.0), axis=1)
            worst = max(worst, float(moved.max()))
    assert worst <= REPLACED + 1e-12
    axis = np.array([[1.0, 0.0]])
    assert np.linalg.norm(sample_vectors(axis, 1.0) - sample_vectors(-axis, 1.0)) == pytest.approx(REPLACED)
    assert SHARES[0] ** 2 >= 2 * SHARES[1] ** 2  # the proof takes this
    assert 4 * SHARES[0] ** 2 / 2 + 1.0 < REPLACED**2  # and samples of two classes move it by less
