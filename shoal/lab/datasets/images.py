"""The image sets of the comparisons, by name.

| name            | from                                        | train  | test   | pixels             |
|-----------------|---------------------------------------------|--------|--------|--------------------|
| `mnist`         | four idx files in `data_dir`                | 60,000 | 10,000 | 28x28 uint8 0..255 |
| `fashion-mnist` | four idx files in `data_dir`                | 60,000 | 10,000 | 28x28 uint8 0..255 |
| `digits`        | scikit-learn, bundled                       | 1,438  | 359    | 8x8 uint8 0..255   |

All have 10 classes. `digits` comes as one set of 1,797 images with values 0..16: they are scaled by 255/16
and rounded, put in the order of `RandomState(0).permutation(1797)`, and the first 1,438 (80%) are
always the train set.
"""

from __future__ import annotations

import difflib
import importlib
from pathlib import Path

import numpy as np

from shoal.core.data.dataset import Dataset
from shoal.shell import idx

NAMES = ("digits", "fashion-mnist", "mnist")
_CLASSES = 10
_DIGITS_TRAIN = 1438


def load(name: str, data_dir: Path | str | None = None) -> tuple[Dataset, Dataset]:
    """Train and test set `name` (one of `NAMES`): x (n, h, w) uint8, y (n,) int64 in 0..9.

    `data_dir`: the folder with the four idx files, or one that holds a folder for each data set; `digits`
    needs none.

    Raises ValueError for an unknown name, a missing `data_dir` or a damaged file; FileNotFoundError for
    missing files.
    """
    if name not in NAMES:
        near = difflib.get_close_matches(name, NAMES, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise ValueError(f"unknown data set {name!r}: {hint}known are {', '.join(NAMES)}")
    if name == "digits":
        return _digits()
    if data_dir is None:
        raise ValueError(f"{name} is read from files: give the folder that has them (--data-dir)")
    inner = Path(data_dir) / name
    folder = inner if inner.is_dir() else Path(data_dir)
    return _pair(folder, "train"), _pair(folder, "t10k")


def _digits() -> tuple[Dataset, Dataset]:
    # By name, so that scikit-learn is needed only by those who ask for its digits.
    bundled = importlib.import_module("sklearn.datasets").load_digits()
    order = np.random.RandomState(0).permutation(len(bundled.target))
    everything = Dataset(np.rint(bundled.images * (255 / 16)).astype(np.uint8), bundled.target)
    return everything.subset(order[:_DIGITS_TRAIN]), everything.subset(order[_DIGITS_TRAIN:])


def _pair(folder: Path, part: str) -> Dataset:
    """One part ("train" or "t10k", MNIST's name for test) from its image file and its label file."""
    images, labels = _find(folder, f"{part}-images-idx3-ubyte", f"{part}-labels-idx1-ubyte")
    x, y = idx.read(images), idx.read(labels)
    if x.ndim != 3:
        raise ValueError(f"{images}: holds shape {x.shape}, not images (n, h, w); are the files swapped?")
    if y.ndim != 1 or len(y) != len(x):
        raise ValueError(
            f"{labels}: holds shape {y.shape}, not one label for each of the {len(x)} images in {images}"
        )
    if y.max() >= _CLASSES:
        raise ValueError(f"{labels}: has the label {y.max()}, not 0..{_CLASSES - 1}; fetch the file again")
    return Dataset(x, y.astype(np.int64))


def _find(folder: Path, *names: str) -> list[Path]:
    """Each file as published (.gz) or unpacked."""
    found = [next((p for p in (folder / f"{n}.gz", folder / n) if p.is_file()), None) for n in names]
    missing = [name for name, path in zip(names, found, strict=True) if path is None]
    if missing:
        raise FileNotFoundError(
            f"{folder} lacks {' and '.join(missing)} (with or without .gz): download the four idx "
            "files into that folder, or point data_dir at the folder that has them"
        )
    return [path for path in found if path is not None]
