import numpy as np
import pytest

from shoal.core.data.dataset import Dataset
from shoal.simulation.images import unit
from shoal_lab.shifts import make
from shoal_lab.shifts.base import split_basic
from shoal_lab.shifts.concept_label import renamings

Pair = tuple[Dataset, Dataset]


def test_published_concepts_at_seed_42_level_4(mnist_sized: Pair) -> None:
    devices = make("pyx", 4, 10, 42, *mnist_sized)
    assert [device.concept for device in devices] == [0, 1, 2, 3, 4, 5, 1, 6, 3, 7]
    assert [(len(device.train), len(device.test)) for device in devices] == [(6_000, 1_000)] * 10


@pytest.mark.parametrize("level", range(1, 9))
def test_a_renaming_permutes_the_same_few_classes_everywhere(level: int) -> None:
    names = renamings(level, 50, 42, 10)
    assert (np.sort(names, axis=1) == np.arange(10)).all()
    moved = (names != np.arange(10)).any(axis=0)
    assert moved.sum() == (0 if level == 1 else level)


def test_level_1_is_one_distribution(small: Pair) -> None:
    assert {device.concept for device in make("pyx", 1, 10, 42, *small)} == {0}


def test_train_and_test_are_renamed_alike_and_images_left_alone(pictures: Pair) -> None:
    names = renamings(5, 4, 42, 10)
    for number, raw in enumerate(split_basic(*pictures, 4, 42)):
        device = make("pyx", 5, 4, 42, *pictures)[number]
        for part, raw_part in zip((device.train, device.test), raw, strict=True):
            assert part.y is not None
            assert raw_part.y is not None
            assert part.y.tolist() == [names[number][label] for label in raw_part.y]
            assert (part.x == unit(raw_part.x)).all()


def test_concepts_are_the_same_when_and_only_when_the_renamings_are(small: Pair) -> None:
    names = renamings(3, 30, 42, 10)
    concepts = [device.concept for device in make("pyx", 3, 30, 42, *small)]
    pairs = {(concept, tuple(own)) for concept, own in zip(concepts, names.tolist(), strict=True)}
    assert len(pairs) == len({concept for concept, _ in pairs}) == len({own for _, own in pairs})
    assert 1 < len(pairs) <= 6
