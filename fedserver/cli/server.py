"""`fedserver init`, `up` and `status`: make a server, run it, look at it."""

import asyncio
import logging
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedserver.cli import text
from fedserver.cli.options import PATH, connected, state_option
from shoal.shell.console import Console, Result, printable, verb

if TYPE_CHECKING:
    from fedserver.rpc.client import OperatorClient


@click.command(epilog="Example: fedserver init --state server --host shoal.example.org --host 192.168.1.10")
@verb
@state_option("The server's folder, which is made.")
@click.option(
    "--host",
    "hosts",
    multiple=True,
    metavar="NAME",
    help="A name or address of this machine; devices are told to call the first. Repeatable.",
)
@click.option("--listen", metavar="HOST:PORT", help="Where devices call.  [default: 0.0.0.0:50051]")
@click.option("--enroll", metavar="HOST:PORT", help="Where devices join.  [default: 0.0.0.0:50052]")
@click.option(
    "--name", default="shoal", show_default=True, help="The federation's name, part of every certificate."
)
def init(
    console: Console,
    state: Path,
    hosts: tuple[str, ...],
    listen: str | None,
    enroll: str | None,
    name: str,
) -> Result:
    """Make the certificate authority, the server's certificates and its settings.

    Safe to repeat: what is there stays as it is, what a crash left unmade is made, and so is what was lost of
    DIR/authority, the root's own key apart. Where every --host is this machine itself, only this machine is
    listened to. The keys are in DIR/authority, for this user alone: back them up.
    """
    from fedserver.authority import setup

    made = setup.init(state.absolute(), hosts, listen, enroll, name)
    what = f"made {', '.join(made.made)}" if made.made else "everything was there; nothing was changed"
    stays = f"\nthe hosts stay as they are: change them in {state}/fedserver.yaml, then start it anew"
    text = (
        f"{state}: federation {made.federation}, for {', '.join(made.hosts)}; {what}"
        f"{stays if hosts and hosts != made.hosts else ''}\n"
        f"next:\n  fedserver up --state {state}\n  fedserver token create --state {state}"
    )
    return Result({"state": str(state), **asdict(made)}, text)


class Printable(logging.Formatter):
    """Lines of the log may quote devices."""

    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))


@click.command(epilog="Example: fedserver up --state server")
@verb
@click.option("-c", "--config", "path", type=PATH, envvar="FEDSERVER_CONFIG", help="The settings, YAML.")
@click.option(
    "--state",
    type=PATH,
    envvar="FEDSERVER_STATE",
    metavar="DIR",
    help="The server's folder.  [default: server]",
)
@click.option("--listen", metavar="HOST:PORT", help="Where devices call.  [default: 127.0.0.1:50051]")
@click.option("--enroll", metavar="HOST:PORT", help="Where devices join.  [default: 127.0.0.1:50052]")
@click.option("--insecure-loopback", is_flag=True, default=None, help="Plain text, to this machine only.")
@click.option(
    "--log-level", type=click.Choice(["debug", "info", "warning", "error"]), help="What goes to stderr."
)
def up(console: Console, path: Path | None, **flags: Any) -> Result:
    """Serve devices and operators until SIGTERM or Ctrl-C; runs go on where the last stop left them.

    Devices call over TLS, with certificates; `fedserver init` makes the server's, and a settings file in DIR
    that is read here. Options come before it.
    """
    from fedserver.config import read_server
    from fedserver.daemon import serve

    config = read_server(path, flags)
    log = logging.StreamHandler(sys.stderr)
    log.setFormatter(Printable("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(handlers=[log], level=config.log_level.upper())
    found = {"address": "", "enroll": ""}

    def announce(address: str, enroll: str) -> None:
        found.update(address=address, enroll=enroll)
        click.echo(f"listening on {address}")
        if enroll:
            click.echo(f"devices join at {enroll}")
        sys.stdout.flush()

    asyncio.run(serve(config, announce))
    return Result(found, "stopped")


@click.command(epilog="Example: fedserver status --state server")
@verb
@connected
def status(console: Console, client: "OperatorClient") -> Result:
    """What the server does: its devices, and what each run waits for, from whom, and until when."""
    found = client.status()
    return Result({**asdict(found), **text.private_data(found.released)}, text.server(found))
