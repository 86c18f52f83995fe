"""Latent bounds merged, and the projector made from them."""

import numpy as np
import pytest
from sklearn.decomposition import PCA

from shoal.core.exchange.parts import FloatArray, LatentBounds
from shoal.core.exchange.tensors import digest
from shoal.core.server_kit.frozen_encoder import MARGIN, make_projector, merge_bounds, public_projector


def bounds(low: list[float], high: list[float]) -> LatentBounds:
    return LatentBounds(np.array(low, float), np.array(high, float))


def test_bounds_merge_coordinate_by_coordinate_in_any_order() -> None:
    parts = [bounds([0, -2], [1, 5]), bounds([-1, 0], [2, 3]), bounds([0, 0], [0, 0])]
    for order in (parts, parts[::-1]):
        merged = merge_bounds(order)
        assert merged.low.tolist() == [-1 * MARGIN, -2 * MARGIN]
        assert merged.high.tolist() == [2 * MARGIN, 5 * MARGIN]


def test_the_margin_widens_and_leaves_zero_alone() -> None:
    merged = merge_bounds([bounds([0, -1], [10, 1])])
    assert merged.low.tolist() == [0.0, -1.02]
    np.testing.assert_allclose(merged.high, [10.2, 1.02])


def test_the_projector_is_the_authors_pca() -> None:
    chance = np.random.RandomState(1)
    points = chance.uniform(0, 7.5, (200, 40))
    expected = PCA(n_components=10, svd_solver="full").fit(points)
    found = make_projector(bounds([0], [7.5]), 40, 10)
    np.testing.assert_array_equal(found["components"], expected.components_)
    np.testing.assert_array_equal(found["mean"], expected.mean_)


def test_above_500_latents_auto_goes_on_with_the_same_generator() -> None:
    np.random.seed(1)
    points = np.random.uniform(0, 2.0, (200, 576))
    expected = PCA(n_components=10).fit(points)
    found = make_projector(bounds([0], [2.0]), 576, 10, "auto")
    np.testing.assert_allclose(found["components"], expected.components_, atol=1e-12)
    assert not np.allclose(make_projector(bounds([0], [2.0]), 576, 10)["components"], found["components"])


def test_the_scale_of_scalar_bounds_changes_nothing_but_the_mean() -> None:
    small, large = make_projector(bounds([0], [2.0]), 30, 5), make_projector(bounds([0], [22.4]), 30, 5)
    np.testing.assert_allclose(small["components"], large["components"], atol=1e-10)
    np.testing.assert_allclose(small["mean"] * 11.2, large["mean"])


def test_a_latent_that_never_moves_gets_no_weight_with_coordinate_bounds() -> None:
    found = make_projector(bounds([0, 0, 0, 0], [5, 0, 5, 5]), 4, 3)
    np.testing.assert_allclose(found["components"][:, 1], 0.0, atol=1e-12)


def test_few_latents_give_few_dimensions() -> None:
    assert make_projector(bounds([0], [1]), 4, 10)["components"].shape == (4, 4)


# -- for the calibrated modes ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("latents", "dims", "directions"), [(84, 10, 8), (5, 10, 5), (512, 20, 18), (4, 2, 1), (1, 1, 1)]
)
def test_a_public_projector_is_orthonormal_and_the_same_every_time(
    latents: int, dims: int, directions: int
) -> None:
    first, second = public_projector(latents, dims), public_projector(latents, dims)
    rows = first["components"]
    assert rows.shape == (directions + 2, latents + 2)
    of_directions, of_length = rows[:directions], rows[directions:]
    np.testing.assert_allclose(of_directions @ of_directions.T, np.eye(directions), atol=1e-12)
    assert not of_directions[:, latents:].any()
    assert not of_length[:, :latents].any()
    assert digest(first) == digest(second)


def test_the_length_weighs_as_two_directions_do() -> None:
    rows = public_projector(84, 10)["components"]
    points, turns = random_directions(84), np.random.default_rng(1).uniform(0, 2 * np.pi, 5000)
    mean_square = ((points @ rows[:8, :84].T) ** 2).mean()
    circle = np.stack([np.cos(turns), np.sin(turns)], axis=1)
    assert ((circle @ rows[8:, 84:].T) ** 2).mean() == pytest.approx(mean_square, rel=0.05)


def test_its_radius_shortens_few_of_random_directions() -> None:
    projector = public_projector(84, 10)
    points = np.hstack([random_directions(84), np.tile([1.0, 0.0], (5000, 1))])
    lengths = np.linalg.norm(points @ projector["components"].T, axis=1)
    assert 0.01 < (lengths > projector["radius"]).mean() < 0.06


def random_directions(latents: int) -> FloatArray:
    """(5000, latents), each of length 1."""
    points = np.random.default_rng(0).normal(size=(5000, latents))
    found: FloatArray = points / np.linalg.norm(points, axis=1, keepdims=True)
    return found
