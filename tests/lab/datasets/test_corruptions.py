"""Corrupted images: still images, worse with severity, and each its own."""

import numpy as np
import pytest

from shoal_lab.datasets.corruptions import CORRUPTIONS, SEVERITIES, Images

CHANCE = 3


@pytest.fixture(scope="module")
def pictures() -> Images:
    """Five of a bright bar on black, 28 x 28."""
    found = np.zeros((5, 1, 28, 28), np.float32)
    found[:, :, 3:25, 9:19] = np.linspace(0.4, 0.9, 5, dtype=np.float32)[:, None, None, None]
    return found


@pytest.mark.parametrize("name", CORRUPTIONS)
@pytest.mark.parametrize("severity", SEVERITIES)
def test_images_stay_images_and_the_ones_given_are_left_alone(
    name: str, severity: int, pictures: Images
) -> None:
    before = pictures.copy()
    found = CORRUPTIONS[name](pictures, severity, np.random.default_rng(CHANCE))
    assert (found.shape, found.dtype) == (pictures.shape, np.float32)
    assert found.min() >= 0.0
    assert found.max() <= 1.0
    assert np.array_equal(pictures, before)
    again = CORRUPTIONS[name](pictures, severity, np.random.default_rng(CHANCE))
    assert np.array_equal(found, again)


@pytest.mark.parametrize("name", [name for name in CORRUPTIONS if name != "identity"])
def test_the_highest_severity_does_more_than_the_lowest(name: str, pictures: Images) -> None:
    def damage(severity: int) -> float:
        found = CORRUPTIONS[name](pictures, severity, np.random.default_rng(CHANCE))
        return float(np.abs(found - pictures).mean())

    assert 0.0 < damage(1) < damage(5)


def test_no_two_do_the_same(pictures: Images) -> None:
    made = {
        corruption(pictures, 3, np.random.default_rng(CHANCE)).tobytes()
        for corruption in CORRUPTIONS.values()
    }
    assert len(made) == len(CORRUPTIONS)


def test_some_by_hand() -> None:
    image = np.arange(16, dtype=np.float32).reshape(1, 1, 4, 4) / 20
    moved = CORRUPTIONS["translation"](image, 1, np.random.default_rng(0))
    assert moved[0, 0, 1:, 1:].tolist() == image[0, 0, :3, :3].tolist()
    assert moved[0, 0, 0].tolist() == [0.0] * 4
    coarse = CORRUPTIONS["pixelate"](image, 1, np.random.default_rng(0))
    assert coarse[0, 0].tolist() == image[0, 0][[0, 0, 2, 2]][:, [0, 0, 2, 2]].tolist()
    np.testing.assert_allclose(CORRUPTIONS["brightness"](image, 2, np.random.default_rng(0)), image + 0.2)
