"""Records as the browser has them: field by field, under the names that they have everywhere."""

import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from fedserver.page.views.texts import name, words

WORDS = ("reason", "why", "wrong")
"""The fields with a text for people; all others with a text have a name."""
MANY = 1e6
"""From here on, such as in a time, six digits would not do."""


def shown(found: Any) -> Any:
    """A record, or several, as JSON: texts are safe to show, and numbers that are not known are null."""
    if is_dataclass(found):
        values = {each.name: getattr(found, each.name) for each in fields(found)}
        return {key: words(value) if key in WORDS else shown(value) for key, value in values.items()}
    if isinstance(found, Mapping):
        return {name(key): shown(value) for key, value in found.items()}
    if isinstance(found, list | tuple):
        return [shown(each) for each in found]
    if isinstance(found, str):
        return name(found)
    return number(found) if isinstance(found, float) else found


def number(value: float | None) -> float | None:
    """The number with six digits, or to a tenth; null where it is unknown, infinite or not a number."""
    if value is None or not math.isfinite(value):
        return None
    return round(value, 1) if abs(value) >= MANY else float(f"{value:.6g}")
