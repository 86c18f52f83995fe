"""docs/errors.md has every error code that a person can meet, as the classes of errors explain them."""

import runpy
from pathlib import Path

import pytest

from shoal.core.errors import ShoalError

ROOT = Path(__file__).parents[2]
SCRIPT = runpy.run_path(str(ROOT / "scripts" / "errors"))


def test_the_page_is_what_the_classes_give() -> None:
    assert (ROOT / "docs" / "errors.md").read_text() == SCRIPT["page"]()


def test_every_code_has_one_row() -> None:
    codes = {cls.code for cls in SCRIPT["classes"]()} | {"usage"}
    rows = [line.split("`")[1] for line in SCRIPT["page"]().splitlines() if line.startswith("| `")]
    assert len(codes) > 20
    assert rows == sorted(codes)


def test_a_code_that_is_not_explained_is_refused() -> None:
    class Unexplained(ShoalError):
        code = "unexplained"

    with pytest.raises(SystemExit, match="Unexplained"):
        SCRIPT["row"](Unexplained)
