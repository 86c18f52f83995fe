"""Of hostile JSON only what has the right type comes in."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from shoal.core.data.from_json import LISTED, value_of


@dataclass(frozen=True)
class Inner:
    numbers: tuple[float, ...]


@dataclass(frozen=True)
class Outer:
    name: str
    share: float
    inner: Inner | None
    facts: Mapping[str, str | int | float]


GOOD: dict[str, Any] = {"name": "a", "share": 1, "inner": {"numbers": [1, 0.5]}, "facts": {"b": "c", "d": 2}}


def test_nested_dataclasses_lists_and_mappings() -> None:
    found = value_of(Outer, GOOD)
    assert found == Outer("a", 1.0, Inner((1.0, 0.5)), {"b": "c", "d": 2})
    assert value_of(Outer, {**GOOD, "inner": None}).inner is None


@pytest.mark.parametrize(
    "wrong",
    [
        {"name": 1},
        {"share": True},
        {"share": float("nan")},
        {"inner": {"numbers": "12"}},
        {"inner": {"numbers": [1.0] * (LISTED + 1)}},
        {"inner": {}},
        {"inner": []},
        {"facts": {"b": None}},
        {"facts": {"b": [1]}},
        {"facts": {"b": float("inf")}},
        {"facts": [1]},
        {"more": 1},
    ],
)
def test_anything_else_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(TypeError):
        value_of(Outer, {**GOOD, **wrong})
