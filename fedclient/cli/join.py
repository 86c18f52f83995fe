"""`fedclient join`."""

import asyncio

import click

from fedclient.cli.options import configured, own_options
from fedclient.config import ClientConfig
from shoal.shell.console import Console, Result, verb

NEXT = {"train": "run", "infer-only": "place", "observer": "watch"}
"""The verb for which a device has joined, by its role."""


@click.command(epilog="Example: fedclient join shoal1:... --device attic")
@verb
@configured("device", "state")
@click.pass_obj
@click.argument("string", metavar="STRING")
def join(console: Console, settings: ClientConfig, string: str) -> Result:
    """Get an identity with STRING, the join string that `fedserver token create` printed.

    STRING can also be the name of a file that contains it, or - to read it from standard input, which keeps
    it out of the list of processes. If an operator has to approve first, the command waits. If it is
    interrupted, run it again: it continues.
    """
    from fedclient.identity.join import join, read_join_string
    from fedclient.store.state import DeviceFolder

    parsed, folder = read_join_string(string), DeviceFolder(settings.state)
    identity, new = asyncio.run(join(folder, parsed, settings.device, console))
    done = "joined" if new else "has already joined; nothing was changed:"
    lines = [f"{identity.device} {done} federation {identity.federation} as {identity.role.value}"]
    if not new:
        lines.append("if the server does not let it in any more, first type: fedclient leave")
    lines.append(f"next: fedclient {NEXT[identity.role.value]}{own_options()}")
    return Result({**identity.facts(), "new": new, "state": str(settings.state)}, "\n".join(lines))
