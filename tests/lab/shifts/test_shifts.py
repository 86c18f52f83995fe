"""What holds for every shift at every level, and what `make` refuses."""

import dataclasses

import numpy as np
import pytest
import torch

from shoal.core.data.dataset import Dataset
from shoal_lab.shifts import SHIFTS, DeviceData, concept_feature, concept_label, make

Pair = tuple[Dataset, Dataset]
CHANNELS = {"px": 3, "py": 1, "pyx": 1, "pxy": 3}
every_shift = pytest.mark.parametrize("shift", list(CHANNELS))


def contents(devices: list[DeviceData]) -> list[bytes]:
    return [
        part.x.tobytes() + (b"" if part.y is None else part.y.tobytes())
        for device in devices
        for part in (device.train, device.test)
    ]


def test_the_shifts_by_name() -> None:
    alone = ("px", "py", "pyx", "pxy", "dirichlet", "fedrc")
    assert (*alone, "px+py", "pxy+py", "pyx+py", "qs-features", "qs-labels", "qs-skew") == SHIFTS


@every_shift
@pytest.mark.parametrize("level", range(1, 9))
def test_images_are_float32_in_0_to_1_with_their_channels(shift: str, level: int, pictures: Pair) -> None:
    devices = make(shift, level, 2, 42, *pictures)
    assert len(devices) == 2
    for part in (part for device in devices for part in (device.train, device.test)):
        assert part.x.dtype == np.float32
        assert part.x.shape == (len(part), CHANNELS[shift], 8, 8)
        assert part.x.min() >= 0
        assert part.x.max() <= 1
        assert part.y is not None
        assert part.y.dtype == np.int64


@every_shift
def test_a_seed_gives_the_same_devices_and_another_seed_others(shift: str, pictures: Pair) -> None:
    once = contents(make(shift, 6, 3, 42, *pictures))
    assert contents(make(shift, 6, 3, 42, *pictures)) == once
    assert contents(make(shift, 6, 3, 43, *pictures)) != once


@every_shift
def test_the_global_generators_are_neither_read_nor_moved(shift: str, pictures: Pair) -> None:
    np.random.seed(1)
    torch.manual_seed(1)
    expected = contents(make(shift, 6, 3, 42, *pictures))
    np.random.seed(2)
    torch.manual_seed(2)
    torch_before = torch.get_rng_state()
    assert contents(make(shift, 6, 3, 42, *pictures)) == expected
    assert torch.equal(torch.get_rng_state(), torch_before)
    assert np.random.randint(0, 2**31) == np.random.RandomState(2).randint(0, 2**31)


@every_shift
def test_the_sets_given_are_not_changed(shift: str, pictures: Pair) -> None:
    before = contents([DeviceData(*pictures, concept=0)])
    make(shift, 8, 3, 42, *pictures)
    assert contents([DeviceData(*pictures, concept=0)]) == before


@every_shift
def test_floats_give_what_bytes_give(shift: str, pictures: Pair) -> None:
    train, test = (Dataset(np.divide(part.x, np.float32(255)), part.y) for part in pictures)
    assert contents(make(shift, 7, 3, 42, train, test)) == contents(make(shift, 7, 3, 42, *pictures))


@every_shift
def test_one_channel_said_or_unsaid_is_the_same(shift: str, pictures: Pair) -> None:
    train, test = (Dataset(part.x[:, np.newaxis], part.y) for part in pictures)
    assert contents(make(shift, 7, 3, 42, train, test)) == contents(make(shift, 7, 3, 42, *pictures))


@every_shift
def test_digits_of_8_by_8_work(shift: str) -> None:
    pytest.importorskip("sklearn")
    from shoal_lab.datasets.images import load

    devices = make(shift, 8, 10, 42, *load("digits"))
    assert all(len(device.train) >= 100 and len(device.test) >= 20 for device in devices)


@pytest.mark.parametrize("level", [1, 5, 8])
def test_of_100_classes_a_level_means_ten_times_as_many(level: int) -> None:
    """FLUX's figures for CIFAR-100: under P(Y|X) FedAvg has 40.04 at level 1 and 4.53 at level 8."""
    x = np.random.RandomState(7).randint(0, 256, (2000, 4, 4)).astype(np.uint8)
    data = Dataset(x, np.arange(2000) % 100)
    kept = make("py", level, 2, 42, data, data)
    assert [len(np.unique(one.train.y)) for one in kept if one.train.y is not None] == [10 * (11 - level)] * 2
    names = concept_label.renamings(level, 20, 42, 100)
    assert (names != np.arange(100)).any(axis=0).sum() == 10 * level
    angles = concept_feature.angles(level, 20, 42, 100)
    assert angles.any(axis=0).sum() == 10 * level


def test_device_data_is_frozen(pictures: Pair) -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        make("px", 1, 1, 0, *pictures)[0].concept = 3  # type: ignore[misc]


@pytest.mark.parametrize("level", [0, 9, -1, 2.5])
def test_an_unknown_level_is_refused(level: int, pictures: Pair) -> None:
    with pytest.raises(ValueError, match=f"level {level} is unknown.*1 to 8"):
        make("px", level, 2, 42, *pictures)


@pytest.mark.parametrize("clients", [0, -1, 41])
def test_clients_that_the_data_cannot_serve_are_refused(clients: int, pictures: Pair) -> None:
    with pytest.raises(ValueError, match=f"{clients} clients cannot share"):
        make("pyx", 2, clients, 42, *pictures)


@pytest.mark.parametrize("seed", [-1, 2**32])
def test_a_seed_out_of_range_is_refused(seed: int, pictures: Pair) -> None:
    with pytest.raises(ValueError, match=f"seed {seed}"):
        make("px", 1, 2, seed, *pictures)


def test_a_near_miss_is_suggested_and_the_rest_listed(pictures: Pair) -> None:
    with pytest.raises(ValueError, match=r"did you mean 'pyx'.*known are px, py, pyx, pxy"):
        make("py_x", 1, 2, 42, *pictures)


@pytest.mark.parametrize("shift", ["py", "pyx", "pxy"])
def test_unlabelled_data_are_refused(shift: str, pictures: Pair) -> None:
    with pytest.raises(ValueError, match="unlabeled"):
        make(shift, 3, 2, 42, pictures[0], Dataset(pictures[1].x))


@pytest.mark.parametrize(
    ("x", "problem"),
    [
        (np.zeros((40, 64), np.uint8), "shape"),
        (np.zeros((40, 2, 8, 8), np.uint8), "shape"),
        (np.full((40, 8, 8), 255.0), "outside 0 to 1"),
        (np.full((40, 8, 8), np.nan), "outside 0 to 1"),
        (np.zeros((40, 9, 9), np.uint8), "make them alike"),
    ],
)
def test_images_of_another_kind_are_refused(x: np.ndarray, problem: str, pictures: Pair) -> None:
    with pytest.raises(ValueError, match=problem):
        make("px", 1, 2, 42, pictures[0], Dataset(x, np.zeros(40, np.int64)))


@pytest.mark.parametrize(("shift", "level"), [("py", 1), ("pyx", 4), ("pxy", 8)])
def test_a_level_that_needs_more_classes_is_refused(shift: str, level: int) -> None:
    three = Dataset(np.zeros((30, 4, 4), np.uint8), np.arange(30) % 3)
    with pytest.raises(ValueError, match="classes and the data have 3"):
        make(shift, level, 2, 42, three, three)
