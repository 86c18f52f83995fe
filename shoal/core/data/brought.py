"""Data as people bring them, as arrays: torch's tensors and data sets, pandas' frames, lists of pairs.

Neither torch nor pandas is imported: such an object brings its own. `what` names the source in an error.
"""

import sys
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from shoal.core.data.labels import is_missing, listed
from shoal.core.errors import DataFault, ShoalError, near
from shoal.core.types import Array


def by_row(row: int) -> str:
    return f"in row {row} (from 0)"


def array(what: str, part: str, values: Any) -> Array:
    """An array, a tensor on any device, a column of a frame, a sparse matrix, or nested lists, as an array.

    Raises DataFault for lists whose rows differ in length, and for a masked array with masked values.
    """
    if np.ma.is_masked(values):  # numpy would take what lies under the mask
        raise DataFault(f"{what}: {part} has masked values", "fill them, or drop such samples")
    if _is_of("torch", values) and hasattr(values, "detach"):
        values = values.detach().cpu()
        values = values.float() if str(values.dtype) == "torch.bfloat16" else values
    if _is_of("scipy", values) and hasattr(values, "toarray"):
        values = values.toarray()  # networks take no sparse matrices
    try:
        return np.asarray(values)
    except ValueError:
        raise DataFault(f"{what}: {part} is ragged: its rows differ in length", "pad them") from None
    except (TypeError, RuntimeError) as error:  # a list of tensors on a GPU, say
        raise DataFault(
            f"{what}: {part} cannot be read as an array: {error}"[:500], "stack it first"
        ) from None


def is_frame(data: object) -> bool:
    """Whether it is a DataFrame of pandas."""
    return _is_of("pandas", data) and hasattr(data, "columns")


def features(what: str, data: Any, where: Callable[[int], str] = by_row) -> Array:
    """x of what was brought: (n, columns) of a frame, or an array.

    Columns of numbers and booleans are features, as float32; a frame of bytes only stays bytes, which are
    pixels. where: how an error says in which row something is missing. Raises DataFault for other columns,
    which it names, and for missing values.
    """
    if not is_frame(data):
        return array(what, "x", data)
    names = [str(name) for name in data.columns]
    if not names:
        raise DataFault(f"{what} has no column of features", "leave at least one beside the label")
    if all(str(kind) == "uint8" for kind in data.dtypes):
        return np.asarray(data)
    found = np.stack([_column(what, name, data.iloc[:, place]) for place, name in enumerate(names)], axis=1)
    for place, name in enumerate(names):
        if not (right := np.isfinite(found[:, place])).all():
            row = int(right.argmin())
            value = "missing" if np.isnan(found[row, place]) else str(found[row, place])
            raise DataFault(f"{what}: column {name!r} is {value} {where(row)}", "fill or drop such rows")
    return found


def _column(what: str, name: str, values: Any) -> Array:
    """A column of numbers or booleans as (n,) float32, where missing values are NaN. Raises DataFault."""
    leave = f"leave it out: frame.drop(columns={name!r})"
    kind = getattr(values.dtype, "kind", "O")
    if kind in "biuf":
        found: Array = values.to_numpy(dtype=np.float32, na_value=np.nan)
        return found
    if kind in "mM":
        raise DataFault(
            f"{what}: column {name!r} has times", f"{leave}, or make a number of it, such as days"
        )
    given = [value for value in values.tolist() if not is_missing(value)]
    words = [value for value in given if isinstance(value, str)]
    if str(values.dtype) == "category" or words:
        such = f", such as {words[0]!r}" if words else ""
        what_it_is = "text" if words else "categories"
        raise DataFault(
            f"{what}: column {name!r} is {what_it_is}{such}",
            f"{leave}, or make numbers of it: pandas.get_dummies(frame, columns=[{name!r}])",
        )
    try:
        return np.array([np.nan if is_missing(value) else value for value in values.tolist()], np.float32)
    except (TypeError, ValueError):
        raise DataFault(
            f"{what}: column {name!r} has things of type {type(given[0]).__name__}", leave
        ) from None


