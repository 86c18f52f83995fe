"""FedRC's mix of shifts (section 5.1, appendix H.8): who has which concept, which classes, which images."""

from collections import Counter

import numpy as np
import pytest

from shoal.core.data.dataset import Dataset
from shoal.simulation.images import unit
from shoal_lab.datasets.images import load
from shoal_lab.shifts import DeviceData, make, newcomers
from shoal_lab.shifts.three_concepts import named

Pair = tuple[Dataset, Dataset]


@pytest.fixture(scope="module")
def digits() -> Pair:
    return load("digits")


def devices(level: int, digits: Pair, clients: int = 20, seed: int = 42) -> list[DeviceData]:
    return make("fedrc", level, clients, seed, *digits)


def everything(device: DeviceData) -> Dataset:
    parts = (device.train, device.test)
    assert all(part.y is not None for part in parts)
    return Dataset(
        np.concatenate([part.x for part in parts]),
        np.concatenate([part.y for part in parts if part.y is not None]),
    )


@pytest.mark.parametrize(("level", "concepts"), [(1, (10, 5, 5)), (2, (8, 6, 6)), (3, (10, 5, 5))])
def test_concepts_are_as_frequent_as_the_table_says(
    level: int, concepts: tuple[int, ...], digits: Pair
) -> None:
    found = Counter(device.concept for device in devices(level, digits))
    assert tuple(found[concept] for concept in range(3)) == concepts


def test_names_of_the_concepts() -> None:
    y = np.array([0, 1, 9])
    assert [named(y, concept, 10).tolist() for concept in range(3)] == [[0, 1, 9], [9, 8, 0], [1, 2, 0]]


def test_every_image_goes_to_one_device_and_a_tenth_of_them_is_to_test_on(digits: Pair) -> None:
    made = devices(1, digits)
    share = len(digits[0]) // 20
    assert [len(device.train) + len(device.test) for device in made] == [share] * 20
    assert {len(device.test) for device in made} == {round(0.1 * share)}
    clean = {image.tobytes(): label for image, label in zip(unit(digits[0].x), digits[0].y, strict=True)}  # type: ignore[arg-type]
    seen: Counter[bytes] = Counter()
    untouched = 0
    for device in made:
        data = everything(device)
        assert data.y is not None
        own = [image.tobytes() for image in data.x]
        if all(image in clean for image in own):
            untouched += 1
            seen.update(own)
            known = np.array([clean[image] for image in own])
            assert (named(known, device.concept, 10) == data.y).all()
    assert (
        14 <= untouched <= 17
    )  # 14 are clean, and some of the others are corrupted by leaving them as they are
    assert max(seen.values()) == 1


def test_devices_have_few_classes(digits: Pair) -> None:
    shares = []
    for device in devices(1, digits):
        data = everything(device)
        assert data.y is not None
        shares.append(np.bincount(data.y, minlength=10).max() / len(data))
    assert np.median(shares) > 0.4


def test_a_seed_gives_the_same_devices_and_another_seed_others(digits: Pair) -> None:
    def bits(seed: int) -> list[bytes]:
        return [everything(device).x.tobytes() for device in devices(2, digits, 5, seed)]

    assert bits(1) == bits(1)
    assert bits(1) != bits(2)


def test_levels_that_are_not_there_are_named(digits: Pair) -> None:
    with pytest.raises(ValueError, match="level 4"):
        devices(4, digits)


def test_newcomers_have_all_test_images_once_balanced_and_clean(digits: Pair) -> None:
    made = newcomers("fedrc", 42, *digits)
    assert [device.concept for device in made] == [0, 1, 2]
    for device in made:
        assert len(device.train) == int(0.9 * len(digits[1]))
        data = everything(device)
        assert data.y is not None
        assert np.bincount(data.y).min() > 25
        assert sorted(image.tobytes() for image in data.x) == sorted(
            image.tobytes() for image in unit(digits[1].x)
        )
    assert newcomers("px", 42, *digits) == []


def test_classes_are_less_uneven_with_the_alpha_of_the_papers_text(digits: Pair) -> None:
    def classes(level: int) -> float:
        return float(np.mean([len(np.unique(everything(device).y)) for device in devices(level, digits)]))

    assert classes(3) > classes(1) + 2
