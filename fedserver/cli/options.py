"""What several verbs of the command line share."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from shoal.core.engine.timeouts import ANSWER
from shoal.shell.console import Console, Result

PATH = click.Path(path_type=Path)


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
        from fedserver.cli.waiting import reach
        from fedserver.rpc.authority_client import AuthorityClient

        reach(state.absolute(), connect_timeout, console.progress)
        with AuthorityClient(state.absolute()) as client:
            return function(console, client, **options)

    return wrapper
