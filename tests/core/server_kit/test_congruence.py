"""Groups that updates tell: found where there are some, and not where only chance makes devices differ."""

import numpy as np
import pytest

from shoal.core.server_kit.clustering.cluster import renumbered
from shoal.core.server_kit.clustering.congruence import MIN_DEVICES, congruent

WIDTH = 100


def updates(groups: list[int], apart: float, seed: int) -> np.ndarray:
    """(n, WIDTH): what all share, what a group shares, and what a device's own samples add."""
    chance = np.random.default_rng(seed)
    middles = apart * chance.normal(size=(max(groups) + 1, WIDTH))
    return chance.normal(size=WIDTH) + middles[groups] + chance.normal(size=(len(groups), WIDTH))


def found(rows: np.ndarray) -> list[int]:
    return congruent(rows @ rows.T).tolist()


@pytest.mark.parametrize("devices", [MIN_DEVICES, 8, 12, 30])
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


@pytest.mark.parametrize("devices", [0, 1, 2, MIN_DEVICES - 1])
def test_few_devices_are_one_group(devices: int) -> None:
    assert found(100.0 * np.eye(max(devices, 1), WIDTH)[:devices]) == [0] * devices


def test_devices_that_did_not_move_are_one_group() -> None:
    assert found(np.zeros((8, WIDTH))) == [0] * 8


# -- liars --------------------------------------------------------------------------------------------------


def lies(chance: np.random.Generator, rows: np.ndarray, groups: np.ndarray, liars: int) -> list[np.ndarray]:
    """What liars may send who know all honest updates (rows) and their groups, and agree: middles of groups
    or of all, copies, halves of a group, directions of their own. Each of them as it is, and with chance."""
    own, other = rows[groups == 0], rows[groups == groups.max()]
    half = len(own) // 2
    together = [
        rows.mean(axis=0),
        -rows.mean(axis=0),
        own.mean(axis=0) + other.mean(axis=0),
        own.mean(axis=0) - 0.999 * other.mean(axis=0),
        own[0] + other[-1],
        own[0],
        own[:half].mean(axis=0),
        own[:half].mean(axis=0) - own[half:].mean(axis=0),
        chance.normal(size=WIDTH),
    ]
    sent = [np.tile(one, (liars, 1)) for one in together]
    sent.append(rows[chance.permutation(len(rows))[:liars]])
    sent.append(chance.normal(size=(liars, WIDTH)))
    sent.append(chance.normal(size=(liars, len(rows))) @ rows)
    usual = float(np.linalg.norm(rows[0]))
    sent = [each * usual / np.linalg.norm(each, axis=1, keepdims=True) for each in sent]
    return sent + [each + 0.05 * usual * chance.normal(size=each.shape) for each in sent]


def test_liars_fewer_than_a_quarter_hardly_ever_hide_or_split_a_group() -> None:
    """Groups that are found without them stay found. A single liar undoes next to none; just under a quarter
    sometimes splits one or two devices off, by what the chance in their updates has in common."""
    tried, changed = {1: 0, 2: 0}, {1: 0, 2: 0}
    for seed in range(43, 123):
        chance = np.random.default_rng(seed)
        devices = int(chance.choice([8, 10, 12, 16, 24]))
        liars = (devices - 1) // 4 if seed % 2 else 1
        parted = int(chance.integers(1, devices // 4 + 1))
        groups = np.arange(devices - liars) % parted
        rows = updates(groups.tolist(), 1.5 if parted > 1 else 0.0, seed)
        alone = found(rows)
        for sent in lies(chance, rows, groups, liars):
            beside = renumbered(np.array(found(np.vstack([rows, sent]))[: len(rows)]))
            tried[min(liars, 2)] += 1
            changed[min(liars, 2)] += beside.tolist() != alone
    assert sum(tried.values()) > 1500
    assert changed[1] <= 0.01 * tried[1]
    assert changed[2] <= 0.05 * tried[2]
