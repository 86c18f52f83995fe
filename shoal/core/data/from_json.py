"""Dataclasses from what JSON has for them, which may be hostile: every type is checked."""

import math
import typing
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import lru_cache
from types import NoneType
from typing import Any

LISTED = 256
"""The longest list."""


def value_of(kind: Any, value: Any) -> Any:
    """A value of this type: a number, text, a dataclass, a tuple of one type, a mapping from texts, one of
    several of them, or None. Raises TypeError, OverflowError, and as a dataclass does."""
    if kind is float and type(value) is int:
        value = float(value)
    if kind in (int, float, bool, str):
        if type(value) is not kind or (kind is float and not math.isfinite(value)):
            raise TypeError(f"{value!r} is no {kind.__name__}")
        return value
    if isinstance(kind, type) and is_dataclass(kind):
        types = _types(kind)
        if not isinstance(value, dict) or value.keys() != types.keys():
            raise TypeError(f"{value!r} is no {kind}")
        return kind(**{name: value_of(types[name], each) for name, each in value.items()})
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin is tuple:
        if not isinstance(value, list) or len(value) > LISTED:
            raise TypeError(f"{value!r} is no list")
        return tuple(value_of(inner[0], each) for each in value)
    if origin is Mapping:
        if not isinstance(value, dict) or len(value) > LISTED:
            raise TypeError(f"{value!r} is no mapping")
        return {name: value_of(inner[1], each) for name, each in value.items()}
    if value is None and NoneType in inner:
        return None
    some = [each for each in inner if each is not NoneType]
    return value_of(type(value) if type(value) in some else some[0], value)


@lru_cache
def _types(kind: type) -> Mapping[str, Any]:
    hints = typing.get_type_hints(kind)
    return {each.name: hints[each.name] for each in fields(kind)}
