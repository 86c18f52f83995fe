"""What several verbs of the command line share."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from fedcore.shell.console import Console, Result

PATH = click.Path(path_type=Path)
PATIENCE = 5.0
"""Seconds that a verb waits for a server that is starting, unless it is told otherwise."""


def connected(function: Callable[..., Result]) -> Callable[..., Result]:
    """Add --state and --connect-timeout; the function gets a client of the server that uses that folder."""

    @click.option(
        "--state",
        type=PATH,
        envvar="FEDSERVER_STATE",
        default=Path("server"),
        show_default=True,
        metavar="DIR",
        help="The folder of the server that is meant.",
    )
    @click.option(
        "--connect-timeout",
        type=click.FloatRange(min=0.0),
        default=PATIENCE,
        show_default=True,
        metavar="SECONDS",
        help="Wait so long for a server that is just starting.",
    )
    @functools.wraps(function)
    def wrapper(console: Console, state: Path, connect_timeout: float, **options: Any) -> Result:
        from fedserver.reach import reach
        from fedserver.rpc.authority_client import AuthorityClient

        reach(state.absolute(), connect_timeout, console.progress)
        with AuthorityClient(state.absolute()) as client:
            return function(console, client, **options)

    return wrapper
