"""Settings files: YAML text into nested frozen dataclasses. Every error names the file, the key and the hint.

    server: 127.0.0.1:50051          @dataclass(frozen=True)
    compute:                         class Config:
      threads: 2                         server: str
                                         compute: Compute = Compute()

Times are plain seconds and sizes plain bytes. The text is not trusted: its length and depth are limited, and
aliases are refused, because a few lines with aliases can expand to gigabytes.
"""

import dataclasses
import re
import sys
import typing
from collections.abc import Callable, Hashable, Mapping
from pathlib import Path
from types import MappingProxyType, UnionType
from typing import Any, Literal, TypeVar, cast

import yaml

from shoal.core.algorithm import Written
from shoal.core.errors import ConfigError, near

T = TypeVar("T")

MAX_TEXT = 1 << 20
MAX_DEPTH = 32
MAX_FLOAT = sys.float_info.max
FORMER = "FORMER"
"""The attribute of a dataclass with settings of an earlier version, and why they do nothing any more."""


def setting(text: str) -> str | Written:
    """The value in "name=value" on a command line, read as YAML as in a file. Raises ConfigError.

    Example:
        >>> setting("mean")
        'mean'
    """
    try:
        found = _plain(load(f"value: {text}", "")["value"])
    except ConfigError:
        raise ConfigError(f"{text!r} cannot be read as a value", "put it in quotes") from None
    return found if isinstance(found, str) else Written(text, found)


def parsed(change: str) -> tuple[str, Any]:
    """ "name=value" with the value as a settings file would have it: 3 is a number, true is a boolean."""
    name, equals, value = change.partition("=")
    if not (name and equals):
        raise ConfigError(f"{change!r} is not NAME=VALUE", "write it as in --set rounds=20")
    return name.strip(), setting(value)


def load(text: str, source: str) -> dict[str, Any]:
    """The settings in `text` as plain dictionaries, not yet compared with any dataclass. Raises
    ConfigError."""
    if len(text) > MAX_TEXT:
        raise ConfigError(f"{source} has {len(text)} characters; the limit is {MAX_TEXT}")
    try:
        data = _Loader(text).get_single_data()
    except yaml.YAMLError as error:
        hint = "indent with spaces, and write one `key: value` per line"
        raise ConfigError(f"{source} is not YAML: {_where(error)}", hint) from None
    except ValueError as error:  # a date such as 2024-13-45
        raise ConfigError(f"{source} is not YAML: {error}", "put text in quotes") from None
    if data is None:
        return {}
    if not isinstance(data, dict):
        raise ConfigError(
            f"{source}: expected settings, found {_found(_plain(data))}", "write them as `key: value`"
        )
    return data


def read_settings(
    path: Path | None, cls: type[T], flags: Mapping[str, Any], below: Mapping[str, Any] = MappingProxyType({})
) -> tuple[T, Path]:
    """The settings of the file `path`, if any, overridden one by one by the flags that are not None; and the
    folder to which relative paths in them refer, which are absolute in what is returned.

    below: what the flags override where there is no file. Raises ConfigError.
    """
    given, folder, source = _absolute(flags), Path.cwd(), "the command line"
    if path is not None:
        below, folder, source = load(_text(path), str(path)), path.absolute().parent, str(path)
    return _anchored(convert(_merged(below, given), cls, source), folder), folder


def _text(path: Path) -> str:
    hint = "give the path of a settings file"
    try:
        with path.open("rb") as file:
            return file.read(MAX_TEXT + 1).decode()
    except PermissionError as error:
        raise ConfigError(f"{path}: {error.strerror}", "let the user who runs this read it") from None
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}", hint) from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not UTF-8 text", hint) from None


def _absolute(flags: Mapping[str, Any]) -> dict[str, Any]:
    """The flags that were given, in the form of a settings file. Paths are made absolute: on the command
    line they are relative to the caller's folder."""
    found: dict[str, Any] = {}
    for name, value in flags.items():
        if isinstance(value, Mapping):
            value = _absolute(value) or None
        if value is not None:
            found[name] = str(value.absolute()) if isinstance(value, Path) else value
    return found


def _merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """`below`, overridden by `above` setting by setting."""
    merged = dict(below)
    for name, value in above.items():
        under = merged.get(name)
        merged[name] = (
            _merged(under, value) if isinstance(value, Mapping) and isinstance(under, Mapping) else value
        )
    return merged


def _anchored(settings: T, folder: Path) -> T:
    """`settings` with every relative path made absolute, relative to `folder`."""
    changes: dict[str, Any] = {}
    for item in dataclasses.fields(settings):  # type: ignore[arg-type]
        value = getattr(settings, item.name)
        if isinstance(value, Path):
            changes[item.name] = folder / _at_home(value)
        elif dataclasses.is_dataclass(value):
            changes[item.name] = _anchored(value, folder)
    return dataclasses.replace(settings, **changes)  # type: ignore[type-var]


def _at_home(path: Path) -> Path:
    try:
        return path.expanduser()
    except RuntimeError:
        raise ConfigError(f"{path}: there is no such home folder", "write the whole path") from None


def convert(data: Mapping[str, Any], cls: type[T], source: str) -> T:
    """A `cls` from plain dictionaries, lists and scalars. Raises ConfigError, also for what `cls` refuses."""
    return cast(T, _dataclass(data, cls, source, ""))


def does_nothing(source: str, name: str, why: str) -> None:
    """Say that a setting of an earlier version has no effect any more."""
    sys.stderr.write(f"{source}: {name} does nothing any more: {why}\n")


