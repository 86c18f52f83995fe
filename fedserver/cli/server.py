"""`fedserver init`, `up` and `status`: create a server, run it, look at it."""

import asyncio
import logging
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedserver.cli import text
from fedserver.cli.options import connected, state_option, wait_option
from shoal.shell.console import Result, verb

if TYPE_CHECKING:
    from fedserver.rpc.client import OperatorClient


@click.command(epilog="Example: fedserver init --state server --host shoal.example.org --host 192.168.1.10")
@verb
@state_option
@click.option(
    "--host",
    "hosts",
    multiple=True,
    metavar="NAME",
    help="Name or address at which devices reach this machine; the first one goes into join strings. "
    "Repeatable. Required the first time.",
)
@click.option(
    "--listen", metavar="HOST:PORT", help="Where the server listens for devices.  [default: 0.0.0.0:50051]"
)
@click.option(
    "--join-listen",
    metavar="HOST:PORT",
    help="Where the server listens for devices that join.  [default: 0.0.0.0:50052]",
)
@click.option(
    "--name",
    default="shoal",
    show_default=True,
    help="Name of the federation; it is part of every certificate.",
)
def init(
    state: Path,
    hosts: tuple[str, ...],
    listen: str | None,
    join_listen: str | None,
    name: str,
) -> Result:
    """Create a state folder with the server's key and settings.

    The command is safe to repeat: it keeps what exists, and creates what a crash left out. If every --host is
    a loopback address, the server listens on 127.0.0.1 only. The key, DIR/authority/server.pem, is readable
    by this user only, and cannot be made again: back it up.
    """
    from fedserver.authority import setup

    made = setup.init(state.absolute(), hosts, listen, join_listen, name)
    what = f"created {', '.join(made.made)}" if made.made else "everything exists; nothing was changed"
    stays = (
        f"\nthe hosts were not changed: edit `hosts` in {state}/fedserver.yaml, then restart the server"
        if hosts and hosts != made.hosts
        else ""
    )
    summary = (
        f"{state}: federation {made.federation}, hosts {', '.join(made.hosts)}; {what}{stays}\n"
        f"next:\n  fedserver up --state {state}\n  fedserver token create --state {state}"
    )
    return Result({"state": str(state), **asdict(made)}, summary)


@click.command(epilog="Example: fedserver up --state server")
@verb
@state_option
@click.option(
    "--listen",
    metavar="HOST:PORT",
    help="Where the server listens for devices.  [default: as in the file, or 127.0.0.1:50051]",
)
@click.option(
    "--join-listen",
    metavar="HOST:PORT",
    help="Where the server listens for devices that join.  [default: as in the file, or 127.0.0.1:50052]",
)
@click.option(
    "--insecure-loopback",
    is_flag=True,
    default=None,
    help="Serve plain text without certificates, on a loopback address only. For tests.",
)
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    help="Least severe messages to log to stderr.  [default: info]",
)
def up(**flags: Any) -> Result:
    """Run the server until SIGTERM or Ctrl-C. Runs continue where the last stop left them.

    Devices connect over TLS with certificates: create the server's first with `fedserver init`, which also
    writes DIR/fedserver.yaml. Command-line options override the file.
    """
    from fedserver.config import read_server
    from fedserver.daemon import serve
    from fedserver.telemetry.logs import Bounded, Json, Printable
    from shoal.shell.memory import freeze_loaded, share_arenas

    share_arenas()
    config = read_server(flags)
    log = logging.StreamHandler(sys.stderr)
    text_format = Printable("%(asctime)s %(levelname)s %(name)s: %(message)s")
    log.setFormatter(Json() if config.log_format == "json" else text_format)
    log.addFilter(Bounded())
    logging.basicConfig(handlers=[log], level=config.log_level.upper())
    found = {"address": "", "join_address": ""}

    def announce(address: str, join_address: str) -> None:
        found.update(address=address, join_address=join_address)
        freeze_loaded()
        click.echo(f"listening on {address}")
        if join_address:
            click.echo(f"devices join at {join_address}")
        sys.stdout.flush()

    asyncio.run(serve(config, announce))
    return Result(found, "stopped")


@click.command(epilog="Examples: fedserver status --state server; fedserver status --wait 30")
@verb
@connected
@wait_option
def status(client: "OperatorClient") -> Result:
    """Show the server, its runs and its devices: what each run waits for, from whom, and until when.

    Exits with code 4 at once if no server is running.
    """
    found = client.status()
    return Result({**asdict(found), **text.private_data(found.released)}, text.server(found))
