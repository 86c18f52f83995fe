"""`fedserver gateway ...`: processes between devices and the server, for fleets of many thousands."""

import asyncio
import logging
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fedserver.cli.options import PATH, connected
from shoal.shell.console import Console, Group, Result, verb

if TYPE_CHECKING:
    from fedserver.rpc.client import AuthorityClient

FOLDER = "The gateway's folder."


@click.group(cls=Group)
def gateway() -> None:
    """Let other processes hold the connections of devices.

    \b
    A gateway ends the TLS connections of devices and brings their calls to the server in batches:
      fedserver gateway add east --host east.example.org --folder east     where the server runs
      scp -r east east.example.org:                                        the folder contains a key
      fedserver gateway up --folder east                                   on the other machine
    Then name it in the server's settings (gateways: ['east.example.org:50051']) and restart the server.
    `fedserver device revoke east` ends a gateway for good.
    """


@gateway.command(epilog="Example: fedserver gateway add east --host east.example.org --folder east")
@verb
@connected
@click.argument("name", metavar="GATEWAY")
@click.option(
    "--host",
    "hosts",
    multiple=True,
    required=True,
    metavar="NAME",
    help="Name or address at which devices reach the gateway, or a load balancer before it. Repeatable.",
)
@click.option("--folder", type=PATH, required=True, metavar="DIR", help="The folder to create.")
@click.option(
    "--listen", metavar="HOST:PORT", help="Where the gateway listens for devices.  [default: 0.0.0.0:50051]"
)
def add(
    console: Console,
    client: "AuthorityClient",
    name: str,
    hosts: tuple[str, ...],
    folder: Path,
    listen: str | None,
) -> Result:
    """Create the folder of a gateway: key, certificate and settings.

    The certificate is valid for a year.

    Repeat it with the same folder to replace the key and the certificate; the old ones are void as soon as
    the gateway was started with the new ones. A gateway sees the calls of its devices: it is trusted with
    what they send and with whom it speaks for. Protect the folder like the server's.
    """
    from fedserver.addresses import host_and_port
    from fedserver.rpc.gateway.folder import GatewayFolder
    from shoal.core.identity.certificates import request

    if listen is not None:  # before the server makes the gateway's old certificate void
        host_and_port("--listen", listen)
    found = GatewayFolder(folder.absolute())
    key = found.key()
    added = client.add_gateway(name, hosts, request(key))
    found.fill(key, added, listen)
    facts = {"gateway": name, "hosts": list(hosts), "folder": str(folder), "servers": list(added.servers)}
    return Result(
        facts,
        f"gateway {name} for {', '.join(hosts)} calls {', '.join(added.servers)}\n"
        f"next, on its machine:\n  fedserver gateway up --folder {folder}",
    )


@gateway.command(epilog="Example: fedserver gateway up --folder east")
@verb
@click.option("--folder", type=PATH, required=True, metavar="DIR", help=FOLDER)
@click.option(
    "--listen",
    metavar="HOST:PORT",
    help="Where the gateway listens for devices.  [default: as in DIR/gateway.yaml]",
)
def up(console: Console, folder: Path, listen: str | None) -> Result:
    """Run a gateway until SIGTERM or SIGINT. It finds the server that leads by itself."""
    from fedserver.rpc.gateway.folder import GatewayFolder
    from fedserver.rpc.gateway.process import serve
    from fedserver.telemetry.logs import Bounded, Printable
    from shoal.shell.memory import freeze_loaded, share_arenas

    share_arenas()
    found = GatewayFolder(folder.absolute())
    settings = found.settings(listen)
    log = logging.StreamHandler(sys.stderr)
    log.setFormatter(Printable("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    log.addFilter(Bounded())
    logging.basicConfig(handlers=[log], level=logging.INFO)
    at = {"address": ""}

    def announce(address: str) -> None:
        at["address"] = address
        freeze_loaded()
        click.echo(f"listening on {address}")
        sys.stdout.flush()

    asyncio.run(serve(found, settings, announce))
    return Result(at, "stopped")
