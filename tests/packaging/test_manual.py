"""Every verb of both programs is in the manual."""

import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from fedclient.__main__ import main as fedclient
from fedserver.__main__ import main as fedserver

ROOT = Path(__file__).parents[2]
PAGES = (ROOT / "README.md", ROOT / "SECURITY.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md"))
SERVE = ["page", "serve"]
"""The one verb that need not be written out: `fedserver page` serves the page."""


def verbs(command: click.Command, path: list[str]) -> Iterator[list[str]]:
    """All verbs that `--help` lists."""
    if not isinstance(command, click.Group):
        yield path
        return
    context = click.Context(command)
    for name in command.list_commands(context):
        found = command.get_command(context, name)
        assert found is not None
        if not found.hidden and [*path, name] != SERVE:
            yield from verbs(found, [*path, name])


@pytest.mark.parametrize(("program", "main"), [("fedserver", fedserver), ("fedclient", fedclient)])
def test_every_verb_is_in_the_manual(program: str, main: click.Group) -> None:
    lines = [line for page in PAGES for line in page.read_text().splitlines()]
    listed, missing = list(verbs(main, [])), []
    assert len(listed) > 10
    for path in listed:
        *group, name = map(re.escape, path)
        # "fedserver run pause RUN | resume RUN" names both verbs.
        pattern = re.compile(rf"{' '.join([program, *group])} ([^`]*\W)?{name}\b")
        if not any(pattern.search(line) for line in lines):
            missing.append(" ".join([program, *path]))
    assert not missing, f"not in docs/: {missing}"
