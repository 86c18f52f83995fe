"""An algorithm's parameters declare each fact once: type, range, unit, default and meaning.

    @dataclass(frozen=True)
    class Parameters(TrainingParameters):
        clusters: int = setting(4, "Number of clusters.", at_least=1)
        search: Literal["window", "all"] = setting("all", "Which numbers of clusters to try.")

        def check(self) -> None:
            '''Constraints between several fields. Raises ConfigError.'''

`Algorithm.configure` checks every value against the declaration, and `fedserver algorithm show` prints it. A
class may give an inherited field another default; its range, unit and meaning remain.
"""

import functools
import inspect
import math
import typing
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from typing import Any, Literal, TypedDict, Unpack

from shoal.core.errors import ConfigError, near

_KEY = "shoal.setting"
AUTO: Literal["auto"] = "auto"
"""Instead of a number: the program chooses one."""


class Written(str):
    """A value as it was written, for cases in which YAML reads something else: `off` is false, and 12:30 is
    750.

    meant: what YAML reads. Most settings take that; a parameter, whose type is known later, may take the
    text.
    """

    meant: Any

    def __new__(cls, text: str, meant: Any) -> "Written":
        written = super().__new__(cls, text)
        written.meant = meant
        return written

    def __reduce__(self) -> tuple[type["Written"], tuple[str, Any]]:
        """What makes a copy in another process."""
        return Written, (str(self), self.meant)


@dataclass(frozen=True)
class Setting:
    """The declaration of one parameter. type: bool, int, float or str. choices: the legal values of a string.

    unit: for example "rounds"; "" for a bare number. at_least, above, at_most, below: bounds of a number,
    None for none. zero: whether 0 is legal outside the bounds. rare: whether it is for experiments and for a
    paper's own way, so that people see it only if they ask for all. auto: whether "auto" is legal in place of
    a number.
    """

    name: str
    type: type
    default: Any
    meaning: str = ""
    unit: str = ""
    choices: tuple[str, ...] = ()
    at_least: float | None = None
    above: float | None = None
    at_most: float | None = None
    below: float | None = None
    zero: bool = False
    hint: str = ""
    rare: bool = False
    auto: bool = False

    @property
    def legal(self) -> str:
        """The legal values, as the end of a sentence.

        Example:
            >>> Setting("momentum", float, 0.9, at_least=0, below=1).legal
            'a number of at least 0 and below 1'
        """
        if self.type is bool:
            return "true or false"
        if self.choices:
            *first, last = self.choices
            return f"{', '.join(first)} or {last}" if first else last
        if self.type is str:
            return "a string"
        bounds = [
            f"{word} {bound:g}"
            for word, bound in (
                ("of at least", self.at_least),
                ("above", self.above),
                ("at most", self.at_most),
                ("below", self.below),
            )
            if bound is not None
        ]
        number = "a whole number" if self.type is int else "a number"
        others = ("auto, or " if self.auto else "") + ("0, or " if self.zero else "")
        return others + " ".join([number, " and ".join(bounds)]).strip()

    def allows(self, value: Any) -> bool:
        """Whether a value of the right type is within the bounds. NaN and infinity never are."""
        if self.choices:
            return value in self.choices
        if value == AUTO:
            return self.auto
        if self.type not in (int, float) or (self.zero and value == 0):
            return True
        return (
            math.isfinite(value)
            and (self.at_least is None or value >= self.at_least)
            and (self.above is None or value > self.above)
            and (self.at_most is None or value <= self.at_most)
            and (self.below is None or value < self.below)
        )


class Stated(TypedDict, total=False):
    """What a declaration may state of a parameter besides its default and meaning; see `Setting`.

    hint: how to correct an illegal value, if the list of legal values is not enough."""

    unit: str
    choices: tuple[str, ...]
    at_least: float
    above: float
    at_most: float
    below: float
    zero: bool
    hint: str
    rare: bool


def setting(default: Any, meaning: str, **stated: Unpack[Stated]) -> Any:
    """A field of a `Parameters` dataclass. meaning: one sentence. The legal values of a string are given by
    the field's type, a `Literal`, or by `choices`.

    Example:
        clusters: int = setting(4, "K, the number of clusters.", unit="clusters", at_least=1)
    """
    return field(default=default, metadata={_KEY: {"meaning": meaning, **stated}})


@functools.cache
def settings_of(parameters: type) -> dict[str, Setting]:
    """Every parameter by name, in the order of declaration.

    Raises ConfigError for a class that is not a dataclass, or that has a field without a default or with
    another type.
    """
    if not (isinstance(parameters, type) and is_dataclass(parameters)):
        raise ConfigError(f"{parameters!r} is not a dataclass", "decorate it with @dataclass(frozen=True)")
    hints = typing.get_type_hints(parameters)
    return {item.name: _setting(parameters, item.name, hints[item.name]) for item in fields(parameters)}


def _setting(parameters: type, name: str, hint: Any) -> Setting:
    default = parameters.__dataclass_fields__[name].default  # type: ignore[attr-defined]
    stated: dict[str, Any] = {}
    # A subclass that changes only the default keeps what its base declares about the field.
    for base in reversed(parameters.__mro__):
        own = base.__dict__.get("__dataclass_fields__", {}).get(name)
        if own is not None and name in inspect.get_annotations(base):
            stated = {**stated, **own.metadata.get(_KEY, {})}
    choices = typing.get_args(hint) if typing.get_origin(hint) is Literal else ()
    auto = Literal["auto"] in typing.get_args(hint)
    kind = str if choices else typing.get_args(hint)[0] if auto else hint
    if default is MISSING or kind not in (bool, int, float, str):
        raise ConfigError(
            f"parameter {name} of {parameters.__qualname__} cannot be set",
            "give it a default, and the type bool, int, float, str or Literal[...]",
        )
    stated = {**stated, "choices": choices or stated.get("choices", ()), "auto": auto}
    return Setting(name, kind, default, **stated)


def checked(owner: str, parameters: type, values: Mapping[str, Any]) -> dict[str, Any]:
    """The values, each of the type of its field: a whole number is accepted where a number is expected.

    owner: the algorithm's name, for error texts. Raises ConfigError, which names the parameter, its value and
    the legal values.
    """
    settings = settings_of(parameters)
    found = {}
    for name, value in values.items():
        if name not in settings:
            raise ConfigError(f"algorithm {owner} has no parameter {name!r}", near(name, list(settings)))
        wanted = settings[name]
        if wanted.type is float and type(value) is int and abs(value) < 1e300:
            value = float(value)
        fits = type(value) is wanted.type or (wanted.auto and value == AUTO)
        if not fits or not wanted.allows(value):
            hint = wanted.hint
            if not hint:
                hint = near(value, list(wanted.choices)) if wanted.choices and isinstance(value, str) else ""
            raise ConfigError(
                f"{owner}: parameter {name} cannot be {value!r}; expected {wanted.legal}",
                hint or f"fedserver algorithm show {owner}",
            )
        found[name] = value
    return found
