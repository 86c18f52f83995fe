"""Descriptors as vectors: the authors' layout, the scaling by block, and what an absent class becomes."""

import numpy as np
import pytest
from sklearn.preprocessing import MinMaxScaler

from shoal.core.exchange.parts import Descriptor, Moments
from shoal.core.server_kit.descriptors import BlockScaler, vector


def descriptor(means: list[list[float]], counts: list[float]) -> Descriptor:
    array = np.array(means, float)
    return Descriptor(Moments(array, array + 100.0, np.array(counts, float)), "0" * 64)


def test_layout_is_all_means_then_all_deviations_with_the_label_free_part_first() -> None:
    found = vector(descriptor([[1, 2], [3, 4], [5, 6]], [9, 4, 5]))
    assert found.tolist() == [1, 2, 101, 102, 3, 4, 5, 6, 103, 104, 105, 106]


def test_a_class_with_fewer_than_two_samples_has_no_moments() -> None:
    found = vector(descriptor([[1, 2], [3, 4], [5, 6]], [6, 1, 5]))
    assert np.isnan(found[4:6]).all()
    assert np.isnan(found[8:10]).all()
    assert np.isfinite(found[[0, 1, 2, 3, 6, 7, 10, 11]]).all()


def test_a_label_free_descriptor_keeps_its_only_row_however_few_samples() -> None:
    assert vector(descriptor([[1, 2]], [1])).tolist() == [1, 2, 101, 102]


def test_scaling_is_that_of_scikit_learn_block_by_block() -> None:
    chance = np.random.default_rng(0)
    vectors = [chance.normal(size=24) for _ in range(7)]
    scaler = BlockScaler.fit(vectors, 4)
    blocks = np.stack(vectors).reshape(7, 6, 4)
    for index, one in enumerate(vectors):
        scaled = scaler.transform(one).reshape(6, 4)
        for block in range(6):
            reference = MinMaxScaler().fit(blocks[:, block].reshape(-1, 1))
            expected = reference.transform(blocks[index, block].reshape(-1, 1)).ravel()
            np.testing.assert_allclose(scaled[block], expected, atol=1e-12)


@pytest.mark.parametrize(("as_published", "low", "expected"), [(True, -1.0, 0.0), (False, 0.0, 0.0)])
def test_an_absent_class_is_a_place_of_its_own(as_published: bool, low: float, expected: float) -> None:
    present, missing = np.array([2.0, 4.0]), np.array([np.nan, np.nan])
    scaler = BlockScaler.fit([present, missing], 2, as_published)
    assert scaler.low[0] == low
    assert scaler.transform(missing).tolist() == [expected, expected]
    assert (scaler.transform(present) > 0.0).all()


def test_minus_one_may_lie_among_real_means_and_what_is_beyond_all_never_does() -> None:
    vectors = [np.array([-3.0, 1.0]), np.array([np.nan, np.nan])]
    assert BlockScaler.fit(vectors, 2, as_published=True).transform(vectors[1])[0] == 0.5
    assert BlockScaler.fit(vectors, 2).transform(vectors[1])[0] == 0.0


def test_a_block_without_spread_does_not_divide_by_zero() -> None:
    scaler = BlockScaler.fit([np.array([5.0, 5.0])], 2)
    assert scaler.transform(np.array([5.0, 5.0])).tolist() == [0.0, 0.0]


def test_a_class_that_nobody_has_is_the_same_for_all() -> None:
    missing = np.array([np.nan, np.nan])
    scaler = BlockScaler.fit([missing, missing], 2)
    assert np.isfinite(scaler.transform(missing)).all()
    assert np.isfinite(scaler.transform(np.array([1.0, 2.0]))).all()


def test_the_label_free_part_is_scaled_like_the_full_vector() -> None:
    vectors = [np.arange(12.0), np.arange(12.0) * 2]
    scaler = BlockScaler.fit(vectors, 3)
    assert scaler.transform(vectors[1][:6]).tolist() == scaler.transform(vectors[1])[:6].tolist()
