"""elec2 and hapt on files made here in their shape: whose samples are whose, and in which order."""

import re
from pathlib import Path

import numpy as np
import pytest

from shoal_lab.datasets.natural import COLUMNS, load

DAYS = 12


@pytest.fixture
def elec2(tmp_path: Path) -> Path:
    """Twelve days; the price tells the day and the demand the half-hour, as they grow."""
    day, half_hour = (each.ravel() for each in np.divmod(np.arange(48 * DAYS), 48))
    up = (half_hour >= 24).astype(float)
    filled = np.column_stack([half_hour / 47, day, half_hour, up + 1, day % 3, day % 2, up])
    np.savetxt(tmp_path / "elec.csv", filled, delimiter=",", header=COLUMNS, comments="")
    return tmp_path


@pytest.fixture
def hapt(tmp_path: Path) -> Path:
    """People 1 and 2, five windows of each of two activities; the first reading tells when."""
    arrays = {}
    for part, person in (("train", 1), ("test", 2)):
        order = np.array([3, 1, 0, 2, 4, 9, 7, 5, 6, 8])
        windows = np.zeros((10, 128, 6), np.float32)
        windows[:, 0, 0] = order
        arrays |= {
            f"X_{part}": windows,
            f"y_{part}": (1 + (order >= 5) * 11).astype(np.uint8),
            f"subject_{part}": np.full(10, person, np.uint8),
            f"exp_{part}": np.full(10, person, np.uint8),
            f"start_{part}": (100 * order).astype(np.int32),
        }
    (tmp_path / "hapt").mkdir()
    np.savez(tmp_path / "hapt" / "hapt-windows-128x6.npz", **arrays)
    return tmp_path


def test_a_device_has_some_half_hours_of_the_day_in_time_order_and_is_tested_on_what_comes_next(
    elec2: Path,
) -> None:
    devices = load("elec2", elec2, devices=8, stages=3)
    assert [len(device.stages) for device in devices] == [3] * 8
    for number, device in enumerate(devices):
        parts = [*device.stages, device.test]
        assert [len(part) for part in parts] == [18] * 4  # six half-hours of three days
        days = np.concatenate([part.x[:, 1] for part in parts])
        assert (np.diff(days) >= 0).all()
        assert len(np.unique(np.concatenate([part.x[:, 2] for part in parts]))) == 6
        assert all(set(part.y.tolist()) == {int(number >= 4)} for part in parts)  # type: ignore[union-attr]


def test_columns_are_standardised_by_what_comes_before_the_test(elec2: Path) -> None:
    devices = load("elec2", elec2, devices=4, stages=2)
    before = np.concatenate([stage.x for device in devices for stage in device.stages])
    np.testing.assert_allclose(before.mean(axis=0), 0.0, atol=1e-5)
    np.testing.assert_allclose(before.std(axis=0), 1.0, atol=1e-5)
    assert min(device.test.x[:, 1].min() for device in devices) > before[:, 1].max() - 1e-6


def test_a_person_is_a_device_and_the_last_fifth_of_each_activity_its_test(hapt: Path) -> None:
    first, second = load("hapt", hapt, devices=2)
    for device in (first, second):
        (stage,) = device.stages
        # Windows of 128 readings begin every 100: 3, 5 and 8 share readings with the test part.
        assert stage.x.shape == (5, 6, 128)
        assert stage.x[:, 0, 0].tolist() == [0, 1, 2, 6, 7]
        assert device.test.x[:, 0, 0].tolist() == [4, 9]
        assert device.test.y is not None
        assert device.test.y.tolist() == [0, 11]


def test_windows_of_another_recording_share_no_readings_though_they_begin_alike(hapt: Path) -> None:
    path = hapt / "hapt" / "hapt-windows-128x6.npz"
    arrays = dict(np.load(path))
    for part in ("train", "test"):
        arrays[f"exp_{part}"] = 1 + np.arange(10, dtype=np.uint8)
    np.savez(path, **arrays)
    (stage,) = load("hapt", hapt, devices=1)[0].stages
    assert len(stage) == 8


@pytest.mark.parametrize(
    ("name", "devices", "stages", "said"),
    [
        ("elec2", 49, 1, "1 to 48"),
        ("elec2", 2, 99, "too few"),
        ("hapt", 31, 1, "30 people"),
        ("hapt", 2, 2, "do not drift"),
    ],
)
def test_what_cannot_be_made_is_said(
    name: str, devices: int, stages: int, said: str, elec2: Path, hapt: Path
) -> None:
    with pytest.raises(ValueError, match=said):
        load(name, elec2, devices, stages)


def test_files_that_are_not_there_or_are_others_are_said(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="--data-dir"):
        load("elec2", None, 2)
    with pytest.raises(FileNotFoundError, match=r"lacks elec\.csv"):
        load("elec2", tmp_path, 2)
    (tmp_path / "elec.csv").write_text("date,price\n1,2\n")
    with pytest.raises(ValueError, match="columns"):
        load("elec2", tmp_path, 2)
    np.savez(tmp_path / "hapt-windows-128x6.npz", X_train=np.zeros(3))
    with pytest.raises(ValueError, match="lacks the array X_test"):
        load("hapt", tmp_path, 2)


@pytest.mark.parametrize(("name", "file"), [("elec2", "elec.csv"), ("hapt", "hapt/hapt-windows-128x6.npz")])
@pytest.mark.parametrize("share", [0.0, 0.5, 0.99])
def test_half_a_file_is_named(name: str, file: str, share: float, request: pytest.FixtureRequest) -> None:
    folder: Path = request.getfixturevalue(name)
    content = (folder / file).read_bytes()
    (folder / file).write_bytes(content[: int(share * len(content)) - bool(share) * 3])
    with pytest.raises(ValueError, match=re.escape(str(folder / file))):
        load(name, folder, 2)
