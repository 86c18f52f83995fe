"""Assignment by nearest centroid, reach, and soft mixing weights, on points one can check by hand."""

import numpy as np
import pytest

from fedcore.central.assign import mixing_weights, nearest, reach

CENTROIDS = np.array([[0.0, 0.0], [10.0, 0.0], [0.0, 4.0]])
NAMES = ["a", "b", "c"]


def test_nearest_with_runner_up_and_confidence() -> None:
    answer = nearest(np.array([0.0, 1.0]), CENTROIDS, NAMES)
    assert (answer.cluster, answer.runner_up) == ("a", "c")
    assert (answer.distance, answer.runner_up_distance) == (1.0, 3.0)
    assert answer.confidence == pytest.approx(2 / 3)


def test_half_way_between_two_there_is_no_confidence() -> None:
    assert nearest(np.array([0.0, 2.0]), CENTROIDS, NAMES).confidence == 0.0
    assert nearest(np.zeros(2), np.zeros((2, 2)), ["a", "b"]).confidence == 0.0


def test_one_cluster_is_sure_and_has_no_runner_up() -> None:
    answer = nearest(np.array([3.0, 4.0]), CENTROIDS[:1], ["a"])
    assert (answer.cluster, answer.distance, answer.confidence, answer.runner_up) == ("a", 5.0, 1.0, "")


def test_reach_is_the_farthest_member_or_half_the_gap() -> None:
    points = np.array([[0.0, 3.0], [0.0, -3.0], [10.0, 0.0], [0.0, 4.0]])
    found = reach(points, np.array([0, 0, 1, 2]), CENTROIDS)
    np.testing.assert_allclose(found, [3.0, 5.0, 2.0])


def test_reach_of_one_cluster_alone_needs_three_points_to_go_by() -> None:
    points = np.array([[0.0, 3.0], [0.0, -3.0], [0.0, 1.0]])
    assert reach(points, np.array([0, 0, 0]), CENTROIDS[:1]).tolist() == [3.0]
    assert reach(points[:2], np.array([0, 0]), CENTROIDS[:1]).tolist() == [np.inf]


def test_mixing_weights_sum_to_one_leave_out_the_far_and_keep_the_nearest() -> None:
    weights = mixing_weights(np.array([[0.0, 0.0], [5.0, 0.0], [0.0, 2.0]]), CENTROIDS)
    np.testing.assert_allclose(weights.sum(axis=1), 1.0)
    assert weights[0].tolist() == [1.0, 0.0, 0.0]
    np.testing.assert_allclose(weights[1][:2], [0.5, 0.5], atol=0.2)
    np.testing.assert_allclose(weights[2], [0.5, 0.0, 0.5])
