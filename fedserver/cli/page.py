"""`fedserver page`: a live page of the fleet, or a link to it."""

import asyncio
import importlib.util
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fedserver.cli.options import connect_option, place, state_option
from shoal.core.errors import ConfigError
from shoal.shell.console import Result, verb

if TYPE_CHECKING:
    from fedserver.page.serve import Running


@click.command(epilog="Examples: fedserver page --state server; fedserver page --link")
@verb
@state_option
@connect_option
@click.option(
    "--listen",
    default="127.0.0.1:50080",
    show_default=True,
    metavar="HOST:PORT",
    help="The loopback address where the page is served.",
)
@click.option("--link", is_flag=True, help="Only print another link to the page that is served already.")
def page(state: Path, connect: Path | None, listen: str, link: bool) -> Result:
    """Serve a live page of the fleet and its runs until SIGTERM or Ctrl-C, for people on this machine.

    The page only reads. It is a process of its own, beside `fedserver up`: if it ends, nothing else does, and
    while the server is away it waits. It prints a link for your browser, which is valid once and for five
    minutes; `fedserver page --link` prints another. A browser that was let in may look for twelve hours.

    To see the page on another machine, run it there, with --connect and a viewer's certificate (see
    `fedserver operator add`): it is served on that machine, and asks the server over TLS.
    """
    folder = place(state, connect)
    if link:
        from fedserver.page.serve import key_of, running

        found = running(folder).link(key_of(folder))
        return Result({"link": found}, found)
    if importlib.util.find_spec("starlette") is None or importlib.util.find_spec("uvicorn") is None:
        raise ConfigError("the page needs packages that are not installed", "pip install starlette uvicorn")
    from fedserver.page import serve as process

    if not folder.is_dir():
        raise ConfigError(f"there is no server folder at {state}", "give --state, or --connect")
    address = ""

    def announce(running: "Running", key: bytes) -> None:
        nonlocal address
        address = running.address
        click.echo(f"the page is at http://{address}")
        click.echo(f"open it once, within five minutes, with {running.link(key)}")
        sys.stdout.flush()

    asyncio.run(process.serve(folder, listen, announce))
    return Result({"address": address}, "stopped")
