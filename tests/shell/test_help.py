"""The help of both programs: complete, and quick."""

import inspect
import subprocess
import sys

import click
import pytest

import fedclient.__main__
import fedserver.__main__
from shoal.shell.console import Commands, Group
from tests.waiting import HANG

SCRIPT = """
import importlib, sys
importlib.import_module(f"{sys.argv[1]}.__main__").main(["--help"], standalone_mode=False)
print(*sys.modules)
"""
PROGRAMS = {"fedserver": fedserver.__main__.main, "fedclient": fedclient.__main__.main}


@pytest.mark.parametrize("program", PROGRAMS)
def test_it_lists_each_verb_as_if_all_of_them_were_imported(program: str) -> None:
    main = PROGRAMS[program]
    assert isinstance(main, Commands)
    context = click.Context(main)
    assert main.texts(context) == {
        verb: inspect.cleandoc(text) for verb, text in Group.texts(main, context).items()
    }
    assert len(main.texts(context)) > 5


def groups(command: click.Command) -> list[click.Group]:
    """The command, if it is a group, and all groups below it."""
    if not isinstance(command, click.Group):
        return []
    context = click.Context(command)
    verbs = [command.get_command(context, verb) for verb in command.list_commands(context)]
    return [command, *(group for verb in verbs if verb is not None for group in groups(verb))]


@pytest.mark.parametrize("program", PROGRAMS)
def test_it_says_a_whole_sentence_about_each_verb(program: str) -> None:
    found = groups(PROGRAMS[program])
    assert len(found) > 1
    for group in found:
        formatter = click.HelpFormatter(width=80)
        group.format_commands(click.Context(group), formatter)
        assert "..." not in formatter.getvalue()
        assert formatter.getvalue().rstrip().endswith(".")


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
