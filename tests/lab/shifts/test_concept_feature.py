import numpy as np
import pytest

from shoal.core.data.dataset import Dataset
from shoal.simulation.images import unit
from shoal_lab.shifts import make
from shoal_lab.shifts.base import split_basic
from shoal_lab.shifts.concept_feature import angles

Pair = tuple[Dataset, Dataset]


def test_nine_distributions_at_seed_42_level_3(small: Pair) -> None:
    assert len({device.concept for device in make("pxy", 3, 10, 42, *small)}) == 9


@pytest.mark.parametrize("level", range(1, 9))
def test_the_same_few_classes_are_turned_everywhere(level: int) -> None:
    degrees = angles(level, 100, 42, 10)
    turned = degrees.any(axis=0)
    assert turned.sum() == level
    assert set(degrees[:, turned].ravel()) == {0, 90, 180, 270}


def test_the_draws_come_in_the_documented_order() -> None:
    stream = np.random.RandomState(42)
    turned = sorted(stream.permutation(10)[:3].tolist())
    stream.permutation(10)
    expected = np.zeros((10, 10), np.int64)
    expected[:, turned] = 90 * stream.randint(0, 4, size=(10, 3))
    assert (angles(3, 10, 42, 10) == expected).all()


def test_each_image_is_turned_by_the_angle_of_its_class(pictures: Pair) -> None:
    degrees = angles(8, 4, 42, 10)
    for number, raw in enumerate(split_basic(*pictures, 4, 42)):
        device = make("pxy", 8, 4, 42, *pictures)[number]
        for part, raw_part in zip((device.train, device.test), raw, strict=True):
            assert part.y is not None
            assert raw_part.y is not None
            assert part.y.tolist() == raw_part.y.tolist()
            for shown, image, label in zip(part.x, unit(raw_part.x)[:, 0], raw_part.y, strict=True):
                turned = np.rot90(image, degrees[number][label] // 90)
                assert all((channel == turned).all() for channel in shown)


def test_concepts_are_the_same_when_and_only_when_the_angles_are(small: Pair) -> None:
    degrees = angles(1, 30, 42, 10).tolist()
    concepts = [device.concept for device in make("pxy", 1, 30, 42, *small)]
    pairs = {(concept, tuple(own)) for concept, own in zip(concepts, degrees, strict=True)}
    assert len(pairs) == len({concept for concept, _ in pairs}) == 4
