"""`fedserver authority rotate`: another key for the server."""

from typing import TYPE_CHECKING

import click

from fedserver.cli.device import fingerprint
from fedserver.cli.options import connected
from shoal.shell.console import Group, Result, verb

if TYPE_CHECKING:
    from fedserver.rpc.client import OperatorClient


@click.group(cls=Group)
def authority() -> None:
    """Replace the key by which devices know this server, and which issues their certificates."""


@authority.command(epilog="Example: fedserver authority rotate")
@verb
@connected
def rotate(client: "OperatorClient") -> Result:
    """Give the server another key, at once and without a restart.

    Devices come back by themselves, each with its own key, when they next connect: the former key has signed
    the new one. So do those that slept through it. Operators who call over the network need a new folder.
    """
    found = client.rotate()
    lines = [f"the server has a new key; its fingerprint: {fingerprint(found.pin.hex())}"]
    lines += [f"a new folder is needed: fedserver operator add {name}" for name in found.operators]
    return Result({"fingerprint": found.pin.hex(), "operators": list(found.operators)}, "\n".join(lines))
