"""The data sets of the comparisons, by name; and any other, by its path.

| name            | from                                     | train  | test   | pixels uint8 | classes |
|-----------------|------------------------------------------|--------|--------|--------------|---------|
| `mnist`         | four idx files in `data_dir`             | 60,000 | 10,000 | 28x28        | 10      |
| `fashion-mnist` | the same                                 | 60,000 | 10,000 | 28x28        | 10      |
| `kmnist`        | the same                                 | 60,000 | 10,000 | 28x28        | 10      |
| `cifar-10`      | its binary files, or pictures in folders | 50,000 | 10,000 | 3x32x32      | 10      |
| `cifar-100`     | the same, with the fine labels           | 50,000 | 10,000 | 3x32x32      | 100     |
| `digits`        | scikit-learn, bundled                    | 1,438  | 359    | 8x8          | 10      |

`imagenette` (10 classes), `busi` (3) and `lunghist700` (3), of FMCL, are pictures in folders, brought to
3x64x64.
`shoal.simulation.images` says how `digits` is split.
`shoal_lab.datasets.files` says what a path may be.
"""

from __future__ import annotations

import difflib
from pathlib import Path

from shoal.core.data.dataset import Dataset
from shoal.simulation.images import digits
from shoal_lab.datasets import files

CLASSES = {
    "busi": 3,
    "cifar-10": 10,
    "cifar-100": 100,
    "digits": 10,
    "fashion-mnist": 10,
    "imagenette": 10,
    "kmnist": 10,
    "lunghist700": 3,
    "mnist": 10,
}
SHAPES = dict.fromkeys(("busi", "imagenette", "lunghist700"), (3, 64, 64))
"""Into which pictures of unlike sizes are brought; the FMCL paper does not say into which."""
NAMES = tuple(CLASSES)


def load(name: str, data_dir: Path | str | None = None, label: str = "") -> tuple[Dataset, Dataset]:
    """Train and test set `name`, one of `NAMES` or a path: x (n, ...), y (n,) int64 from 0.

    `data_dir`: the folder of the data set's files, or one that holds a folder for each data set; `digits` and
    paths need none. `label`: the column of classes, of a table.

    Raises ValueError for an unknown name, a missing `data_dir` or a damaged file; FileNotFoundError for
    missing files; DataFault for files that cannot be read otherwise.
    """
    if name not in NAMES:
        if (path := Path(name)).exists():
            return files.load(path, label)
        near = difflib.get_close_matches(name, NAMES, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise ValueError(
            f"unknown data set {name!r}: {hint}known are {', '.join(NAMES)}, and paths of files and folders"
        )
    if name == "digits":
        return digits()
    if data_dir is None:
        raise ValueError(f"{name} is read from files: give the folder that has them (--data-dir)")
    inner = Path(data_dir) / name
    folder = inner if inner.is_dir() else Path(data_dir)
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder} is not a folder: point data_dir at the folder that has {name}")
    train, test = files.load(folder, shape=SHAPES.get(name, ()))
    for part in (train, test):
        if part.y is not None and part.y.max(initial=0) >= CLASSES[name]:
            raise ValueError(
                f"{folder}: has the label {part.y.max()}, not 0..{CLASSES[name] - 1}; fetch the files again"
            )
    return train, test
