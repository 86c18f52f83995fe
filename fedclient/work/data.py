"""Reads a device's files into `Views`. A file is not trusted: every fault is a DataFault that names it.

    npz     arrays x and, with labels, y; perhaps x_test and y_test. Pickled objects are refused.
    csv     a line of names, then numbers; `label` names the column of classes, which may be words; x is the
            columns that `columns` names, in its order, or else all others but those that `ignore` names
    parquet the same columns, where pyarrow is installed; lists of numbers count as columns
    idx     the files of MNIST: images, and labels where there are any
    images  a folder of pictures, or a tar archive of one, with a folder in it for each class; it needs Pillow
    module  "package.module:function" of the owner's: () -> (x, y or None), a data set of torch, a Dataset, or
            Views

Data without labels can be placed and classified, but not trained on. Classes are integers from 0, or names
that `classes` lists: two devices that number the same words by themselves would number them differently. With
`regression` labels are numbers to predict.

Bytes are read as pixels and scaled to 0 to 1; other numbers become float32. `divide_by` overrides both.
"""

import csv
import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from fedclient.config import TABLES, DataConfig, LearnerConfig, WorkConfig
from shoal.core.data import arrays as checked
from shoal.core.data import brought
from shoal.core.data.dataset import Dataset
from shoal.core.data.labels import Named, by_row, numbers, placed
from shoal.core.data.labels import read as read_labels
from shoal.core.data.views import Views
from shoal.core.errors import ConfigError, DataFault, ShoalError, WrongShape
from shoal.core.types import Array
from shoal.shell.readers import (
    Arrays,
    columns_of,
    kind_of,
    read_csv,
    read_idx,
    read_images,
    read_npz,
    read_numbered,
    read_parquet,
)
from shoal.shell.readers.folders import files_below
from shoal.shell.readers.tables import line_of

LISTED = 1000
"""The most classes that are counted for people, lowest first: a message has a size limit."""


def open_views(config: WorkConfig) -> Views:
    """The data to work on."""
    if config.file is not None:
        return Views.of(load_file(config.file, config.data))
    if config.data is None:
        raise ConfigError("no data are given", "set `data`, for example data: {npz: train.npz}")
    return load(config.data, config.labels)


def source_of(config: WorkConfig) -> str:
    """A name for where the data come from, and nothing about them. Another file is another source."""
    place = config.file or (config.data.module or config.data.path if config.data else "")
    return sha256(str(place).encode()).hexdigest()


def state_of(config: WorkConfig) -> object | None:
    """What differs once the data were changed, found without reading them; None where that is not known."""
    path = config.file or (config.data.path if config.data and config.data.module is None else None)
    if path is None:
        return None
    try:
        below = (file for _, file in files_below(path)) if path.is_dir() else ()
        return tuple((str(each), each.stat().st_mtime_ns, each.stat().st_size) for each in (path, *below))
    except (OSError, DataFault):
        return None


def shown(views: Views, x: Array) -> dict[str, Any]:
    """What `fedclient check` shows of data, as JSON values. x: what the network sees of the training part."""
    known = [part.y for part in (views.train, views.held_out) if len(part) and part.y is not None]
    regression = bool(known) and known[0].dtype.kind == "f"
    counts, class_count = None, 0
    if known and not regression:
        classes, found = np.unique(np.concatenate(known), return_counts=True)
        class_count = len(classes)
        counts = dict(zip(map(str, classes[:LISTED].tolist()), found[:LISTED].tolist(), strict=True))
    return {
        "samples": {
            "train": len(views.train),
            "held_out": len(views.held_out),
            "test": None if views.test is None else len(views.test),
        },
        "shape": list(x.shape[1:]),
        "dtype": x.dtype.name,
        "range": [x.min().item(), x.max().item()],
        "classes": counts,
        "class_count": class_count,
        "regression": regression,
    }


def load(config: DataConfig, labels: bool = True) -> Views:
    """The device's data. labels: False where neither labels nor a test part are needed: files of such are
    not opened then, and a csv file may lack its column of classes.

    Raises DataFault for data that are not usable, ConfigError for a module that is not there.
    """
    if config.module is not None:
        return _from_module(config.module, config)
    path = config.path
    data = _dataset(path, _read(config.kind, path, config, config.labels if labels else None, labels), config)
    if not labels:
        return Views.of(data)
    test = None
    if config.test is not None:
        arrays = _read(config.kind, config.test, config, config.test_labels, labels)
        _check_order(config.test, config)
        test = _dataset(config.test, arrays, config)
    elif config.npz is not None and (found := read_npz(path, "x_test", "y_test")) is not None:
        test = _dataset(path, found, config)
    if test is not None and test.x.shape[1:] != data.x.shape[1:]:
        shapes = f"{list(test.x.shape[1:])}, and {list(data.x.shape[1:])} for training"
        raise DataFault(
            f"{config.test or path}: a test sample has shape {shapes}", "bring them into one shape"
        )
    if test is not None:
        checked.check_scales([(str(path), data.x), (f"{config.test or path}, to test on,", test.x)])
    return Views.of(data, test, config.held_out)


def load_file(path: Path, config: DataConfig | None) -> Dataset:
    """One more file, in the shape and scale of `config`. Labels may be missing.

    A file that ends in .npz, .csv or .parquet is one, and a folder or a tar archive is of images; else it is
    of the kind of `config`, or idx. Raises DataFault.
    """
    if config is None or config.module is not None:
        config = DataConfig(idx=path)
    kind = kind_of(path) or config.kind
    labels_path = config.labels if path == config.idx else None
    arrays = _read(kind, path, config, labels_path, labels=False)
    _check_order(path, config)
    return _dataset(path, arrays, config)


