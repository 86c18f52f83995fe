"""Updates in fixed point: no device moves the sum by more than was said, and nothing wraps around."""

import numpy as np
import pytest

from shoal.core.privacy.secure.cohort import threshold
from shoal.core.privacy.secure.fixed_point import (
    moved_by,
    scale_of,
    steps_of,
    to_words,
    variance_of,
    vector,
)

BASE = {
    "w": np.ones((3, 4), np.float32),
    "count": np.array(7, np.int64),
    "b": np.zeros(5, np.float32),
}


def moved(by: float) -> dict[str, np.ndarray]:
    return {
        name: array + np.float32(by) if array.dtype == np.float32 else array + 1
        for name, array in BASE.items()
    }


def test_a_mean_comes_back_and_whole_numbers_stay() -> None:
    assert len(vector(BASE, BASE, 1.0)) == 17
    scale = scale_of(10.0, 0.0, 8)
    total = np.zeros(17, np.uint32)
    for number in range(8):
        total = total + to_words(steps_of(vector(BASE, moved(0.1 * number), 10.0), scale))
    found = moved_by(BASE, total, scale, 8)
    assert list(found) == list(BASE)
    np.testing.assert_allclose(found["w"], BASE["w"] + 0.35, atol=1e-6)
    assert found["count"] == 7
    assert found["w"].dtype == np.float32


@pytest.mark.parametrize("by", [1e-30, 0.1, 1e6, 1e30])
def test_no_update_is_longer_than_the_norm_in_whole_steps(by: float) -> None:
    scale = scale_of(2.0, 0.0, 100)
    steps = steps_of(vector(BASE, moved(by), 2.0), scale)
    assert (steps.astype(object) ** 2).sum() <= int(2.0 * scale) ** 2


def test_a_model_that_is_not_finite_has_not_moved() -> None:
    assert not vector(BASE, moved(np.nan), 1.0).any()
    assert not vector(BASE, moved(np.inf), 1.0).any()


@pytest.mark.parametrize("noise", [0.0, 0.5, 3.0])
@pytest.mark.parametrize("devices", [8, 100, 128])
def test_there_is_room_for_all_devices_in_one_coordinate_and_their_noise(noise: float, devices: int) -> None:
    scale = scale_of(1.5, noise, devices)
    each = float(variance_of(1.5, noise, devices))
    assert devices * 1.5 * scale + 12.0 * (devices * each) ** 0.5 < 2**31
    assert scale > 2**12
    # The fewest that suffice have the noise that was asked for.
    assert threshold(devices) * each == pytest.approx((noise * 1.5 * scale) ** 2)
