"""Assignment by nearest centroid, reach, and soft mixing weights, on points one can check by hand."""

import numpy as np
import pytest

from shoal.core.exchange.parts import FloatArray
from shoal.core.server_kit.clustering.assign import divergence, euclidean, mixing_weights, nearest, radii

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


def reach_of(points: FloatArray, labels: list[int], centroids: FloatArray) -> FloatArray:
    return radii(euclidean(points, centroids), np.array(labels), euclidean(centroids, centroids))


def test_reach_is_the_farthest_member_or_half_the_gap() -> None:
    points = np.array([[0.0, 3.0], [0.0, -3.0], [10.0, 0.0], [0.0, 4.0]])
    np.testing.assert_allclose(reach_of(points, [0, 0, 1, 2], CENTROIDS), [3.0, 5.0, 2.0])


def test_reach_of_one_cluster_alone_needs_three_points_to_go_by() -> None:
    points = np.array([[0.0, 3.0], [0.0, -3.0], [0.0, 1.0]])
    assert reach_of(points, [0, 0, 0], CENTROIDS[:1]).tolist() == [3.0]
    assert reach_of(points[:2], [0, 0], CENTROIDS[:1]).tolist() == [np.inf]


def moments(samples: FloatArray) -> FloatArray:
    return np.concatenate([samples.mean(axis=0), samples.std(axis=0)])


def test_divergence_is_the_likelihood_ratio_of_as_many_samples_on_both_sides() -> None:
    device, cluster, many = np.array([[0.0, 1.0]]), np.array([[2.0, 3.0]]), np.array([np.inf])
    pooled = (1.0 + 9.0) / 2.0 + 4.0 / 4.0
    expected = 2 * np.log(pooled) - np.log(1.0) - np.log(9.0)
    assert divergence(device, many, cluster)[0, 0] ** 2 == pytest.approx(expected)
    assert divergence(cluster, many, device)[0, 0] ** 2 == pytest.approx(expected)
    assert divergence(device, many, device) == 0.0


def test_divergence_by_chance_is_within_what_it_promises() -> None:
    chance = np.random.default_rng(0)
    scales = np.array([0.01, 1.0, 100.0])
    cluster = np.concatenate([np.zeros(3), scales])[None]
    for samples in (1, 2, 10, 300):
        drawn = np.stack([moments(chance.normal(size=(samples, 3)) * scales) for _ in range(400)])
        squared = divergence(drawn, np.full(400, float(samples)), cluster)[:, 0] ** 2
        assert 0.01 < (squared * samples).mean() < 6.0  # chi-square of 2 l = 6 degrees of freedom


def test_divergence_sees_where_samples_spread_and_distance_does_not() -> None:
    spread = np.array([10.0, 0.1])  # the first coordinate says nothing, the second nearly all
    clusters = np.stack([np.array([0.0, 0.0, *spread]), np.array([0.0, 1.0, *spread])])
    chance = np.random.default_rng(1)
    drawn = np.stack([moments(chance.normal(size=(8, 2)) * spread + [0.0, 1.0]) for _ in range(50)])
    assert (divergence(drawn, np.full(50, 8.0), clusters).argmin(axis=1) == 1).all()
    assert np.isfinite(divergence(np.full((1, 4), 1e300), np.ones(1), clusters)).all()
    dead = np.array([[0.0, 0.0, 0.0, 0.1]])
    assert np.isfinite(divergence(dead, np.array([np.inf]), dead)).all()


def test_mixing_weights_sum_to_one_leave_out_the_far_and_keep_the_nearest() -> None:
    weights = mixing_weights(np.array([[0.0, 0.0], [5.0, 0.0], [0.0, 2.0]]), CENTROIDS)
    np.testing.assert_allclose(weights.sum(axis=1), 1.0)
    assert weights[0].tolist() == [1.0, 0.0, 0.0]
    np.testing.assert_allclose(weights[1][:2], [0.5, 0.5], atol=0.2)
    np.testing.assert_allclose(weights[2], [0.5, 0.0, 0.5])
