"""Synthetic sets. The 2x2 images spell their row number, so that a test can tell which rows a device has."""

import numpy as np
import pytest

from shoal.core.data.dataset import Dataset


def spelled(count: int) -> Dataset:
    """`count` images (2, 2) uint8, the bytes of their row number; row i is of class (7 i) mod 10."""
    rows = np.arange(count, dtype=np.uint32)
    return Dataset(rows.view(np.uint8).reshape(count, 2, 2), rows.astype(np.int64) * 7 % 10)


@pytest.fixture(scope="session")
def mnist_sized() -> tuple[Dataset, Dataset]:
    return spelled(60_000), spelled(10_000)


@pytest.fixture(scope="session")
def small() -> tuple[Dataset, Dataset]:
    return spelled(1_003), spelled(207)


@pytest.fixture(scope="session")
def pictures() -> tuple[Dataset, Dataset]:
    """60 train and 40 test images of 8x8 noise, of all ten classes."""
    noise = np.random.RandomState(7).randint(0, 256, (100, 8, 8)).astype(np.uint8)
    classes = np.arange(100) % 10
    return Dataset(noise[:60], classes[:60]), Dataset(noise[60:], classes[60:])
