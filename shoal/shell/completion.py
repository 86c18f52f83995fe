"""`fedserver completion` and `fedclient completion`: complete verbs and options in the shell."""

import os
from pathlib import Path

import click

from shoal.core.errors import ConfigError
from shoal.shell import disk
from shoal.shell.console import Console, Result, verb

SHELLS = {"bash": ".bashrc", "zsh": ".zshrc", "fish": ".config/fish/config.fish"}
"""The shells, and the file in the home folder that each reads at its start."""


@click.command(epilog="Examples: fedserver completion --install; fedclient completion --install")
@verb
@click.option("--shell", type=click.Choice(list(SHELLS)), help="The shell.  [default: that of $SHELL]")
@click.option("--install", is_flag=True, help="Add the line to the file that the shell reads at its start.")
def completion(console: Console, shell: str | None, install: bool) -> Result:
    """Print the line that makes the shell complete verbs and options, or install it."""
    program = click.get_current_context().find_root().info_name or "fedserver"
    shell = shell or Path(os.environ.get("SHELL", "")).name
    if shell not in SHELLS:
        raise ConfigError(f"the shell {shell!r} is not known", f"give --shell: {', '.join(SHELLS)}")
    variable = f"_{program.upper().replace('-', '_')}_COMPLETE"
    line = f'eval "$({variable}={shell}_source {program})"'
    if shell == "fish":
        line = f"{variable}=fish_source {program} | source"
    if not install:
        return Result({"shell": shell, "line": line, "file": None}, line)
    file = Path.home() / SHELLS[shell]
    text = file.read_text() if file.exists() else ""
    if line not in text.splitlines():
        with disk.storing(file):
            file.parent.mkdir(parents=True, exist_ok=True)
            target = file.resolve()  # a link to a file elsewhere stays a link
            mode = target.stat().st_mode & 0o777 if target.exists() else 0o644
        end = "" if not text or text.endswith("\n") else "\n"
        disk.write(target, f"{text}{end}{line}\n".encode(), mode)
    return Result({"shell": shell, "line": line, "file": str(file)}, f"{file} has it; open a new shell")
