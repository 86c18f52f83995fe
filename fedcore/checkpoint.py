"""Any frozen value as JSON and blobs, and back, exactly: how states and reports survive a restart.

    state  <-- encode / decode -->  structure (JSON-able) + one blob for each set of tensors

The type hints say what stands where, so nothing is looked up by a name that was read: a structure that does
not fit the hints is refused. What may be stored: frozen dataclasses, `Mapping[str, ...]`, tuples, sets of
tensors, numpy arrays, enums, str, int, float, bool and None, and unions of these.

Sets of tensors go out by `keep` and come back by `load`, as in `fedcore.payload`: the blob of a model in a
checkpoint is the blob that tasks refer to. Other arrays are small and stand in the structure.
"""

import base64
import dataclasses
import enum
import functools
import math
import struct
import typing
from collections.abc import Mapping
from types import NoneType, UnionType
from typing import Any

import numpy as np

from fedcore.errors import DataFault
from fedcore.payload import Keep, Load, Weights
from fedcore.tensors import Manifest
from fedcore.types import Array, Tensors

FORMAT = 1
"""Version of the structure."""

Structure = Mapping[str, Any]
"""What `json.dumps` takes and `json.loads` gives back."""


def encode(hint: Any, value: Any, keep: Keep) -> Structure:
    """The structure of `value`, which is of type `hint`. Raises TypeError for what cannot be stored."""
    return {"format": FORMAT, "value": _encode(hint, value, keep, "state")}


def decode(hint: Any, structure: Structure, load: Load) -> Any:
    """The value of a structure. A blob that is named twice is loaded once.

    Raises DataFault, naming the place, where the structure does not fit `hint`.
    """
    if structure.get("format") != FORMAT:
        raise DataFault(
            f"the checkpoint has format {structure.get('format')!r}, this version reads {FORMAT}",
            "use the version of Shoal that wrote it",
        )
    return _decode(hint, structure.get("value"), _once(load), "state")


def blobs_of(structure: Any) -> set[str]:
    """SHA-256 of every blob that a structure refers to."""
    if isinstance(structure, list):
        return set().union(*map(blobs_of, structure))
    if not isinstance(structure, Mapping):
        return set()
    if structure.get("is") == "BlobRef":
        return {structure["sha256"]}
    return set().union(*map(blobs_of, structure.values()))


def _once(load: Load) -> Load:
    loaded: dict[tuple[str, Manifest], Tensors] = {}

    def load_once(weights: Weights) -> Tensors:
        key = (weights.blob.sha256, weights.manifest)
        if key not in loaded:
            loaded[key] = load(weights)
        return loaded[key]

    return load_once


@functools.cache
def _fields(cls: Any) -> dict[str, tuple[Any, bool]]:
    """Field name -> (its type hint, whether it has a default)."""
    hints = typing.get_type_hints(cls)
    return {
        item.name: (
            hints[item.name],
            item.default is not dataclasses.MISSING or item.default_factory is not dataclasses.MISSING,
        )
        for item in dataclasses.fields(cls)
    }


def _arms(hint: Any) -> tuple[Any, ...]:
    """The alternatives of a union; scalars first, for they are told apart by their exact type."""
    arms = typing.get_args(hint)
    return tuple(sorted(arms, key=lambda arm: not (isinstance(arm, type) and arm in _SCALARS)))


_SCALARS = (bool, int, float, str, NoneType)


# -- out ------------------------------------------------------------------------------------------------


def _encode(hint: Any, value: Any, keep: Keep, where: str) -> Any:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (UnionType, typing.Union):
        return _encode_union(hint, value, keep, where)
    if hint is float and isinstance(value, float):
        return float(value) if math.isfinite(value) else {"float": struct.pack("<d", value).hex()}
    if hint in _SCALARS and (type(value) is hint or (hint is float and type(value) is int)):
        return value
    if hint == Tensors and isinstance(value, Mapping):
        return _encode(Weights, keep(value), keep, where)
    if np.ndarray in (hint, origin) and isinstance(value, np.ndarray) and not value.dtype.hasobject:
        data = base64.b64encode(value.tobytes()).decode()
        return {"array": value.dtype.str, "shape": list(value.shape), "data": data}
    if origin in (Mapping, dict) and arguments[0] is str and isinstance(value, Mapping):
        return {
            _checked_key(key, where): _encode(arguments[1], item, keep, f"{where}.{key}")
            for key, item in value.items()
        }
    if origin is tuple and isinstance(value, tuple):
        hints = _items(arguments, len(value), where, TypeError)
        return [
            _encode(item, part, keep, f"{where}[{i}]")
            for i, (item, part) in enumerate(zip(hints, value, strict=True))
        ]
    if isinstance(hint, type) and type(value) is hint:
        if issubclass(hint, enum.Enum):
            return value.name
        if dataclasses.is_dataclass(hint):
            parts = {
                name: _encode(item, getattr(value, name), keep, f"{where}.{name}")
                for name, (item, _) in _fields(hint).items()
            }
            return {"is": hint.__name__, **parts}
    raise TypeError(f"{where}: {type(value).__name__} cannot be stored as {_name(hint)}")


def _encode_union(hint: Any, value: Any, keep: Keep, where: str) -> Any:
    for arm in _arms(hint):
        if arm is float and type(value) is int:
            continue
        try:
            return _encode(arm, value, keep, where)
        except TypeError as error:
            fault = error
    known = [type(value) is arm for arm in _arms(hint)]
    raise fault if any(known) else TypeError(
        f"{where}: {type(value).__name__} cannot be stored as {_name(hint)}"
    )


def _checked_key(key: Any, where: str) -> str:
    if type(key) is not str:
        raise TypeError(f"{where}: a key is {key!r}, and only text can be stored")
    return key


def _items(arguments: tuple[Any, ...], count: int, where: str, error: type[Exception]) -> tuple[Any, ...]:
    """The hint of each item of a tuple."""
    if len(arguments) == 2 and arguments[1] is Ellipsis:
        return arguments[:1] * count
    if len(arguments) != count:
        raise error(f"{where}: {count} items where {len(arguments)} are due")
    return arguments


def _name(hint: Any) -> str:
    return hint.__name__ if isinstance(hint, type) else str(hint)


# -- in -------------------------------------------------------------------------------------------------
