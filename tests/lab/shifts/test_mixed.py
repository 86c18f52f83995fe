"""Two shifts at once: each device has its classes and its looks, and concepts are of both."""

import numpy as np
import pytest

from shoal.core.data.dataset import Dataset
from shoal_lab.shifts import make
from shoal_lab.shifts.base import DeviceData

LEVEL, CLIENTS, SEED = 4, 6, 42


@pytest.fixture(scope="module")
def data() -> tuple[Dataset, Dataset]:
    chance = np.random.default_rng(0)
    y = np.arange(600) % 10
    x = chance.integers(0, 256, (600, 8, 8)).astype(np.uint8)
    return Dataset(x[:480], y[:480]), Dataset(x[480:], y[480:])


def alone(shift: str, data: tuple[Dataset, Dataset]) -> list[DeviceData]:
    return make(shift, LEVEL, CLIENTS, SEED, *data)


@pytest.mark.parametrize("other", ["px", "pxy", "pyx"])
def test_a_device_has_the_classes_of_the_one_and_the_concept_of_both(
    other: str, data: tuple[Dataset, Dataset]
) -> None:
    mixed, first, second = (alone(shift, data) for shift in (f"{other}+py", "py", other))
    assert [len(one.train) for one in mixed] == [len(one.train) for one in first]
    for i, one in enumerate(mixed):
        for j, two in enumerate(mixed):
            same = (first[i].concept, second[i].concept) == (first[j].concept, second[j].concept)
            assert (one.concept == two.concept) == same
        if other != "pyx":
            assert one.train.y is not None
            assert first[i].train.y is not None
            assert (one.train.y == first[i].train.y).all()


def test_images_are_turned_and_names_exchanged_as_if_the_other_shift_were_alone(
    data: tuple[Dataset, Dataset],
) -> None:
    from shoal_lab.shifts import concept_label, feature

    dealt = alone("py", data)
    for number, (one, own) in enumerate(zip(alone("px+py", data), dealt, strict=True)):
        pattern = feature.patterns(LEVEL)[feature.drawn(LEVEL, CLIENTS, SEED)[number]]
        assert (one.test.x == feature.seen(own.test, *pattern).x).all()
    names = concept_label.renamings(LEVEL, CLIENTS, SEED, 10)
    for one, own, new in zip(alone("pyx+py", data), dealt, names, strict=True):
        assert own.train.y is not None
        assert one.train.y is not None
        assert (one.train.y == new[own.train.y]).all()
