"""Distances between updates, block by block: the same as of whole vectors."""

import numpy as np
import pytest

from shoal.core.exchange.parts import FloatArray
from shoal.core.server_kit.clustering import distances
from shoal.core.server_kit.clustering.cluster import agglomerated
from shoal.core.types import Tensors


def spread(rows: FloatArray) -> list[Tensors]:
    """Vectors as tensors of two shapes, with a whole number that must not count."""
    return [
        {"a": row[:4].reshape(2, 2), "steps": np.array(i * 1000), "b": row[4:]} for i, row in enumerate(rows)
    ]


@pytest.fixture
def rows() -> FloatArray:
    return np.random.default_rng(0).normal(size=(6, 11))


@pytest.mark.parametrize("room", [1, 200, 1 << 25])
def test_blocks_of_any_size_give_the_inner_products_of_the_updates(
    rows: FloatArray, room: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(distances, "MATRIX", room)
    base = np.ones(11)
    models, bases = spread(rows), spread(np.tile(base, (6, 1)))
    products = distances.inner_products(models, bases)
    np.testing.assert_allclose(products, (rows - base) @ (rows - base).T, atol=1e-12)


@pytest.mark.parametrize("huge", [1e308, -1.7e308, 1e200, 1e-308])
def test_no_update_is_so_long_that_distances_of_others_are_no_numbers(rows: FloatArray, huge: float) -> None:
    models, bases = spread(rows), spread(np.ones((6, 11)))
    models[0], bases[0] = spread(np.full((1, 11), huge))[0], spread(np.full((1, 11), -1e308))[0]
    products = distances.inner_products(models, bases)
    for view in (distances.euclidean, distances.cosines, distances.angular, distances.points):
        assert np.isfinite(view(products)).all()
    np.testing.assert_allclose(products[1:, 1:], (rows[1:] - 1.0) @ (rows[1:] - 1.0).T, atol=1e-12)


def test_distances_angles_and_points_follow_from_them(rows: FloatArray) -> None:
    products = rows @ rows.T
    apart = np.linalg.norm(rows[:, None] - rows[None], axis=2)
    np.testing.assert_allclose(distances.euclidean(products), apart, atol=1e-12)
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    np.testing.assert_allclose(distances.cosines(products), unit @ unit.T, atol=1e-12)
    points = distances.points(products)
    assert points.shape[1] <= len(rows)
    np.testing.assert_allclose(points @ points.T, products, atol=1e-7)


def test_equal_updates_are_at_no_distance_and_one_that_stands_still_has_no_direction() -> None:
    rows = np.array([[0.1, 0.2, 0.3], [0.1, 0.2, 0.3], [0.0, 0.0, 0.0]])
    products = rows @ rows.T
    assert distances.euclidean(products)[0, 1] == 0.0
    np.testing.assert_allclose(distances.cosines(products)[2], [0.0, 0.0, 1.0])
    assert distances.points(products).shape == (3, 1)
    assert distances.points(np.zeros((3, 3))).shape == (3, 0)
    assert distances.inner_products([], []).shape == (0, 0)


def test_groups_are_at_most_as_many_groups_as_are_asked_for() -> None:
    points = np.array([[0.0], [0.1], [5.0], [5.1], [9.0]])
    apart = np.abs(points - points.T)
    assert agglomerated(apart, "ward", clusters=3).tolist() == [0, 0, 1, 1, 2]
    assert agglomerated(apart, "ward", clusters=2).tolist() == [0, 0, 1, 1, 1]
    assert agglomerated(apart, "ward", clusters=9).tolist() == [0, 1, 2, 3, 4]
    equal = np.zeros((4, 4))
    for clusters in (3, 4, 9):
        assert agglomerated(equal, "ward", clusters=clusters).tolist() == [0] * 4, "nothing parts them"
    assert agglomerated(np.zeros((1, 1)), "ward", clusters=3).tolist() == [0]
    assert agglomerated(apart, "complete", below=4.2).tolist() == [0, 0, 1, 1, 1]
    assert agglomerated(apart, "single", below=4.9).tolist() == [0, 0, 0, 0, 0]
