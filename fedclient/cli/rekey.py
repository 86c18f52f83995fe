"""`fedclient rekey`."""

import asyncio

import click

from fedclient.cli.options import configured
from fedclient.config import ClientConfig
from shoal.shell.console import Result, verb


@click.command(epilog="Example: fedclient rekey --state state")
@verb
@configured("state")
def rekey(settings: ClientConfig) -> Result:
    """Give this device another key, as after someone may have read the present one. Stop its agent first.

    The former key proves it, and is revoked in the same moment. If the command is interrupted, run it again:
    it continues, and so does the agent.
    """
    from fedclient.identity.join import change_key
    from fedclient.store.state import DeviceFolder

    identity = asyncio.run(change_key(DeviceFolder(settings.state)))
    text = f"{identity.device} has another key; its fingerprint: {identity.fingerprint}"
    return Result({**identity.facts(), "state": str(settings.state)}, text)
