"""The version of data: the same for the same samples, in whatever order and parts; another for any change."""

import numpy as np

from shoal.core.data.dataset import Dataset
from shoal.core.data.version import distinct, version
from shoal.core.data.views import Views

CHANCE = np.random.default_rng(0)
X, Y = CHANCE.normal(size=(20, 3, 2)).astype(np.float32), CHANCE.integers(0, 3, 20)


def test_order_and_parts_do_not_matter() -> None:
    whole, views, turned = Dataset(X, Y), Views.of(Dataset(X, Y)), Dataset(X[::-1], Y[::-1])
    assert len({version(parts) for parts in ([whole], [views.train, views.held_out], [turned])}) == 1


def test_labels_do_not_matter() -> None:
    assert version([Dataset(X, Y)]) == version([Dataset(X)]) == version([Dataset(X, (Y + 1) % 3)])


def test_any_change_is_another_version() -> None:
    moved, swapped = X.copy(), X.copy()
    moved[3, 1, 1] += 1e-6
    swapped[0, 0, 0], swapped[1, 0, 0] = X[1, 0, 0], X[0, 0, 0]
    sets = [X, moved, swapped, X[1:], np.concatenate([X, X[:1]]), X.astype(np.float64), X.reshape(20, 6)]
    assert len({version([Dataset(x)]) for x in sets}) == len(sets)


def test_the_same_sample_has_the_same_number_whatever_part_it_is_in() -> None:
    x, y = np.concatenate([X[:3], X[1:2], X[1:2]]), np.array([0, 1, 2, 1, 0])
    parts = [Dataset(x[:2], y[:2]), Dataset(x[2:], y[2:])]
    assert distinct(parts, labels=False).tolist() == [0, 1, 2, 1, 1]
    assert distinct(parts, labels=True).tolist() == [0, 1, 2, 1, 3]
