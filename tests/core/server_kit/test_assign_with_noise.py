"""Distances and placement with known noise, on points one can check by hand and on seeded noise."""

import numpy as np
import pytest

from shoal.core.server_kit.clustering import assign
from shoal.core.server_kit.clustering.assign import (
    SURE,
    filled,
    nearest_noisy,
    noisy_centroids,
    noisy_squared_distance,
    trust,
)

NAMES = ["a", "b", "c"]
CENTRES = np.array([[0.0, 0.0], [10.0, 0.0], [0.0, 4.0]])
NOTHING = np.zeros((3, 2))


def test_what_noise_adds_to_a_distance_is_taken_off() -> None:
    chance = np.random.default_rng(0)
    one, other, noise = np.array([1.0, 2.0, 3.0]), np.array([1.0, 0.0, 3.5]), np.array([0.5, 2.0, 8.0])
    weights = np.array([1.0, 0.5, 0.25])
    found = [
        noisy_squared_distance(one + chance.normal(size=3) * np.sqrt(noise), other, noise, weights)
        for _ in range(20_000)
    ]
    assert np.mean(found) == pytest.approx(0.5 * 4 + 0.25 * 0.25, abs=5 * np.std(found) / 20_000**0.5)


def test_unknown_coordinates_make_no_difference() -> None:
    one, noise = np.array([1.0, np.nan]), np.array([0.25, np.inf])
    assert noisy_squared_distance(one, np.array([3.0, 7.0]), noise, np.array([1.0, 0.0])) == 3.75


def test_a_coordinate_is_trusted_as_its_signal_stands_to_its_noise() -> None:
    spread = CENTRES.var(axis=0)
    assert trust(np.zeros(2), CENTRES, NOTHING).tolist() == [1.0, 1.0]
    np.testing.assert_allclose(trust(np.array([spread[0], 3 * spread[1]]), CENTRES, NOTHING), [0.5, 0.25])
    assert trust(np.array([np.inf, 0.0]), CENTRES, NOTHING).tolist() == [0.0, 1.0]
    lacking = np.array([[0.0, 0.0], [0.0, np.inf], [0.0, 0.0]])
    assert trust(np.zeros(2), CENTRES, lacking)[1] == 0.0


def test_centroids_that_differ_by_their_own_noise_alone_tell_nothing() -> None:
    alike = np.array([[1.0], [-1.0]])
    assert trust(np.array([0.1]), alike, np.full((2, 1), 1.0)).tolist() == [0.0]


@pytest.mark.parametrize("point", [[1.0, 1.0], [6.0, 0.0], [0.0, 3.0]])
def test_without_noise_it_answers_as_the_plain_one(point: list[float]) -> None:
    found = nearest_noisy(np.array(point), np.zeros(2), CENTRES, NOTHING, NAMES)
    plain = assign.nearest(np.array(point), CENTRES, NAMES)
    assert (found.cluster, found.runner_up, found.abstained) == (plain.cluster, plain.runner_up, False)
    assert found.distance == pytest.approx(plain.distance)
    assert found.confidence == pytest.approx(plain.confidence)


def test_it_abstains_where_noise_may_have_decided() -> None:
    """Centroids 10 apart, the point 1 nearer to the first: noise of 1 / 2 / SURE on it is just too much."""
    centres, names = CENTRES[:2], NAMES[:2]
    for noise, abstains in ((0.95, False), (1.05, True)):
        point_noise = np.array([(noise * 0.5 / SURE) ** 2, 0.0])
        found = nearest_noisy(np.array([4.5, 0.0]), point_noise, centres, NOTHING[:2], names)
        assert (found.cluster, found.abstained) == ("a", abstains)
        assert ("noise may have decided" in found.reason) == abstains


def test_noise_alone_places_wrongly_in_no_more_than_one_case_in_twenty() -> None:
    chance = np.random.default_rng(1)
    wrong = 0
    for _ in range(4000):
        point = np.array([4.9, 0.0]) + chance.normal(size=2) * 0.5
        found = nearest_noisy(point, np.full(2, 0.25), CENTRES[:2], NOTHING[:2], NAMES[:2])
        wrong += found.cluster == "b" and not found.abstained
    assert wrong / 4000 < 0.05


def test_it_abstains_where_nothing_is_known() -> None:
    found = nearest_noisy(np.array([1.0, 1.0]), np.full(2, np.inf), CENTRES, NOTHING, NAMES)
    assert found.abstained


def test_one_cluster_is_never_in_doubt() -> None:
    found = nearest_noisy(np.array([3.0, 4.0]), np.zeros(2), CENTRES[:1], NOTHING[:1], NAMES[:1])
    assert (found.distance, found.abstained) == (5.0, False)


def test_distance_counts_where_centroids_do_not_differ() -> None:
    found = nearest_noisy(
        np.array([1.0, 0.0, 7.0]), np.full(3, 1e-9), np.eye(3)[:2], np.zeros((2, 3)), NAMES[:2]
    )
    assert found.distance == pytest.approx(7.0)


def test_a_centroid_is_the_mean_of_those_who_know() -> None:
    points = np.array([[1.0, 5.0], [3.0, np.nan], [7.0, np.nan]])
    noise = np.array([[0.4, 0.1], [0.8, np.inf], [0.2, np.inf]])
    means, variances = noisy_centroids(points, noise, np.array([0, 0, 1]))
    np.testing.assert_allclose(means, [[2.0, 5.0], [7.0, np.nan]])
    np.testing.assert_allclose(variances, [[0.3, 0.1], [0.2, np.inf]])


def test_gaps_are_filled_so_that_they_make_no_difference() -> None:
    points = np.array([[1.0, np.nan, np.nan], [3.0, 4.0, np.nan]])
    assert filled(points).tolist() == [[1.0, 4.0, 0.0], [3.0, 4.0, 0.0]]
    instead = np.array([[9.0, 8.0, np.nan], [9.0, 9.0, 7.0]])
    assert filled(points, instead).tolist() == [[1.0, 8.0, 0.0], [3.0, 4.0, 7.0]]
