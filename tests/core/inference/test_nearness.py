"""In which cluster's data samples lie, how much that proves, and what it proves of a stranger."""

import numpy as np
import pytest
from scipy.stats import norm

from shoal.core.inference.nearness import COARSE, MAX_SAMPLES, RANK, STRANGE, nearness
from shoal.core.types import Tensors

CHANCE = np.random.default_rng(11)
DIMS = 5
CENTERS = CHANCE.normal(size=(3, 2, DIMS)) * 2.0
CLUSTERS: Tensors = {
    "shares": np.array([[0.5, 0.5], [0.25, 0.75], [1.0, 0.0]]),
    "means": CENTERS,
    "variances": np.full((3, 2, DIMS), 0.5),
}


def samples(cluster: int, count: int, scale: float = 1.0) -> np.ndarray:
    rows = CHANCE.choice(2, count, p=CLUSTERS["shares"][cluster])
    return CENTERS[cluster, rows] + scale * np.sqrt(0.5) * CHANCE.normal(size=(count, DIMS))


def test_the_likelihood_is_that_of_the_mixture() -> None:
    points = samples(1, 7)
    found = nearness(points, CLUSTERS, 20.0)
    by_hand = []
    for shares, means in zip(CLUSTERS["shares"], CENTERS, strict=True):
        each = norm.pdf(points[:, None], means, np.sqrt(0.5)).prod(axis=2) @ shares
        by_hand.append(np.log(each).mean())
    assert found.likelihood == pytest.approx(np.array(by_hand) - max(by_hand))
    worth = 7 / (1 + 7 * (1 / (20 * COARSE) + found.spread - 1.0))
    assert found.logarithms == pytest.approx(found.likelihood * RANK * worth)


def test_the_spread_has_what_moves_all_samples_of_a_class_beyond_chance() -> None:
    """Of one class with unit variances, the mean of n samples has the variance 1 / n by chance."""
    clusters: Tensors = {
        "shares": np.array([[1.0], [1.0]]),
        "means": np.array([[np.zeros(DIMS)], [np.full(DIMS, 9.0)]]),
        "variances": np.ones((2, 1, DIMS)),
    }
    points = 0.5 * CHANCE.normal(size=(30, DIMS))
    points -= points.mean(axis=0)
    assert nearness(points, clusters, 5.0).spread == 1.0
    aside = np.linspace(0.5, 0.9, DIMS)
    expected = 1.0 + (aside**2).mean() - 1 / 30
    assert nearness(points + aside, clusters, 5.0).spread == pytest.approx(expected)


@pytest.mark.parametrize("cluster", range(3))
@pytest.mark.parametrize("count", [5, 40, 5000])
def test_samples_of_a_cluster_are_found_there_and_are_as_usual(cluster: int, count: int) -> None:
    several = [nearness(samples(cluster, count), CLUSTERS, 20.0) for _ in range(11)]
    assert {int(found.logarithms.argmax()) for found in several} == {cluster}
    assert {float(found.logarithms.max()) for found in several} == {0.0}
    assert np.median([found.spread for found in several]) < 1.2


def test_many_samples_prove_no_more_than_some() -> None:
    points = samples(0, 4 * MAX_SAMPLES)
    few, many = nearness(points[:100], CLUSTERS, 20.0), nearness(points, CLUSTERS, 20.0)
    assert many.logarithms.min() > 4.0 * few.logarithms.min()


def test_clusters_of_few_devices_prove_less() -> None:
    points = samples(0, 40)
    one, many, more = (nearness(points, CLUSTERS, devices) for devices in (1.0, 20.0, 1e6))
    common = many.spread - 1.0
    assert one.logarithms.min() == pytest.approx(
        many.logarithms.min() * (1 + 40 * (1 / (20 * COARSE) + common)) / (1 + 40 * (1 / COARSE + common))
    )
    assert more.logarithms.tolist() == many.logarithms.tolist()


def test_what_is_strange_about_samples_is_common_to_all_of_them() -> None:
    """A stranger's samples prove less, however many there are, so that the models decide."""
    usual, wide, aside = (
        nearness(samples(0, 400), CLUSTERS, 20.0),
        nearness(samples(0, 400, scale=2.0), CLUSTERS, 20.0),
        nearness(samples(0, 400) + 0.6, CLUSTERS, 20.0),
    )
    assert usual.spread < 1.1
    assert wide.spread >= 2.0
    assert aside.spread >= STRANGE
    for strange in (wide, aside):
        assert np.sort(strange.logarithms)[1] > np.sort(usual.logarithms)[1] / 20.0


def test_samples_without_numbers_are_left_out() -> None:
    points = samples(2, 20)
    broken = np.concatenate([points, np.full((3, DIMS), np.nan), np.full((1, DIMS), np.inf)])
    assert nearness(broken, CLUSTERS, 20.0).logarithms == pytest.approx(
        nearness(points, CLUSTERS, 20.0).logarithms
    )
    nothing = nearness(broken[20:], CLUSTERS, 20.0)
    assert nothing.logarithms.tolist() == [0.0, 0.0, 0.0]
    assert nothing.spread == 1.0


def test_no_distance_is_too_large() -> None:
    far = nearness(np.full((4, DIMS), 1e300), {**CLUSTERS, "means": CENTERS * 1e200}, 20.0)
    assert np.isfinite(far.logarithms).all()
    assert far.spread > 1.5
