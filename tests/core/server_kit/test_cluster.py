"""Adaptive density clustering, on curves whose elbow was seen in the authors' runs (kneed 0.9.0)."""

import numpy as np
import pytest

from shoal.core.server_kit.clustering.cluster import (
    adaptive_dbscan,
    centroids,
    elbow,
    kmeans,
    with_singletons,
)

PX5 = [0.378, 0.378, 0.386, 0.408, 0.434, 0.434, 0.438, 0.448, 1.033, 2.691]
PYX4 = [0.592, 0.592, 0.662, 0.662, 0.671, 0.671, 0.749, 0.807, 0.809, 1.814]


@pytest.mark.parametrize(
    ("curve", "expected"),
    [
        (PX5, 0.448),
        (PYX4, 0.809),
        ([1.0] * 9 + [5.0], 1.0),
        ([0.1] + [1.0] * 9, 1.0),
        ([1.0] * 5 + [2.0] * 5, 2.0),
    ],
)
def test_elbow_of_recorded_curves(curve: list[float], expected: float) -> None:
    assert elbow(np.array(curve)) == expected


def test_without_a_knee_alike_points_are_one_cluster_and_unlike_ones_split_at_the_widest_gap() -> None:
    assert elbow(np.ones(10)) == 1.0
    assert elbow(np.linspace(1.0, 1.07, 8)) == 1.07
    assert elbow(np.array([1.0, 1.0, 5.0])) == 3.0


def test_two_groups_and_a_stranger() -> None:
    points = np.array([[0.0], [0.1], [0.2], [5.0], [5.1], [99.0]])
    labels = adaptive_dbscan(points)
    assert labels[:3].tolist() == [labels[0]] * 3
    assert labels[3:5].tolist() == [labels[3]] * 2
    assert len(set(labels.tolist())) == 3


@pytest.mark.parametrize("count", [0, 1])
def test_nobody_and_one_alone(count: int) -> None:
    assert adaptive_dbscan(np.zeros((count, 4))).tolist() == [0] * count


def test_identical_points_are_one_cluster() -> None:
    assert adaptive_dbscan(np.ones((5, 3))).tolist() == [0] * 5


def test_a_scaling_below_one_leaves_the_elbow_itself_outside() -> None:
    points = np.cumsum([0.0, 1.0, 1.0, 1.0, 9.0, 1.0])[:, None]
    assert len(set(adaptive_dbscan(points).tolist())) == 2
    assert len(set(adaptive_dbscan(points, 0.95).tolist())) == 6


def test_noise_points_get_clusters_after_the_others() -> None:
    assert with_singletons(np.array([-1, 0, 1, 0, -1])).tolist() == [2, 0, 1, 0, 3]
    assert with_singletons(np.array([-1, -1])).tolist() == [0, 1]


def test_kmeans_takes_no_more_clusters_than_there_are_points() -> None:
    assert kmeans(np.array([[0.0], [0.0], [9.0]]), 5).tolist() in ([0, 0, 1], [1, 1, 0])


def test_centroids_are_means() -> None:
    found = centroids(np.array([[0.0, 0.0], [2.0, 4.0], [9.0, 9.0]]), np.array([0, 0, 1]))
    assert found.tolist() == [[1.0, 2.0], [9.0, 9.0]]