def _check_order(path: Path, config: DataConfig) -> None:
    """Raises DataFault where a further table has the columns of the device's own in another order, unless the
    settings give the order."""
    kind = kind_of(path) or config.kind
    if kind not in TABLES or config.kind not in TABLES or config.columns:
        return
    with suppress(OSError, ValueError, csv.Error):  # the device's own may be gone, where a model is only used
        left_out = {config.label, *config.ignore}
        one, other = (
            [name for name in columns_of(*each) if name not in left_out]
            for each in ((path, kind), (config.path, config.kind))
        )
        cure = "write the columns of both in one order; or data.columns gives it"
        checked.check_order(str(path), one, str(config.path), other, cure)


@contextmanager
def columns_named(
    file: Path | None, config: DataConfig | None, learner: LearnerConfig | None = None
) -> Iterator[None]:
    """Around the use of a network on `file`, or on the file of `config`: a csv file with the wrong number of
    columns is the fault of the data and not of the learner. Raises DataFault.

    learner: from which the network can still be made in another size.
    """
    try:
        yield
    except WrongShape as fault:
        path, values = file or (config.csv or config.parquet if config else None), fault.values
        if path is None or kind_of(path) not in TABLES or values is None:
            raise
        unnamed = config is None or config.label is None
        hint = "name the class column with data.label" if unnamed else "name the columns with data.columns"
        if values[0] < values[1]:
            hint = "add the columns that are missing"
        if learner is not None and learner.builtin == "mlp":  # whose default is the size of an image
            hint = f"set learner.options, inputs: {values[0]}, if all of them are features; or {hint}"
        problem = f"{path} has {values[0]} columns, the network takes {values[1]}"
        raise DataFault(problem, hint) from fault


def _read(kind: str, path: Path, config: DataConfig, labels_path: Path | None, labels: bool) -> Arrays:
    try:
        if kind in TABLES:
            read = read_csv if kind == "csv" else read_parquet
            return read(path, config.label, labels, config.columns, config.ignore, not config.regression)
        if kind == "images":
            if not labels:
                return read_images(path, shape=config.shape)[0], None
            return read_numbered(path, config.shape, config.classes)
        if kind == "idx":
            return read_idx(path, labels_path)
        arrays = read_npz(path)
    except OSError as error:
        name = error.filename or path  # there may be a second file, of labels
        allowed = not isinstance(error, PermissionError)
        hint = "give the path of a file to read" if allowed else "let the user who runs this read it"
        raise DataFault(f"{name}: {error.strerror or error}", hint) from None
    if arrays is None:
        raise DataFault(f"{path} has no array x", "save it with numpy.savez(path, x=..., y=...)")
    return arrays


def _from_module(name: str, config: DataConfig) -> Views:
    """What the owner's function gives, with the share of it held out that the settings say."""
    module, _, function = name.partition(":")
    try:
        call: Callable[[], Any] = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"data.module {name!r}: {error}", "write package.module:function") from error
    try:
        found = call()
    except ShoalError:
        raise
    except Exception as error:
        problem = f"{name}() failed: {type(error).__name__}: {error}"
        raise DataFault(problem, "call it by itself and fix it") from error
    pair = found if isinstance(found, tuple) and len(found) == 2 else brought.pair(name, found)
    if pair is not None:
        x, y = brought.features(name, pair[0]), pair[1]
        found = checked.paired(
            name, x, None if y is None else _labels(name, brought.array(name, "y", y), config)
        )
    if isinstance(found, Dataset):
        return Views.of(found, share=config.held_out)
    if not isinstance(found, Views):
        raise DataFault(f"{name}() returned {brought.named(found)}", "return (x, y), or (x, None)")
    return found


def _dataset(path: Path, arrays: Arrays, config: DataConfig) -> Dataset:
    """What was read, checked, scaled and in shape."""
    x, y = arrays
    if x.ndim == 0 or x.size == 0:
        raise DataFault(f"{path} contains no samples", "a device needs at least one")
    x = _shaped(path, checked.samples(str(path), x, config.divide_by), config.shape)
    if y is not None:
        y = _labels(str(path), y, config, _finder(path, config))
    return checked.paired(str(path), x, y)


def _labels(what: str, y: Array, config: DataConfig, named: Named = by_row) -> Array:
    """Numbers to predict, or the numbers of classes."""
    y = checked.column(y)
    if config.regression:
        return checked.targets(what, y)
    if not config.classes or config.kind == "images":  # whose folders have been numbered
        return numbers(what, y, named)
    return placed(what, read_labels(what, y, named), config.classes, named)


def _finder(path: Path, config: DataConfig) -> Named:
    """How a wrong label is named, so that its owner finds it."""
    if (kind_of(path) or config.kind) != "csv":
        return by_row

    def in_line(row: int) -> str:
        try:
            return f"the label in line {line_of(path, row)}, column {config.label!r}"
        except (OSError, ValueError, csv.Error, StopIteration):  # another file has taken its place since
            return by_row(row)

    return in_line


def _shaped(path: Path, x: Array, shape: tuple[int, ...]) -> Array:
    if not shape:
        return x
    if x[0].size != np.prod(shape):
        problem = f"a sample of shape {list(x.shape[1:])} cannot become {list(shape)}"
        raise DataFault(f"{path}: {problem}", "fix data.shape")
    return x.reshape(len(x), *shape)
