"""Any frozen value as JSON and blobs, and back, exactly: how states and reports survive a restart.

    value  <-- encode / decode -->  structure (JSON-able), and one blob for each set of tensors

Type hints say what is expected where, so nothing is ever looked up by a name that was read, and a structure
that does not match them is refused. What can be stored: frozen dataclasses, `Mapping[str, ...]`, tuples, sets
of tensors, numpy arrays, enums, str, int, float, bool, None, and unions of these.

Sets of tensors are written by `keep` and read by `load`, as in `shoal.core.exchange.payload`, so a model's
blob in a checkpoint is the one that tasks refer to. Other arrays are small and are part of the structure. A
field marked as `APART` is a blob too: its structure as JSON. The blobs that it refers to are named beside it.
"""

import base64
import dataclasses
import enum
import functools
import json
import math
import struct
import typing
from collections.abc import Callable, Mapping
from types import NoneType, UnionType
from typing import Any

import numpy as np

from shoal.core.algorithm.halves import APART
from shoal.core.errors import DataFault, ShoalError
from shoal.core.exchange.payload import BlobRef, Keep, Load, Weights
from shoal.core.types import Tensors

FORMAT = 1
"""Version of the structure."""

JSON = "json"
"""The name of the one tensor in the blob of a field that is stored apart: the bytes of its structure."""

REMOVED = "REMOVED"
"""The attribute of a dataclass that names fields of an earlier version, and the value that says nothing."""

Structure = Mapping[str, Any]
"""What `json.dumps` takes and `json.loads` returns. {"is": ...} marks a dataclass, {"array": ...} an array
and {"float": ...} a float that JSON cannot express."""


def encode(hint: Any, value: Any, keep: Keep) -> Structure:
    """The structure of a `value` of type `hint`. Raises TypeError, naming the part that cannot be stored."""
    try:
        return {"format": FORMAT, "value": _encode(hint, value, keep, "value")}
    except _Misfit as error:
        raise TypeError(str(error)) from None


def decode(hint: Any, structure: Structure, load: Load) -> Any:
    """The value of a structure; sets of tensors of the same bytes are loaded once.

    Raises DataFault, naming the place, when the structure does not match `hint`.
    """
    advice = "use the version of Shoal that wrote it"
    if structure.get("format") != FORMAT:
        raise DataFault(f"stored format {structure.get('format')!r}, where {FORMAT} is expected", advice)
    try:
        return _decode(hint, structure.get("value"), functools.cache(load), "value")
    except _Misfit as error:
        raise DataFault(f"the stored structure does not match: {error}", advice) from None


def is_apart(weights: Weights) -> bool:
    """Whether a blob is a field that is stored apart, which `decode` has to read, and no tensors."""
    return [spec.name for spec in weights.manifest] == [JSON]


def blobs_of(structure: Any) -> set[str]:
    """The SHA-256 of every blob that a structure refers to."""
    if isinstance(structure, Mapping):
        own = {structure["sha256"]} if structure.get("is") == BlobRef.__name__ else set()
        return own.union(*map(blobs_of, structure.values()))
    return set().union(*map(blobs_of, structure)) if isinstance(structure, list) else set()


class _Misfit(Exception):
    """A value does not match its type. where: the place, from the outermost value inwards."""

    def __init__(self, where: str, reason: str) -> None:
        super().__init__(f"{where}: {reason}")
        self.where = where


class _Kind(enum.Enum):
    """What a type hint stands for."""

    UNION = enum.auto()
    SCALAR = enum.auto()
    CHOICE = enum.auto()
    FLOAT = enum.auto()
    TENSORS = enum.auto()
    ARRAY = enum.auto()
    MAPPING = enum.auto()
    TUPLE = enum.auto()
    ENUM = enum.auto()
    RECORD = enum.auto()
    OTHER = enum.auto()


