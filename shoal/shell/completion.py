"""`fedserver completion` and `fedclient completion`: complete verbs and options in the shell."""

import os
from pathlib import Path

import click

from shoal.core.errors import ConfigError
from shoal.shell.console import Result, verb

SHELLS = ("bash", "zsh", "fish")


@click.command(epilog="Examples: fedserver completion >> ~/.bashrc; fedclient completion >> ~/.bashrc")
@verb
def completion() -> Result:
    """Print the line that makes the shell of $SHELL complete verbs and options: bash, zsh or fish.

    Append it to the file that the shell reads at its start, which is ~/.bashrc, ~/.zshrc or
    ~/.config/fish/config.fish.
    """
    program = click.get_current_context().find_root().info_name or "fedserver"
    shell = Path(os.environ.get("SHELL", "")).name
    if shell not in SHELLS:
        raise ConfigError(
            f"the shell {shell!r} is not known",
            f"name one of {', '.join(SHELLS)}: SHELL=zsh {program} completion",
        )
    variable = f"_{program.upper().replace('-', '_')}_COMPLETE"
    line = f'eval "$({variable}={shell}_source {program})"'
    if shell == "fish":
        line = f"{variable}=fish_source {program} | source"
    return Result({"shell": shell, "line": line}, line)
