"""The help of both programs: complete, and quick."""

import subprocess
import sys

import click
import pytest

import fedclient.__main__
import fedserver.__main__
from shoal.shell.console import Commands
from tests.waiting import HANG

SCRIPT = """
import importlib, sys
importlib.import_module(f"{sys.argv[1]}.__main__").main(["--help"], standalone_mode=False)
print(*sys.modules)
"""
PROGRAMS = {"fedserver": fedserver.__main__.main, "fedclient": fedclient.__main__.main}


@pytest.mark.parametrize("program", PROGRAMS)
def test_it_lists_each_verb_as_click_would_after_importing_all_of_them(program: str) -> None:
    main = PROGRAMS[program]
    assert isinstance(main, Commands)
    context, ours, theirs = click.Context(main), click.HelpFormatter(), click.HelpFormatter()
    main.format_commands(context, ours)
    click.Group.format_commands(main, context, theirs)
    assert ours.getvalue() == theirs.getvalue()
    assert ours.getvalue().count("\n  ") > 5


@pytest.mark.parametrize("program", PROGRAMS)
def test_it_imports_no_verb(program: str) -> None:
    command = [sys.executable, "-c", SCRIPT, program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANG, check=True)
    *text, loaded = done.stdout.splitlines()
    assert "Commands:" in text
    assert "shoal.shell.console" in loaded.split()
    assert not {"numpy", "grpc", "yaml", "cryptography", "asyncio"} & set(loaded.split())


def test_a_verb_that_was_added_to_the_group_itself_is_listed() -> None:
    @click.group(cls=Commands)
    def main() -> None: ...

    @main.command()
    def shown() -> None:
        """Do this. And more."""

    @main.command(hidden=True)
    def concealed() -> None:
        """Do that."""

    formatter = click.HelpFormatter()
    main.format_commands(click.Context(main), formatter)
    assert formatter.getvalue() == "Commands:\n  shown  Do this.\n"