@functools.cache
def _kind(hint: Any) -> _Kind:
    origin = typing.get_origin(hint)
    if origin in (UnionType, typing.Union):
        return _Kind.UNION
    if hint is float:
        return _Kind.FLOAT
    if hint in (bool, int, str, NoneType):
        return _Kind.SCALAR
    if origin is typing.Literal:
        return _Kind.CHOICE
    if hint == Tensors:
        return _Kind.TENSORS
    if np.ndarray in (hint, origin):
        return _Kind.ARRAY
    if origin in (Mapping, dict) and typing.get_args(hint)[0] is str:
        return _Kind.MAPPING
    if origin is tuple:
        return _Kind.TUPLE
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return _Kind.ENUM
    return _Kind.RECORD if isinstance(hint, type) and dataclasses.is_dataclass(hint) else _Kind.OTHER


@functools.cache
def _fields(cls: Any) -> Mapping[str, tuple[Any, bool]]:
    """Field name -> (its type hint, whether it has a default)."""
    hints, missing = typing.get_type_hints(cls), dataclasses.MISSING
    return {
        item.name: (hints[item.name], item.default is not missing or item.default_factory is not missing)
        for item in dataclasses.fields(cls)
    }


@functools.cache
def _apart(cls: Any) -> frozenset[str]:
    """The names of the fields that are stored as blobs of their own."""
    return frozenset(item.name for item in dataclasses.fields(cls) if APART.items() <= item.metadata.items())


def _item_hints(hint: Any, count: int) -> tuple[Any, ...] | None:
    """The type hint of each item of a tuple; None when the tuple cannot have that many."""
    items = typing.get_args(hint)
    if len(items) == 2 and items[1] is Ellipsis:
        return (items[0],) * count
    return items if len(items) == count else None


def _name(hint: Any) -> str:
    return hint.__name__ if isinstance(hint, type) else str(hint)


@functools.cache
def _arms(hint: Any) -> tuple[Any, ...]:
    """The alternatives of a union."""
    return typing.get_args(hint)


def _first(hint: Any, value: Any, attempt: Callable[[Any], Any]) -> Any:
    """What `attempt` returns for the first alternative of a union that matches; raises the deepest misfit.

    None, of which records are full, is None in both forms, and no alternative is tried.
    """
    arms, faults = _arms(hint), []
    if value is None and NoneType in arms:
        return None
    for arm in arms:
        try:
            return attempt(arm)
        except _Misfit as error:
            faults.append(error)
    raise max(faults, key=lambda error: len(error.where))


# -- out ------------------------------------------------------------------------------------------------


def _encode(hint: Any, value: Any, keep: Keep, where: str) -> Any:
    match _kind(hint):
        case _Kind.UNION:
            return _first(hint, value, lambda arm: _encode(arm, value, keep, where))
        case _Kind.SCALAR if type(value) is hint:
            return value
        case _Kind.CHOICE if value in typing.get_args(hint):
            return value
        case _Kind.FLOAT if type(value) is int:
            return value
        case _Kind.FLOAT if isinstance(value, float):
            return float(value) if math.isfinite(value) else {"float": struct.pack(">d", value).hex()}
        case _Kind.TENSORS if isinstance(value, Mapping):
            return _encode(Weights, keep(value), keep, where)
        case _Kind.ARRAY if isinstance(value, np.ndarray) and value.dtype.kind not in "OV":
            data = base64.b64encode(value.tobytes()).decode()
            return {"array": value.dtype.str, "shape": list(value.shape), "data": data}
        case _Kind.MAPPING if isinstance(value, Mapping) and all(type(key) is str for key in value):
            of = typing.get_args(hint)[1]
            return {key: _encode(of, item, keep, f"{where}[{key!r}]") for key, item in value.items()}
        case _Kind.TUPLE if isinstance(value, tuple) and (hints := _item_hints(hint, len(value))) is not None:
            return [_encode(of, value[i], keep, f"{where}[{i}]") for i, of in enumerate(hints)]
        case _Kind.ENUM if type(value) is hint:
            return value.name
        case _Kind.RECORD if type(value) is hint:
            fields = {
                name: _encode(of, getattr(value, name), keep, f"{where}.{name}")
                for name, (of, _) in _fields(hint).items()  # type: ignore[arg-type]
            }
            fields |= {name: _set_apart(fields[name], keep, where) for name in _apart(hint)}  # type: ignore[arg-type]
            return {"is": hint.__name__, **fields}
    raise _Misfit(where, f"a {type(value).__name__} cannot be stored as {_name(hint)}")


