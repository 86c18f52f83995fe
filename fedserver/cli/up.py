"""`fedserver up`: the daemon."""

import asyncio
import logging
import sys
from pathlib import Path
from typing import Any

import click

from fedserver.cli.options import PATH
from shoal.shell.console import Console, Result, printable, verb


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
