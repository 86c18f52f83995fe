"""`fedserver page`: a live page of the fleet, and links to it."""

import asyncio
import importlib.util
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fedserver.cli.options import connect_option, place, state_option
from fedserver.cli.trust.renewing import keep_valid
from shoal.core.errors import ConfigError
from shoal.shell.console import Console, Group, Result, verb

if TYPE_CHECKING:
    from fedserver.page.serve import Running


class Page(Group):
    """`fedserver page` without a verb serves the page."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args or (args[0].startswith("-") and args[0] != "--help"):
            args = ["serve", *args]
        return super().parse_args(ctx, args)


@click.group(cls=Page)
def page() -> None:
    """Serve a live page of the fleet and its runs, and make links to it.

    Without a verb, the page is served.
    """


@page.command(epilog="Example: fedserver page --state server")
@verb
@state_option("The server's state folder.")
@connect_option
@click.option(
    "--listen",
    default="127.0.0.1:50080",
    show_default=True,
    metavar="HOST:PORT",
    help="The loopback address where the page is served.",
)
def serve(console: Console, state: Path, connect: Path | None, listen: str) -> Result:
    """Serve the page until SIGTERM or Ctrl-C, for people on this machine.

    The page only reads. It is a process of its own, beside `fedserver up`: if it ends, nothing else does, and
    while the server is away it waits. It prints a link for your browser, which is valid once and for five
    minutes; `fedserver page open` makes another. A browser that was let in may look for twelve hours.

    To see the page on another machine, run it there, with --connect and a viewer's certificate (see
    `fedserver operator add`): it is served on that machine, and asks the server over TLS.
    """
    if importlib.util.find_spec("starlette") is None or importlib.util.find_spec("uvicorn") is None:
        raise ConfigError(
            "the page needs packages that are not installed", 'pip install "shoal-fed[server,page]"'
        )
    from fedserver.page import serve as process

    folder = place(state, connect)
    if not folder.is_dir():
        raise ConfigError(f"there is no server folder at {state}", "give --state, or --connect")
    if connect is not None:
        keep_valid(folder, console)
    address = ""

    def announce(running: "Running", key: bytes) -> None:
        nonlocal address
        address = running.address
        click.echo(f"the page is at http://{address}")
        click.echo(f"open it once, within five minutes, with {running.link(key)}")
        sys.stdout.flush()

    asyncio.run(process.serve(folder, listen, announce))
    return Result({"address": address}, "stopped")


@page.command("open", epilog="Example: fedserver page open --state server")
@verb
@state_option("The server's state folder.")
@connect_option
@click.option("--browser", is_flag=True, help="Open the link in this machine's browser, too.")
def open_(console: Console, state: Path, connect: Path | None, browser: bool) -> Result:
    """Print a link to the page, which is valid once and for five minutes."""
    import webbrowser

    from fedserver.page.serve import key_of, running

    folder = place(state, connect)
    link = running(folder).link(key_of(folder))
    if browser and not webbrowser.open(link):
        console.say("there is no browser to open; copy the link instead")
    return Result({"link": link}, link)
