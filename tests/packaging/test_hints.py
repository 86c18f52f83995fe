"""What hints and pages tell people to install: what the project needs, and nothing by its own name."""

import re
import tomllib
from pathlib import Path

from packaging.requirements import Requirement

from shoal.shell.console import PACKAGES

ROOT = Path(__file__).resolve().parents[2]
SOURCES = [path for folder in ("shoal", "fedserver", "fedclient") for path in (ROOT / folder).rglob("*.py")]


def test_hints_name_packages_that_an_extra_has() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    known = {Requirement(each).name for requirements in extras.values() for each in requirements}
    found = " ".join(PACKAGES.values()).split()
    for path in SOURCES:
        for names in re.findall(r"pip install ([\w\[\]' -]+)", path.read_text()):
            found += names.split()
    assert len(found) > 20
    assert {Requirement(each.strip("'")).name for each in found} <= known


def test_nothing_is_installed_by_a_name_that_anyone_may_take_on_an_index() -> None:
    for path in (*SOURCES, ROOT / "README.md", *(ROOT / "docs").rglob("*.md")):
        assert "shoal-fed[" not in path.read_text(), path
