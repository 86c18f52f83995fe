"""Data sets, read from files or bundled: images that a shift makes differ, and data that differ by nature.

    datasets.digits()                    8x8 digits, bundled with scikit-learn
    datasets.mnist("data/mnist")         28x28 digits, from the four idx files as published
    datasets.fashion_mnist("data")       28x28 clothes, likewise
    datasets.read("pictures/")           any data set in a file or a folder

Each gives a pair (train, test) of `shoal.Dataset`.
"""

from pathlib import Path

from shoal.core.data.dataset import Dataset
from shoal_lab.datasets import files, images


def digits() -> tuple[Dataset, Dataset]:
    """1,438 and 359 images of 8x8 digits."""
    return images.load("digits")


def mnist(folder: Path | str) -> tuple[Dataset, Dataset]:
    """60,000 and 10,000 images of 28x28 digits. Raises ValueError or FileNotFoundError."""
    return images.load("mnist", folder)


def fashion_mnist(folder: Path | str) -> tuple[Dataset, Dataset]:
    """60,000 and 10,000 images of 28x28 clothes. Raises ValueError or FileNotFoundError."""
    return images.load("fashion-mnist", folder)


def read(path: Path | str, label: str = "") -> tuple[Dataset, Dataset]:
    """The data set in a file or a folder: npz, csv, parquet, idx, CIFAR's binary files, or pictures.

    label: the column of classes, of a table. `shoal_lab.datasets.files` says what a path may be. Raises
    DataFault, ValueError or FileNotFoundError, which all say what to do.
    """
    return files.load(Path(path), label)