def pair(what: str, data: Any) -> tuple[Any, Any] | None:
    """x and y of a data set of torch, or of any list of pairs (x, y); None for other things.

    A data set is read item by item, and a TensorDataset, or parts of one, at once. Raises DataFault for one
    that cannot be read like that, and for an item that is no pair.
    """
    if (loader := _loader_of(data)) is not None:
        raise DataFault(
            f"{what} is given a {loader}, which mixes samples", "give its data set: loader.dataset"
        )
    if (tensors := _tensors_of(data)) is not None:
        if len(tensors) != 2:
            raise DataFault(f"{what} is given a data set of {len(tensors)} tensors", "give it x and y")
        return tensors
    torch = _utils()
    if torch is not None and isinstance(data, torch.Dataset) and not hasattr(type(data), "__len__"):
        raise DataFault(
            f"{what} is given a {type(data).__name__}, which has no length", "give list(dataset), if it ends"
        )
    if not _is_list_of_pairs(data):
        return None
    items = [_item(what, data, number) for number in range(len(data))]
    if not items:
        raise DataFault(f"{what} has no samples", "a device needs at least one")
    samples = [array(what, f"sample {number}", x) for number, (x, _) in enumerate(items)]
    for number, sample in enumerate(samples):
        if sample.shape != samples[0].shape:
            raise DataFault(
                f"{what}: sample {number} has shape {sample.shape}, and sample 0 has {samples[0].shape}",
                "bring all samples into one shape",
            )
    labels = [y.item() if hasattr(y, "item") and getattr(y, "ndim", 1) == 0 else y for _, y in items]
    return np.stack(samples), labels


def named(data: Any) -> str:
    """What something is, for an error."""
    if isinstance(data, tuple | list):
        return f"{len(data)} things"
    return f"a {type(data).__name__}"


def cure(data: Any) -> str:
    """What to give in place of something that is no data of a device."""
    if not is_frame(data):
        return "give a pair of arrays (x, y), a data set of torch, or a shoal.Dataset"
    names = [str(name) for name in data.columns]
    label = next(
        (name for name in names if name in ("label", "class", "target", "y")), names[-1] if names else "y"
    )
    return (
        f"give (frame.drop(columns={label!r}), frame[{label!r}]), or all devices in one frame: "
        "shoal.Fleet.from_frame(frame, device=..., label=...)"
    )


def column_named(frame: Any, name: str, purpose: str) -> Any:
    """A column of a frame. Raises DataFault, which says what is near, where there is none, or two."""
    names = [str(each) for each in frame.columns]
    if names.count(name) > 1:
        raise DataFault(f"two columns of the frame are called {name!r}", "rename one")
    if name not in names:
        hint = near(name, names)
        hint = hint if len(names) <= 8 or not hint.startswith("known: ") else f"known: {listed(names)}"
        raise DataFault(f"the frame has no column {name!r}, {purpose}", hint)
    return frame.iloc[:, names.index(name)]


def _is_of(package: str, data: object) -> bool:
    return type(data).__module__.partition(".")[0] == package


def _utils() -> Any:
    """torch.utils.data, if a data set of it can be here at all."""
    return sys.modules.get("torch.utils.data")


def _loader_of(data: object) -> str | None:
    torch = _utils()
    return type(data).__name__ if torch is not None and isinstance(data, torch.DataLoader) else None


def _tensors_of(data: Any) -> tuple[Any, ...] | None:
    """The tensors of a TensorDataset, or of a part of one; None for other things, such as a class derived
    from one of them that gives its items in a way of its own."""
    torch = _utils()
    if torch is None:
        return None
    gives = getattr(type(data), "__getitem__", None)
    if gives is torch.TensorDataset.__getitem__:
        return tuple(data.tensors)
    if gives is torch.Subset.__getitem__:
        whole = _tensors_of(data.dataset)
        return None if whole is None else tuple(each[list(data.indices)] for each in whole)
    return None


def _is_list_of_pairs(data: Any) -> bool:
    """Whether it has a length and items, and is no array, frame or pair of such."""
    if isinstance(data, list):
        # A list may also be [x, y]; samples are pairs of which the second is a single label.
        return bool(data) and all(
            isinstance(each, tuple) and len(each) == 2 and _single(each[1]) for each in data
        )
    plain = isinstance(data, str | bytes | tuple | Mapping) or hasattr(data, "dtype") or is_frame(data)
    has_items = hasattr(type(data), "__getitem__") and hasattr(type(data), "__len__")
    return has_items and not plain and not _is_of("pandas", data)


def _single(label: Any) -> bool:
    return isinstance(label, str | bool | int | float) or getattr(label, "ndim", None) == 0


def _item(what: str, data: Any, number: int) -> tuple[Any, Any]:
    try:
        found = data[number]
    except ShoalError:
        raise
    except Exception as error:
        # Only here, since devices without PyTorch load this module too, and have little memory.
        from shoal.core.tracebacks import line_of_author

        where = line_of_author(error)
        raise DataFault(
            f"{what}: sample {number} of its data set cannot be read: {type(error).__name__}: {error}"[:1000],
            f"look at {where}" if where else "read it by itself, and fix it",
        ) from error
    if not isinstance(found, tuple | list) or len(found) != 2:
        raise DataFault(
            f"{what}: sample {number} of its data set is {named(found)}", "samples are pairs (x, y)"
        )
    return found[0], found[1]
