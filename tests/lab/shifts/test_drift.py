"""Drifting devices: the banks are FEROMA's, time is the device's own, and each mode shows what it should."""

import numpy as np
import pytest

from shoal.core.data.dataset import Dataset
from shoal.simulation.fleet import stage_at
from shoal.simulation.images import rotate
from shoal_lab.datasets.pixels import color
from shoal_lab.shifts import drifting
from shoal_lab.shifts.banks import LEVELS, SHIFTS, bank
from shoal_lab.shifts.drift import MODES, DriftingDevice, changes

Pair = tuple[Dataset, Dataset]
SIZES = {"px": (4, 6, 12), "py": (4, 6, 8), "pyx": (6, 24, 120), "pxy": (4, 6, 8)}
every_shift = pytest.mark.parametrize("shift", SHIFTS)


def contents(devices: list[DriftingDevice]) -> list[bytes]:
    found = []
    for device in devices:
        for part in (*map(device.stage, range(len(device.stages))), device.test):
            assert part.y is not None
            found.append(part.x.tobytes() + part.y.tobytes())
    return found


@every_shift
@pytest.mark.parametrize("level", LEVELS)
def test_table_12_the_banks_have_their_sizes_and_their_own_distributions(shift: str, level: str) -> None:
    found = bank(shift, level, 10, np.random.default_rng(0))
    assert len(found) == SIZES[shift][LEVELS.index(level)]
    assert [each.number for each in found] == list(range(len(found)))
    if shift == "pyx":
        names = {tuple(each.names.tolist()) for each in found if each.names is not None}
        assert len(names) == len(found)
        moved = {i for each in names for i, name in enumerate(each) if i != name}
        assert len(moved) == (3, 4, 5)[LEVELS.index(level)]
    if shift == "py":
        assert all(len(each.kept) == 2 for each in found)


@pytest.mark.parametrize("level", LEVELS)
def test_of_cifar_100_a_device_keeps_20_classes_turns_80_and_renames_40_60_or_80(level: str) -> None:
    step = LEVELS.index(level)
    banks = {shift: bank(shift, level, 100, np.random.default_rng(0)) for shift in SHIFTS}
    assert [len(banks[shift]) for shift in ("py", "pyx", "pxy")] == [
        SIZES["py"][step],
        100,
        SIZES["pxy"][step],
    ]
    assert {len(each.kept) for each in banks["py"]} == {20}
    assert {len(each.turned or ()) for each in banks["pxy"]} == {80}
    names = np.array([each.names for each in banks["pyx"]])
    assert (np.sort(names, axis=1) == np.arange(100)).all()
    assert (names != np.arange(100)).any(axis=0).sum() == (40, 60, 80)[step]
    assert len(np.unique(names, axis=0)) == 100


def test_a_rotation_and_a_color_are_those_of_the_static_generator(pictures: Pair) -> None:
    train, _ = pictures
    third = bank("px", "medium", 10, np.random.default_rng(0))[4]
    assert (third.degrees, third.tint) == (180.0, "blue")
    np.testing.assert_array_equal(third.of(train).x, color(rotate(train.x, 180), "blue"))


def test_p_x_given_y_changes_the_images_of_its_classes_alone(pictures: Pair) -> None:
    train, _ = pictures
    assert train.y is not None
    for each in bank("pxy", "low", 10, np.random.default_rng(3)):
        assert each.turned is not None
        assert len(each.turned) == 8
        seen, plain = each.of(train).x, color(train.x, "gray")
        same = (seen == plain).all(axis=(1, 2, 3))
        np.testing.assert_array_equal(same, ~np.isin(train.y, each.turned))


def test_a_stage_begins_after_as_many_training_tasks_as_the_paper_has_rounds() -> None:
    assert changes(20, 10) == [0, 2, 4, 6, 8, 10, 12, 14, 16, 18]
    assert changes(20, 5) == [0, 4, 8, 12, 16]
    begins = changes(20, 10)
    assert [stage_at(begins, trained) for trained in (0, 1, 2, 19, 20, 99)] == [0, 0, 1, 9, 9, 9]


@every_shift
@pytest.mark.parametrize("mode", MODES)
def test_a_seed_gives_the_same_devices_and_another_seed_others(shift: str, mode: str, pictures: Pair) -> None:
    first, again, other = (drifting(shift, "medium", 3, 2, seed, *pictures, mode=mode) for seed in (1, 1, 2))
    assert contents(first) == contents(again)
    assert contents(first) != contents(other)


