"""The vocabulary check finds a word wherever a person reads it, and nothing else."""

import runpy
import tomllib
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parent.parent.parent / "scripts"
CHECK = runpy.run_path(str(SCRIPTS / "vocabulary"))
RULES = CHECK["rules_of"](tomllib.loads((SCRIPTS / "vocabulary.toml").read_text())["rule"])


def words(path: str, text: str) -> list[tuple[int, str]]:
    return [(find.line, find.word) for find in CHECK["finds"](path, text, RULES)]


@pytest.mark.parametrize(
    ("path", "text", "found"),
    [
        ("a.py", 'def f() -> None:\n    """It begins anew."""\n', [(2, "anew")]),
        ("a.py", "x = 1  # done for whoever asks\n", [(1, "whoever")]),
        ("a.py", 'raise ValueError("a number is due")\n', [(1, "is due")]),
        ("a.py", '"""A number is\ndue here."""\n', [(1, "is due")]),
        ("a.py", "# it waits in the\n# place of another\n", [(1, "in the place of")]),
        ("a.py", "def mend_all() -> None: ...\n", [(1, "mend_all")]),
        ("a.py", "def test_mend_all() -> None: ...\n", []),
        ("a.py", "color = behaviour.colour\n", []),
        ("a.py", '"""What `anew` was."""\n', []),
        ("a.md", "Standardise the\nBehaviour.\n", [(1, "standardise"), (2, "behaviour")]),
        ("a.md", "The release is due to a change; leave it alone.\n", []),
        ("a.md", "Only in tests alone.\n", [(1, "alone")]),
        ("a.md", "Two devices cannot be told apart.\n", []),
    ],
)
def test_words_are_found_where_people_read_them(path: str, text: str, found: list[tuple[int, str]]) -> None:
    assert sorted(words(path, text)) == found


def test_every_exception_states_its_reason() -> None:
    table = tomllib.loads((SCRIPTS / "vocabulary.toml").read_text())
    assert all(row["reason"] for row in table["allow"])
