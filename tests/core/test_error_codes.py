"""Every error code that a person can meet stands in docs/trouble.md."""

import importlib
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path

import fedclient
import fedserver
import shoal
from shoal.core.errors import ShoalError

PAGE = Path(__file__).parent.parent.parent / "docs" / "trouble.md"
EXTRAS = ("ray",)
"""Packages of extras that the tests do not install; what needs them defines no error of its own."""


def test_every_error_code_is_explained() -> None:
    for package in (shoal, fedserver, fedclient):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            try:
                importlib.import_module(module.name)
            except ModuleNotFoundError as error:
                if error.name not in EXTRAS:
                    raise
    codes = {cls.code for cls in _family(ShoalError) if not cls.__module__.startswith("tests")}
    table = PAGE.read_text().partition("\n## Error codes\n")[2]
    without_a_row = table.partition("nothing is to")[0].partition("hint; for")[2]
    cells = re.findall(r"^\| (`[^|]+) \|", table, re.MULTILINE)
    explained = {code for text in (without_a_row, *cells) for code in re.findall(r"`([a-z-]+)`", text)}
    assert len(codes) > 20
    assert explained - codes == {"usage"}  # of a wrong command line, which the console answers itself
    assert not codes - explained


def _family(cls: type[ShoalError]) -> Iterator[type[ShoalError]]:
    yield cls
    for each in cls.__subclasses__():
        yield from _family(each)
