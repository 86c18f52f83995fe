"""What several verbs of the command line share."""

import functools
import os
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from shoal.core.engine.timeouts import ANSWER, MOMENT
from shoal.shell.console import Console, Result

PATH = click.Path(path_type=Path)
LOOK = 0.05
"""Seconds from one look to the next."""


def state_option(help: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """--state, as all verbs of the server have it."""
    return click.option(
        "--state",
        type=PATH,
        envvar="FEDSERVER_STATE",
        default=Path("server"),
        show_default=True,
        metavar="DIR",
        help=help,
    )


def connected(function: Callable[..., Result]) -> Callable[..., Result]:
    """Add --state and --connect-timeout; the function gets a client of the server that uses that folder."""

    @state_option("The folder of the server that is meant.")
    @click.option(
        "--connect-timeout",
        type=click.FloatRange(min=0.0),
        default=ANSWER,
        show_default=True,
        metavar="SECONDS",
        help="Wait so long for a server that is starting.",
    )
    @functools.wraps(function)
    def wrapper(console: Console, state: Path, connect_timeout: float, **options: Any) -> Result:
        from fedserver.rpc.authority_client import AuthorityClient

        reach(state.absolute(), connect_timeout, console.progress)
        with AuthorityClient(state.absolute()) as client:
            return function(console, client, **options)

    return wrapper


def reach(state: Path, patience: float, tell: Callable[[str], None]) -> bool:
    """Wait until a server of this folder takes calls; whether one does. tell: told when there is a wait."""
    began = time.monotonic()
    while not answers(state):
        waited = time.monotonic() - began
        if waited >= (patience if is_starting(state) else min(patience, MOMENT)) or not state.parent.is_dir():
            return False
        tell(f"waiting for the server of {state}")
        time.sleep(LOOK)
    return True


def answers(state: Path) -> bool:
    """Whether somebody listens on the operators' socket."""
    from fedserver.rpc.client import SOCKET

    with socket.socket(socket.AF_UNIX) as trial:
        try:
            trial.connect(str(state / SOCKET))
        except OSError:  # not there, nobody behind it, not ours, a name that is too long
            return False
    return True


def is_starting(state: Path) -> bool:
    """Whether the folder looks as if a server will answer soon."""
    from fedserver.store.store import LOCK

    try:
        owner = (state / LOCK).read_text().strip()
    except OSError:
        return state.is_dir()
    if not owner.isdigit():  # a process has the lock, and is about to write who it is
        return True
    try:
        os.kill(int(owner), 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):  # somebody else's
        return True
    return True