class _Loader(yaml.SafeLoader):
    """Safe YAML without aliases, duplicate keys or deep nesting, in which 1e-3 is a number."""

    depth = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
        if self.check_event(yaml.AliasEvent):
            raise yaml.MarkedYAMLError(problem="aliases are not allowed", problem_mark=mark)
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise yaml.MarkedYAMLError(problem=f"nested deeper than {MAX_DEPTH}", problem_mark=mark)
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        value = super().construct_object(node, deep)
        is_plain = isinstance(node, yaml.ScalarNode) and node.style is None
        return Written(node.value, value) if is_plain and not isinstance(value, str | None) else value

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in seen:
                    problem = f"{key.value!r} is set twice"
                    raise yaml.MarkedYAMLError(problem=problem, problem_mark=key.start_mark)
                seen.add(key.value)
        return super().construct_mapping(node, deep)


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+$"), list("-+0123456789")
)


def _where(error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or str(error).splitlines()[0]
    return f"line {mark.line + 1}: {problem}" if mark else str(problem)


def _dataclass(data: Any, cls: Any, source: str, key: str) -> Any:
    if not isinstance(data, Mapping):
        raise _wrong(source, key, "a group of settings", data)
    hints = typing.get_type_hints(cls)
    fields = [item for item in dataclasses.fields(cls) if item.init]
    known = [item.name for item in fields]
    former: Mapping[str, str] = getattr(cls, FORMER, {})
    for name in data:
        if name in former:
            does_nothing(source, _join(key, name), former[name])
        elif name not in known:
            raise ConfigError(f"{source}: unknown setting {_join(key, name)}", near(str(name), known))
    values = {}
    for item in fields:
        if item.name in data:
            values[item.name] = _value(data[item.name], hints[item.name], source, _join(key, item.name))
        elif item.default is dataclasses.MISSING and item.default_factory is dataclasses.MISSING:
            raise ConfigError(f"{source}: setting {_join(key, item.name)} is required", "it has no default")
    try:
        return cls(**values)
    except ConfigError as error:
        raise ConfigError(f"{source}: {key + ': ' if key else ''}{error.message}", error.hint) from None


def _value(data: Any, hint: Any, source: str, key: str) -> Any:
    """`data` converted to the type `hint`; an int is accepted for a float, and a list for a tuple."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if isinstance(data, Written):
        if Written in arguments:
            return data
        data = data.meant
    if hint is Any:
        return _plain(data)
    if origin in (UnionType, typing.Union):
        return _one_of(data, arguments, source, key)
    if origin is Literal:
        if data in arguments and type(data) in {type(argument) for argument in arguments}:
            return data
        raise _wrong(source, key, " or ".join(map(str, arguments)), data)
    if origin is tuple and isinstance(data, list):
        return tuple(_value(item, arguments[0], source, f"{key}[{i}]") for i, item in enumerate(data))
    if origin in (dict, Mapping) and isinstance(data, Mapping):
        return {
            _value(name, arguments[0], source, key): _value(item, arguments[1], source, _join(key, name))
            for name, item in data.items()
        }
    if dataclasses.is_dataclass(hint):
        return _dataclass(data, hint, source, key)
    return _scalar(data, hint, source, key)


def _plain(data: Any) -> Any:
    """`data` with every `Written` scalar replaced by the value that it stands for."""
    if isinstance(data, Mapping):
        return {_plain(name): _plain(value) for name, value in data.items()}
    if isinstance(data, list):
        return [_plain(value) for value in data]
    return data.meant if isinstance(data, Written) else data


def _one_of(data: Any, hints: tuple[Any, ...], source: str, key: str) -> Any:
    """The first alternative that fits. A mapping always means the dataclass, so that its own errors are
    reported."""
    if data is None and type(None) in hints:
        return None
    hints = tuple(hint for hint in hints if hint is not type(None))
    if isinstance(data, Mapping):
        hints = tuple(hint for hint in hints if dataclasses.is_dataclass(hint)) or hints
    for hint in hints:
        try:
            return _value(data, hint, source, key)
        except ConfigError:
            if len(hints) == 1:
                raise
    raise _wrong(source, key, " or ".join(_expected(hint) for hint in hints), data)


_SCALARS: Mapping[Any, Callable[[Any], bool]] = {
    bool: lambda data: isinstance(data, bool),
    int: lambda data: isinstance(data, int) and not isinstance(data, bool),
    float: lambda data: (
        isinstance(data, int | float) and not isinstance(data, bool) and abs(data) <= MAX_FLOAT
    ),
    str: lambda data: isinstance(data, str),
    Path: lambda data: isinstance(data, str) and data != "" and "\0" not in data,
}


def _scalar(data: Any, hint: Any, source: str, key: str) -> Any:
    if hint in _SCALARS and _SCALARS[hint](data):
        return hint(data)
    raise _wrong(source, key, _expected(hint), data)


_NAMES = {bool: "true or false", int: "a whole number", float: "a finite number", str: "text", Path: "a path"}


def _expected(hint: Any) -> str:
    if typing.get_origin(hint) is tuple:
        return "a list"
    return str(_NAMES.get(hint, "a group of settings"))


def _found(data: Any) -> str:
    if data is None:
        return "nothing"
    if isinstance(data, dict | list):
        return "a group of settings" if isinstance(data, dict) else "a list"
    return str(data).lower() if isinstance(data, bool) else f"{data!r}"[:80]


def _wrong(source: str, key: str, expected: str, data: Any) -> ConfigError:
    hint = ""
    if isinstance(data, bool | int | float) and expected == "text":
        hint = "put it in quotes"
    elif isinstance(data, str | int | float) and expected == "a list":
        hint = f"put it in brackets: [{str(data).lower() if isinstance(data, bool) else data}]"
    return ConfigError(f"{source}: {key}: expected {expected}, found {_found(data)}", hint)


def _join(key: str, name: Any) -> str:
    return f"{key}.{name}" if key else str(name)
