"""`fedclient leave`: take a device out of its federation."""

import shutil
from contextlib import suppress

import click

from fedclient.cli.options import configured
from fedclient.cli.setup.service import unit_file
from fedclient.config import ClientConfig
from fedclient.store import privacy_report
from fedclient.store.agent_log import NAME
from fedclient.store.state import STATUS, DeviceFolder, Outbox
from shoal.core.errors import ConfigError, LedgerFault
from shoal.shell import disk
from shoal.shell.console import Result, confirm, verb

FOLDERS = ("identity", "outbox", "blobs", "memory", "model", "model-next", "shadow", "watch", "consent")
FILES = ("mark", "trained.json", STATUS, NAME, f"{NAME}.1")


@click.command(epilog="Example: fedclient leave --state state --yes")
@verb
@configured("state")
@click.option("--yes", is_flag=True, help="Do not ask.")
def leave(settings: ClientConfig, yes: bool) -> Result:
    """Delete this device's identity, its models, its results, and what it keeps of its data.

    The privacy ledger stays: what the data have lost stays lost, and counts if the device joins again. The
    key exists nowhere else, so no one can use the certificate any more; tell the server's operator, who
    revokes it, so that no run waits for this device.
    """
    folder = DeviceFolder(settings.state)
    name = folder.known_device()
    if name is None:
        raise ConfigError(f"{settings.state} is not the folder of a device", "give --state")
    waiting = Outbox(folder.outbox).pending() is not None
    with folder.locked():
        lost = ", with a result that the server does not have yet" if waiting else ""
        if not yes:
            confirm(f"delete the identity of {name}{lost}?")
        with disk.storing(folder.root):
            for each in FOLDERS:
                path = folder.root / each
                if path.is_dir():
                    shutil.rmtree(path)
                else:
                    path.unlink(missing_ok=True)
            for each in FILES:
                (folder.root / each).unlink(missing_ok=True)
            disk.sync_folder(folder.root)
        with suppress(LedgerFault):  # a damaged ledger keeps no device from leaving, nor does a full disk now
            privacy_report.ledger_of(settings).keep_only(())
    lines = [
        f"{name} has left; its privacy ledger stays in {folder.privacy}",
        f"tell the server's operator: fedserver device revoke {name}",
        f"to join again: fedclient join STRING --state {folder.root}; an operator has to approve it",
    ]
    if unit_file().exists():
        lines.append("a unit of systemd may still run it: systemctl --user disable --now fedclient")
    return Result({"device": name, "state": str(settings.state)}, "\n".join(lines))
