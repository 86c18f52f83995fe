"""Settings files: what is right comes out typed, what is wrong is named with its hint."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

import pytest

from shoal.core.errors import ConfigError
from shoal.shell.config import MAX_DEPTH, MAX_TEXT, Written, convert, load, read_settings, setting

T = TypeVar("T")


@dataclass(frozen=True)
class Inner:
    threads: int = 1
    ratio: float = 0.5
    kind: Literal["a", "b"] = "a"

    def __post_init__(self) -> None:
        if self.threads < 1:
            raise ConfigError(f"threads is {self.threads}", "use at least 1")


@dataclass(frozen=True)
class Outer:
    name: str
    path: Path | None = None
    sizes: tuple[int, ...] = ()
    live: bool = False
    inner: Inner = field(default_factory=Inner)
    options: Mapping[str, Any] = field(default_factory=dict)
    either: Path | Inner | None = None


def parse(text: str, cls: type[T], source: str) -> T:
    return convert(load(text, source), cls, source)


def wrong(text: str) -> str:
    """Message and hint of the error that `text` causes."""
    with pytest.raises(ConfigError) as caught:
        parse(text, Outer, "device.yaml")
    return str(caught.value)


def test_what_is_written_comes_out_typed() -> None:
    text = """
    name: pi
    path: data/train.npz
    sizes: [1, 28, 28]
    live: true
    inner: {threads: 4, ratio: 2, kind: b}
    options: {hidden: [8, 8]}
    """
    found = parse(text, Outer, "device.yaml")
    assert found == Outer(
        "pi", Path("data/train.npz"), (1, 28, 28), True, Inner(4, 2.0, "b"), {"hidden": [8, 8]}
    )
    assert type(found.inner.ratio) is float


def test_an_empty_text_asks_for_what_has_no_default() -> None:
    assert "device.yaml: setting name is required" in wrong("")


@pytest.mark.parametrize(("text", "number"), [("1e-3", 1e-3), ("5E2", 500.0), ("-2.5e+1", -25.0), ("3", 3.0)])
def test_numbers_may_be_written_as_people_write_them(text: str, number: float) -> None:
    assert parse(f"name: x\ninner: {{ratio: {text}}}", Outer, "f").inner.ratio == number


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("nam: pi", 'device.yaml: unknown setting nam (did you mean "name"?)'),
        ("name: x\ninner: {thread: 2}", 'unknown setting inner.thread (did you mean "threads"?)'),
        ("name: x\neither: {thread: 2}", 'unknown setting either.thread (did you mean "threads"?)'),
        ("name: 7", "name: expected text, found 7 (put it in quotes)"),
        ("name: 12:30", "name: expected text, found 750 (put it in quotes)"),
        ("name:", "name: expected text, found nothing"),
        ("name: x\nlive: 1", "live: expected true or false, found 1"),
        ("name: x\nsizes: [1, two]", "sizes[1]: expected a whole number, found 'two'"),
        ("name: x\nsizes: 3", "sizes: expected a list, found 3 (put it in brackets: [3])"),
        ("name: x\nsizes: one", "sizes: expected a list, found 'one' (put it in brackets: [one])"),
        ("name: x\nsizes: {a: 1}", "sizes: expected a list, found a group of settings"),
        ("name: x\ninner: {threads: 1.5}", "inner.threads: expected a whole number, found 1.5"),
        ("name: x\ninner: {threads: true}", "inner.threads: expected a whole number, found true"),
        ("name: x\ninner: {ratio: .nan}", "inner.ratio: expected a finite number, found nan"),
        ("name: x\ninner: {ratio: .inf}", "inner.ratio: expected a finite number, found inf"),
        (f"name: x\ninner: {{ratio: {'9' * 400}}}", "inner.ratio: expected a finite number"),
        ("name: x\ninner: {kind: c}", "inner.kind: expected a or b, found 'c'"),
        ("name: x\ninner: [1]", "inner: expected a group of settings, found a list"),
        ("name: x\npath: {a: 1}", "path: expected a path, found a group of settings"),
        ("name: x\neither: 5", "either: expected a path or a group of settings, found 5"),
        ("name: x\ninner: {threads: 0}", "device.yaml: inner: threads is 0 (use at least 1)"),
    ],
)
def test_what_is_wrong_is_named(text: str, said: str) -> None:
    assert said in wrong(text)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("name: x\nname: y", "line 2: 'name' is set twice"),
        ("name: x\ninner:\n  threads: 1\n  threads: 2", "line 4: 'threads' is set twice"),
        ("name: &a x\npath: *a", "line 2: aliases are not allowed"),
        ("name: [x", "device.yaml is not YAML: line 1"),
        ("name: !!python/object:os.system x", "could not determine a constructor"),
        ("- a", "device.yaml: expected settings, found a list"),
        ("name: 2024-13-45", "device.yaml is not YAML"),
        (f"name: {'9' * 5000}", "device.yaml is not YAML"),
        ("? [1, 2]\n: x", "device.yaml is not YAML"),
        ("name: x\x00", "device.yaml is not YAML"),
        ("name: " + "[" * (MAX_DEPTH + 1), f"nested deeper than {MAX_DEPTH}"),
        ("name: " + "{a: " * 100_000, f"nested deeper than {MAX_DEPTH}"),
        ("#" * (MAX_TEXT + 1), f"the limit is {MAX_TEXT}"),
    ],
)
def test_hostile_text_is_refused(text: str, said: str) -> None:
    assert said in wrong(text)


@dataclass(frozen=True)
class Later:
    parameters: Mapping[str, bool | int | float | str | Written] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)


@pytest.mark.parametrize(
    ("text", "meant"),
    [("off", False), ("yes", True), ("12:30", 750), ("1e-3", 1e-3), ("007", 7), ("true", True), ("3", 3)],
)
def test_what_was_written_is_kept_for_who_learns_its_type_later(text: str, meant: object) -> None:
    found = parse(f"parameters: {{a: {text}}}\noptions: {{a: [{text}], b: {{c: {text}}}}}", Later, "run.yaml")
    (written,) = found.parameters.values()
    for each in (written, setting(text)):
        assert isinstance(each, Written)
        assert (str(each), each.meant, type(each.meant)) == (text, meant, type(meant))
    assert found.options == {"a": [meant], "b": {"c": meant}}
    assert type(found.options["a"][0]) is type(meant)


def test_a_text_is_a_text_quoted_or_not() -> None:
    for text, value in (("scalar", "scalar"), ('"off"', "off"), ("'3'", "3")):
        assert setting(text) == parse(f"parameters: {{a: {text}}}", Later, "f").parameters["a"] == value
        assert type(setting(text)) is str
    for text, meant in (("[1, off]", [1, False]), ("", None), ("~", None)):
        found = setting(text)
        assert isinstance(found, Written)
        assert found.meant == meant
    with pytest.raises(ConfigError, match="cannot be read as a value"):
        setting("[1")


def test_the_home_of_a_user_whom_there_is_not_is_named(tmp_path: Path) -> None:
    file = tmp_path / "device.yaml"
    file.write_text("name: a\npath: ~no-such-user/data.npz\n")
    with pytest.raises(ConfigError, match="~no-such-user/data"):
        read_settings(file, Outer, {})
