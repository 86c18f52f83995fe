"""Any data set in files, as a train and a test part, by the readers that devices use too.

| a path                               | train and test part                                              |
|--------------------------------------|------------------------------------------------------------------|
| an npz file                          | arrays x, y, and x_test, y_test; without these two, a fifth of x |
| a csv or parquet file                | `label` names the column of classes; the test part is a fifth    |
| a folder with the four idx files     | as published for MNIST, Fashion-MNIST and KMNIST                 |
| a folder with CIFAR's binary files   | data_batch_1.bin ..., or train.bin with the fine labels          |
| a folder of pictures, or an archive  | folders train and test, each with a folder for each class;       |
| of one, such as images.tar.xz        | without these two, a fifth of the pictures                       |
| a folder with one archive in it      | that archive                                                     |

The fifth is drawn at random, always the same one. Folders of pictures are numbered in the order of their
names, and so are labels that are words, or whole numbers other than 0 to C-1.
"""

from functools import lru_cache
from pathlib import Path

import numpy as np

from shoal.core.data import arrays as checked
from shoal.core.data import labels
from shoal.core.data.dataset import Dataset
from shoal.core.data.seeds import generator
from shoal.core.errors import DataFault
from shoal.shell import idx
from shoal.shell.readers import (
    Arrays,
    kind_of,
    numbered,
    read_csv,
    read_npz,
    read_parquet,
)
from shoal.shell.readers.images import decoded, pictures, within

Pair = tuple[Dataset, Dataset]
SEED = 42
CIFAR = 3 * 32 * 32
IDX = "{}-images-idx3-ubyte", "{}-labels-idx1-ubyte"
PACKED = (".tar", ".tar.gz", ".tgz", ".tar.xz", ".tar.bz2")


@lru_cache(maxsize=2)
def load(path: Path, label: str = "", shape: tuple[int, ...] = ()) -> Pair:
    """The two parts of the data set in a path. The last two stay in memory, since experiments repeat.

    shape: into which pictures are brought, see `shoal.shell.readers.images`.

    Raises DataFault, and ValueError or FileNotFoundError for idx files, which all say what to do.
    """
    try:
        return _load(path, label, shape)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise DataFault(f"{path}: {error.strerror or error}", "give the path of a data set") from None


def _load(path: Path, label: str, shape: tuple[int, ...]) -> Pair:
    if path.is_dir():
        if any(path.glob("train-images-idx3-ubyte*")):
            return _idx(path, "train"), _idx(path, "t10k")
        if cifar := _cifar(path):
            return cifar
        archives = [found for found in sorted(path.iterdir()) if found.name.endswith(PACKED)]
        return _pictures(archives[0] if len(archives) == 1 else path, shape)
    kind = kind_of(path)
    if kind == "images":
        return _pictures(path, shape)
    if kind == "npz":
        own, test = read_npz(path), read_npz(path, "x_test", "y_test")
        if own is None:
            raise DataFault(f"{path} has no array x", "save it with numpy.savez(path, x=..., y=...)")
        return _named(path, own, test)
    if kind in ("csv", "parquet"):
        if not label:
            raise DataFault(f"{path} is a table", "name its column of classes: --label COLUMN")
        return _named(
            path, (read_csv if kind == "csv" else read_parquet)(path, label, True, words=True), None
        )
    raise DataFault(
        f"{path} is no data set", "give an npz, csv or parquet file, or a folder or archive of pictures"
    )


def _named(path: Path, own: Arrays, test: Arrays | None) -> Pair:
    """The two parts of what was read, whose labels may be names."""
    parts = [own] if test is None else [own, test]
    read = [None if y is None else labels.read(str(path), y) for _, y in parts]
    names = labels.names_of({str(path): known}) if (known := [y for y in read if y is not None]) else None
    found = [
        _dataset(path, (x, None if y is None else labels.placed(str(path), y, names)))
        for (x, _), y in zip(parts, read, strict=True)
    ]
    return _split(found[0]) if test is None else (found[0], found[1])


def _dataset(path: Path, arrays: Arrays) -> Dataset:
    x, y = arrays
    if y is None:
        raise DataFault(f"{path} has no labels", "experiments need the class of each sample")
    if x.ndim < 2 or x.size == 0:
        raise DataFault(f"{path}: x has shape {x.shape}", "give one sample in each row")
    return checked.paired(str(path), checked.samples(str(path), x), y)


def _split(data: Dataset) -> Pair:
    """Without a test part of its own: a fifth of the samples, at random."""
    order, count = generator(SEED, "test part").permutation(len(data)), max(1, len(data) // 5)
    return data.subset(order[count:]), data.subset(order[:count])


def _pictures(path: Path, shape: tuple[int, ...]) -> Pair:
    found = pictures(path)
    train, test = within(found, "train"), within(found, "test")
    if not train or not test:
        x, names = decoded(path, found, shape)
        return _split(_dataset(path, (x, numbered(path, names, sorted(set(names or ()))))))
    x, names = decoded(path, train, shape)
    x_test, test_names = decoded(path, test, shape)
    classes = sorted(set(names or ()))
    return (
        _dataset(path, (x, numbered(path, names, classes))),
        _dataset(path, (x_test, numbered(path, test_names, classes))),
    )


def _cifar(folder: Path) -> Pair | None:
    """CIFAR's binary version: a label, or a coarse and a fine one, and 3,072 bytes for each image."""
    for train, test, before in (
        ([folder / f"data_batch_{number}.bin" for number in range(1, 6)], folder / "test_batch.bin", 1),
        ([folder / "train.bin"], folder / "test.bin", 2),
    ):
        if train[0].is_file():
            if missing := [path.name for path in (*train, test) if not path.is_file()]:
                raise FileNotFoundError(f"{folder} lacks {' and '.join(missing)}: unpack the archive again")
            return _records(train, before), _records([test], before)
    return None


def _records(paths: list[Path], before: int) -> Dataset:
    found = []
    for path in paths:
        data = np.frombuffer(path.read_bytes(), np.uint8)
        if not data.size or data.size % (before + CIFAR):
            raise DataFault(f"{path} is not a whole file of CIFAR's binary version", "fetch it again")
        found.append(data.reshape(-1, before + CIFAR))
    rows = np.concatenate(found)
    return Dataset(rows[:, before:].reshape(-1, 3, 32, 32), rows[:, before - 1].astype(np.int64))


def _idx(folder: Path, part: str) -> Dataset:
    """One part ("train" or "t10k", MNIST's name for test) from its image file and its label file."""
    images, labels = _find(folder, *(name.format(part) for name in IDX))
    x, y = idx.read(images), idx.read(labels)
    if x.ndim != 3:
        raise ValueError(f"{images}: holds shape {x.shape}, not images (n, h, w); are the files swapped?")
    if y.ndim != 1 or len(y) != len(x):
        raise ValueError(
            f"{labels}: holds shape {y.shape}, not one label for each of the {len(x)} images in {images}"
        )
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
