"""Groups that updates tell: found where there are some, and not where only chance makes devices differ."""

import numpy as np
import pytest

from shoal.core.server_kit.clustering.cluster import renumbered
from shoal.core.server_kit.clustering.congruence import FEWEST, congruent

WIDTH = 100


def updates(groups: list[int], apart: float, seed: int) -> np.ndarray:
    """(n, WIDTH): what all share, what a group shares, and what a device's own samples add."""
    chance = np.random.default_rng(seed)
    middles = apart * chance.normal(size=(max(groups) + 1, WIDTH))
    return chance.normal(size=WIDTH) + middles[groups] + chance.normal(size=(len(groups), WIDTH))


def found(rows: np.ndarray) -> list[int]:
    return congruent(rows @ rows.T).tolist()


@pytest.mark.parametrize("devices", [FEWEST, 8, 12, 30])
def test_devices_that_are_alike_are_one_group(devices: int) -> None:
    wrong = [seed for seed in range(200) if max(found(updates([0] * devices, 0.0, seed)))]
    assert len(wrong) <= 1


@pytest.mark.parametrize("sizes", [(4, 4), (7, 3), (9, 1), (4, 3, 2, 1), (2,) * 5, (20, 10)])
def test_groups_of_any_sizes_are_found(sizes: tuple[int, ...]) -> None:
    groups = np.random.default_rng(1).permutation(np.repeat(np.arange(len(sizes)), sizes)).tolist()
    for seed in range(10):
        assert found(updates(groups, 1.5, seed)) == renumbered(np.array(groups)).tolist()


def test_no_length_of_an_update_changes_a_group() -> None:
    rows = updates([0, 0, 0, 0, 1, 1, 1, 1], 1.5, 3)
    rows[2] *= 1e6
    rows[5] *= 1e-6
    assert found(rows) == [0, 0, 0, 0, 1, 1, 1, 1]


@pytest.mark.parametrize("devices", [0, 1, 2, FEWEST - 1])
def test_few_devices_are_one_group(devices: int) -> None:
    assert found(100.0 * np.eye(max(devices, 1), WIDTH)[:devices]) == [0] * devices


def test_devices_that_did_not_move_are_one_group() -> None:
    assert found(np.zeros((8, WIDTH))) == [0] * 8