def _set_apart(structure: Any, keep: Keep, where: str) -> Any:
    text = json.dumps(structure, sort_keys=True, separators=(",", ":"), allow_nan=False)
    weights = keep({JSON: np.frombuffer(text.encode(), np.uint8)})
    named = [{"is": BlobRef.__name__, "sha256": each} for each in sorted(blobs_of(structure))]
    return {"apart": _encode(Weights, weights, keep, where), "named": named}


# -- in -------------------------------------------------------------------------------------------------


def _decode(hint: Any, data: Any, load: Load, where: str) -> Any:
    match _kind(hint):
        case _Kind.UNION:
            return _first(hint, data, lambda arm: _decode(arm, data, load, where))
        case _Kind.SCALAR if type(data) is hint:
            return data
        case _Kind.CHOICE if data in typing.get_args(hint):
            return data
        case _Kind.FLOAT if type(data) in (int, float):
            return data
        case _Kind.FLOAT if isinstance(data, Mapping) and set(data) == {"float"}:
            return _decode_float(data["float"], where)
        case _Kind.TENSORS if isinstance(data, Mapping):
            return load(_decode(Weights, data, load, where))
        case _Kind.ARRAY if isinstance(data, Mapping) and set(data) == {"array", "shape", "data"}:
            return _decode_array(data, where)
        case _Kind.MAPPING if isinstance(data, Mapping):
            of = typing.get_args(hint)[1]
            return {key: _decode(of, item, load, f"{where}[{key!r}]") for key, item in data.items()}
        case _Kind.TUPLE if isinstance(data, list) and (hints := _item_hints(hint, len(data))) is not None:
            return tuple(_decode(of, data[i], load, f"{where}[{i}]") for i, of in enumerate(hints))
        case _Kind.ENUM if isinstance(data, str) and data in hint.__members__:
            return hint[data]
        case _Kind.RECORD if isinstance(data, Mapping) and data.get("is") == hint.__name__:
            return _decode_record(hint, data, load, where)
    raise _Misfit(where, f"it does not hold a {_name(hint)}")


def _decode_record(cls: Any, data: Mapping[str, Any], load: Load, where: str) -> Any:
    fields = _fields(cls)
    removed = {name for name, value in getattr(cls, REMOVED, {}).items() if data.get(name) == value}
    if unknown := sorted(set(data) - set(fields) - removed - {"is"}):
        raise _Misfit(where, f"{cls.__name__} has no field {unknown[0]!r}")
    if missing := [name for name, (_, optional) in fields.items() if not optional and name not in data]:
        raise _Misfit(where, f"{cls.__name__} lacks its field {missing[0]!r}")
    apart = {name: _brought_back(data[name], load, f"{where}.{name}") for name in _apart(cls) & data.keys()}
    values = {
        name: _decode(of, apart.get(name, data[name]), load, f"{where}.{name}")
        for name, (of, _) in fields.items()
        if name in data
    }
    try:
        return cls(**values)
    except (ShoalError, ValueError) as error:
        raise _Misfit(where, str(error)) from None


def _brought_back(data: Any, load: Load, where: str) -> Any:
    """The structure of a field that is stored as a blob."""
    if not (isinstance(data, Mapping) and set(data) == {"apart", "named"}):
        raise _Misfit(where, "it is no blob")
    tensors = load(_decode(Weights, data["apart"], load, where))
    try:
        return json.loads(tensors[JSON].tobytes())
    except (KeyError, ValueError) as error:
        raise _Misfit(where, f"its blob does not hold a structure: {error!r}") from None


def _decode_float(digits: Any, where: str) -> Any:
    try:
        return struct.unpack(">d", bytes.fromhex(digits))[0]
    except (TypeError, ValueError, struct.error):
        raise _Misfit(where, f"{digits!r} are not the 16 hex digits of a float") from None


def _decode_array(data: Mapping[str, Any], where: str) -> Any:
    try:
        content = base64.b64decode(data["data"], validate=True)
        return np.frombuffer(content, np.dtype(data["array"])).reshape(data["shape"])
    except (TypeError, ValueError) as error:
        raise _Misfit(where, f"it does not hold an array: {error}") from None
