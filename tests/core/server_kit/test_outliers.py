"""Clusters that one hostile update does not decide."""

import numpy as np
import pytest

from shoal.core.exchange.parts import FloatArray
from shoal.core.server_kit.clustering import distances
from shoal.core.server_kit.clustering.cluster import Labels, kmeans
from shoal.core.server_kit.clustering.outliers import outliers, without_outliers

EAST, NORTH = [1.0, 0.05, 0.0], [0.1, 1.0, 0.0]
HONEST = np.array([EAST, NORTH, EAST, NORTH, EAST, NORTH]) + np.linspace(0.0, 0.05, 18).reshape(6, 3)


def products(*others: list[float]) -> FloatArray:
    """The inner products of six honest updates of two groups, and of others."""
    updates = np.vstack([HONEST, *([each] for each in others)])
    return np.asarray(updates @ updates.T)


def halves(some: FloatArray, indices: Labels) -> Labels:
    assert len(some) == len(indices)
    return kmeans(distances.points(some), 2)


@pytest.mark.parametrize(
    "lie", [[-1.0, -0.2, 0.0], [-9.0, 0.0, 0.0], [100.0, 5.0, 0.0], [0.0, 0.0, 3.0], [-0.7, -0.7, 0.1]]
)
def test_a_device_that_stands_out_gets_no_cluster(lie: list[float]) -> None:
    found = products(lie)
    assert outliers(found).tolist() == [6]
    labels = without_outliers(found, halves, "clipped")
    assert labels[:6].tolist() == [0, 1, 0, 1, 0, 1]
    assert labels[6] in (0, 1)


def test_without_it_the_honest_would_share_one_cluster() -> None:
    """So the test above can fail: with rule "mean" the algorithm clusters as published."""
    labels = without_outliers(products([-9.0, 0.0, 0.0]), halves, "mean")
    assert len(set(labels[:6])) == 1
    assert labels[6] != labels[0]


def test_who_was_set_aside_joins_those_it_resembles() -> None:
    assert without_outliers(products([100.0, 5.0, 0.0]), halves, "clipped")[6] == 0
    assert without_outliers(products([5.0, 100.0, 0.0]), halves, "clipped")[6] == 1


def test_an_honest_device_with_data_of_its_own_keeps_its_cluster() -> None:
    found = products([0.1, 0.1, 1.0])
    assert not len(outliers(found))
    labels = without_outliers(found, lambda some, _: kmeans(distances.points(some), 3), "clipped")
    assert sorted(np.bincount(labels)) == [1, 3, 3]


def test_two_that_stand_out_together_are_a_group() -> None:
    found = products([-5.0, 0.0, 0.0], [-5.0, 0.1, 0.0])
    assert not len(outliers(found))
    assert sorted(np.bincount(without_outliers(found, halves, "clipped"))) == [2, 6]


def test_no_more_than_one_of_four_is_set_aside() -> None:
    found = products([-5.0, 0.0, 0.0], [0.0, -5.0, 0.0], [0.0, 0.0, 5.0])
    assert len(outliers(found)) == 2
    three = np.array([[1.0, 0.0], [1.0, 0.1], [-9.0, 0.0]])
    assert not len(outliers(three @ three.T)), "two do not show what is usual"


def test_updates_that_are_all_zero_are_one_cluster() -> None:
    nothing = np.zeros((5, 5))
    assert not len(outliers(nothing))
    assert (
        without_outliers(nothing, lambda some, _: np.zeros(len(some), np.int64), "clipped").tolist()
        == [0] * 5
    )
