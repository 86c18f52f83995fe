"""Two shifts at once: each device has its classes and its looks, and concepts are of both."""

import numpy as np
import pytest

from shoal.core.data.dataset import Dataset
from shoal.simulation.images import unit
from shoal_lab.shifts import concept_label, feature, make
from shoal_lab.shifts.base import DeviceData, labels, split_basic

LEVEL, CLIENTS, SEED = 4, 6, 42


@pytest.fixture(scope="module")
def data() -> tuple[Dataset, Dataset]:
    chance = np.random.default_rng(0)
    y = np.arange(600) % 10
    x = chance.integers(0, 256, (600, 8, 8)).astype(np.uint8)
    return Dataset(x[:480], y[:480]), Dataset(x[480:], y[480:])


def alone(shift: str, data: tuple[Dataset, Dataset]) -> list[DeviceData]:
    return make(shift, LEVEL, CLIENTS, SEED, *data)


@pytest.mark.parametrize("other", ["px", "pxy"])
def test_a_device_has_the_classes_of_the_one_and_the_concept_of_both(
    other: str, data: tuple[Dataset, Dataset]
) -> None:
    mixed, first, second = (alone(shift, data) for shift in (f"{other}+py", "py", other))
    for i, one in enumerate(mixed):
        for j, two in enumerate(mixed):
            same = (first[i].concept, second[i].concept) == (first[j].concept, second[j].concept)
            assert (one.concept == two.concept) == same
        assert (labels(one.train) == labels(first[i].train)).all()


def test_images_are_turned_as_if_the_other_shift_were_alone(data: tuple[Dataset, Dataset]) -> None:
    for number, (one, own) in enumerate(zip(alone("px+py", data), alone("py", data), strict=True)):
        pattern = feature.patterns(LEVEL)[feature.drawn(LEVEL, CLIENTS, SEED)[number]]
        assert (one.test.x == feature.seen(own.test, *pattern).x).all()


def test_classes_are_dropped_by_the_names_that_a_device_gives_them(data: tuple[Dataset, Dataset]) -> None:
    names = concept_label.renamings(LEVEL, CLIENTS, SEED, 10)
    dealt = alone("pyx+py", data)
    parts = split_basic(*data, CLIENTS, SEED)
    for one, own, (part, _) in zip(dealt, names, parts, strict=True):
        called = {image.tobytes(): name for image, name in zip(unit(part.x), own[labels(part)], strict=True)}
        assert [called[image.tobytes()] for image in one.train.x] == labels(one.train).tolist()
        assert len(set(labels(one.train))) == 11 - LEVEL
    kinds = [(one.concept, {*labels(one.train)}, tuple(own)) for one, own in zip(dealt, names, strict=True)]
    for concept, classes, own in kinds:
        for other, others_classes, others in kinds:
            assert (concept == other) == (classes == others_classes and own == others)