@every_shift
def test_each_mode_trains_and_tests_on_what_it_says(shift: str, pictures: Pair) -> None:
    for seed in range(5):
        made = {mode: drifting(shift, "medium", 4, 2, seed, *pictures, mode=mode) for mode in MODES}
        for device in made["trDR_teND"]:
            assert device.test_of.number in device.concepts
            if shift == "pyx":
                assert device.test_of.number == device.concepts[-1]
        lasts = {device.concepts[-1] for device in made["last"]}
        for device in made["last"]:
            assert len(device.stages) == 4
            assert device.test_of.number in ({device.concepts[-1]} if shift == "pyx" else lasts)
        for device in made["trDR_teDR"]:
            assert device.test_of.number not in device.concepts
        for device in made["trND_teDR"]:
            assert len(set(device.concepts)) == 1
            assert device.test_of.number not in device.concepts
        for device in made["trDA"]:
            assert [len(pieces) for pieces in device.stages] == [1, 2, 3, 4]
            assert len(device.stage(1)) == sum(len(rows) for _, rows in device.stages[1])
            assert device.stages[3][0] == device.stages[0][0]


def test_images_are_drawn_into_drifts_times_devices_over_30_times_as_many(
    mnist_sized: Pair, pictures: Pair
) -> None:
    device = drifting("px", "medium", 10, 20, 42, *mnist_sized)[0]
    assert [len(rows) for (_, rows), *_ in device.stages] == [2000] * 10
    few = drifting("px", "medium", 3, 2, 42, *pictures)[0]
    assert sum(len(rows) for (_, rows), *_ in few.stages) == len(few.images)


def test_of_p_y_a_stage_is_all_that_the_device_has_of_its_classes(pictures: Pair) -> None:
    for device in drifting("py", "low", 3, 2, 42, *pictures):
        assert device.images.y is not None
        for number, ((each, rows), *_) in enumerate(device.stages):
            np.testing.assert_array_equal(rows, np.flatnonzero(np.isin(device.images.y, each.kept)))
            assert set(device.stage(number).y.tolist()) <= set(each.kept)  # type: ignore[union-attr]


def test_in_the_papers_mode_those_of_p_y_are_drawn_into_as_many_too(mnist_sized: Pair) -> None:
    for device in drifting("py", "low", 20, 6, 42, *mnist_sized, mode="last"):
        assert device.images.y is not None
        for (each, rows), *_ in device.stages:
            here = np.flatnonzero(np.isin(device.images.y, each.kept))
            assert set(rows) <= set(here)
            assert 3.5 < len(rows) / len(here) < 4.5, "20 stages x 6 devices / 30 times as many"


def test_in_the_papers_mode_what_more_devices_have_last_is_tested_more_often(pictures: Pair) -> None:
    made = drifting("px", "low", 2, 10, 3, *pictures, mode="last")
    lasts = [device.concepts[-1] for device in made]
    tested = [device.test_of.number for device in made]
    assert tested != lasts, "each is tested on what any device has last, not on its own"
    again = [drifting("px", "low", 2, 10, seed, *pictures, mode="last") for seed in range(30)]
    shares = [
        np.mean([each.concepts[-1] == device.test_of.number for each in made])
        for made in again
        for device in made
    ]
    assert np.mean(shares) > 0.29, "if the four were drawn alike, a quarter of the devices would have each"


def test_a_device_has_no_more_distributions_than_it_may_and_a_limit_above_the_bank_is_none(
    pictures: Pair,
) -> None:
    few = drifting("pyx", "medium", 12, 3, 42, *pictures, most=2)
    assert all(len(set(device.concepts)) <= 2 for device in few)
    assert contents(drifting("px", "low", 3, 2, 42, *pictures, most=100)) == contents(
        drifting("px", "low", 3, 2, 42, *pictures, most=4)
    )


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"level": "5"}, "level of drifting devices"),
        ({"shift": "pz"}, "unknown shift"),
        ({"mode": "trDR"}, "trDR_teND"),
        ({"drifts": 0}, "at least one"),
        ({"mode": "trDR_teDR", "most": 1}, "most to 2"),
        ({"shift": "py", "clients": 30}, "without images"),
    ],
)
def test_what_cannot_be_made_is_said(change: dict[str, object], said: str, pictures: Pair) -> None:
    settings = {"shift": "px", "level": "low", "drifts": 2, "clients": 2, "seed": 1, **change}
    with pytest.raises(ValueError, match=said):
        drifting(train=pictures[0], test=pictures[1], **settings)  # type: ignore[arg-type]
