"""What several verbs of the command line share."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedcore.shell.console import Console, Result

if TYPE_CHECKING:
    pass

PATH = click.Path(path_type=Path)


def connected(function: Callable[..., Result]) -> Callable[..., Result]:
    """Add --state; the function gets a client of the server that uses that folder."""

    @click.option(
        "--state",
        type=PATH,
        envvar="FEDSERVER_STATE",
        default=Path("server"),
        show_default=True,
        metavar="DIR",
        help="The folder of the server that is meant.",
    )
    @functools.wraps(function)
    def wrapper(console: Console, state: Path, **options: Any) -> Result:
        from fedserver.rpc.client import OperatorClient

        with OperatorClient(state.absolute()) as client:
            return function(console, client, **options)

    return wrapper
