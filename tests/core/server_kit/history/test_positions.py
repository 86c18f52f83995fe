"""The map of a fleet: groups lie apart, in units of the uncertainty of the descriptors."""

import math

import numpy as np

from shoal.core.exchange.parts import Descriptor, Moments
from shoal.core.server_kit.history.positions import positions

DIMS = 6


def descriptor(mean: float, chance: np.random.Generator, samples: float = 100.0) -> Descriptor:
    """Of standard normal samples around `mean` in one coordinate, without classes."""
    means = chance.normal(0.0, 1.0 / math.sqrt(samples), (1, DIMS))
    means[0, 2] += mean
    return Descriptor(Moments(means, np.ones((1, DIMS)), np.array([samples])), "0" * 64)


def test_two_groups_lie_apart_by_more_than_their_uncertainty() -> None:
    chance = np.random.default_rng(1)
    fleet = {f"d{number}": descriptor(2.0 * (number % 2), chance) for number in range(10)}
    found = positions(fleet)
    assert list(found) == sorted(fleet)
    left = [found[f"d{number}"].x for number in range(0, 10, 2)]
    right = [found[f"d{number}"].x for number in range(1, 10, 2)]
    # The distance of the means, 2.0, in units of 1 / sqrt(100): twenty; within a group it is about one.
    gap = abs(np.mean(left) - np.mean(right))
    assert 18.0 < gap < 22.0
    assert max(np.std(left), np.std(right)) < 2.5
    assert all(0.8 < math.sqrt(each.xx) < 1.25 for each in found.values())


def test_a_device_with_fewer_samples_has_a_larger_ellipse() -> None:
    chance = np.random.default_rng(2)
    fleet = {f"d{number}": descriptor(0.0, chance) for number in range(5)}
    found = positions({**fleet, "few": descriptor(0.0, chance, samples=10.0)})
    assert found["few"].xx > 5 * found["d0"].xx


def test_a_class_that_only_some_devices_have_does_not_decide() -> None:
    chance = np.random.default_rng(3)

    def with_classes(counts: list[float]) -> Descriptor:
        means = chance.normal(0.0, 0.1, (3, DIMS)) + np.array([[0.0], [5.0], [500.0]])
        return Descriptor(Moments(means, np.ones((3, DIMS)), np.array(counts)), "0" * 64)

    fleet = {f"d{number}": with_classes([100.0, 100.0, 0.0]) for number in range(4)}
    found = positions({**fleet, "other": with_classes([100.0, 50.0, 50.0])})
    assert max(abs(each.x) for each in found.values()) < 10.0


def test_two_devices_have_no_map_and_equal_ones_lie_at_its_middle() -> None:
    chance = np.random.default_rng(4)
    one = descriptor(0.0, chance)
    assert positions({"a": one, "b": one}) == {}
    assert {(each.x, each.y) for each in positions(dict.fromkeys("abc", one)).values()} == {(0.0, 0.0)}
