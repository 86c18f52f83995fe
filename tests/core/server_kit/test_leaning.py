"""A device that is a cluster of its own leans on all others by its samples, and by how little devices
differ."""

import pytest

from shoal.core.server_kit.fleet.leaning import leaning
from tests.core.server_kit.described import device, private


def share(samples: int, apart: float) -> float:
    """Of device 0, where each of six devices is a cluster of its own."""
    shifts = [apart * number for number in (0, 1, -1, 2, -2, 1.5)]
    described = {f"d{number}": device(number, shift, samples) for number, shift in enumerate(shifts)}
    return leaning(described, {name: f"c{number}" for number, name in enumerate(described)})["c0"]


def test_the_fewer_samples_the_more_it_leans() -> None:
    shares = [share(samples, apart=0.5) for samples in (20, 80, 320, 5000)]
    assert shares == sorted(shares, reverse=True)
    assert shares[0] > 0.7
    assert shares[-1] < 0.1


def test_the_less_devices_differ_the_more_it_leans() -> None:
    shares = [share(80, apart) for apart in (0.0, 0.5, 2.0, 8.0)]
    assert shares == sorted(shares, reverse=True)
    assert shares[0] > 0.9
    assert shares[-1] < 0.1


def test_noise_that_hides_differences_does_not_count_as_one() -> None:
    described = {f"d{number}": private(number) for number in range(6)}
    shares = leaning(described, {name: f"c{number}" for number, name in enumerate(described)})
    assert min(shares.values()) > 0.5


def test_only_clusters_of_one_device_lean() -> None:
    described = {name: device(number, float(number)) for number, name in enumerate("abcde")}
    found = leaning(described, {"a": "c0", "b": "c0", "c": "c1", "d": "c2"})
    assert set(found) == {"c1", "c2"}


@pytest.mark.parametrize("homes", [{}, {"a": "c0"}, {"a": "c0", "b": "c0"}])
def test_without_others_there_is_nothing_to_lean_on(homes: dict[str, str]) -> None:
    assert leaning({"a": device(1), "b": device(2)}, homes) == {}


def test_devices_without_a_class_in_common_lean_on_nothing_that_is_known() -> None:
    described = {"a": device(1, mix=(1, 0, 0, 0)), "b": device(2, mix=(0, 1, 0, 0))}
    assert leaning(described, {"a": "c0", "b": "c1"}) == {}
