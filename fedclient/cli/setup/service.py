"""`fedclient service`: let systemd keep a device running."""

import shlex
import sys
from pathlib import Path

import click

from fedclient.cli.options import PATH
from fedclient.config import read
from shoal.core.errors import ConfigError
from shoal.shell import disk
from shoal.shell.console import Group, Result, verb

UNIT = """# Written by fedclient service install. A unit with fewer rights is in deploy/systemd.
[Unit]
Description=Shoal device
After=network-online.target
StartLimitIntervalSec=0

[Service]
Type=exec
ExecStart={command}
WorkingDirectory={folder}
KillSignal=SIGTERM
TimeoutStopSec=30
Restart=always
RestartSec=5
# Wrong settings (3), refused or revoked (5) and a wrong version (7) need a person to fix them.
RestartPreventExitStatus=3 5 7
UMask=0077
Nice=10
NoNewPrivileges=yes

[Install]
WantedBy=default.target
"""


def unit_file() -> Path:
    """Where the unit of this user is."""
    return Path.home() / ".config" / "systemd" / "user" / "fedclient.service"


@click.group(cls=Group)
def service() -> None:
    """Let systemd keep this device running, also after a restart of the machine."""


@service.command(epilog="Example: fedclient service install --config device.yaml")
@verb
@click.option("-c", "--config", "path", type=PATH, required=True, help="Settings file, in YAML. Required.")
@click.option("--state", type=PATH, metavar="FOLDER", help="Folder of this device.  [default: state]")
def install(path: Path, state: Path | None) -> Result:
    """Write a unit of systemd for your user, which runs `fedclient run` with these settings.

    The settings are read first. An existing unit is replaced.
    """
    settings = read(path, {"state": state})
    command = [sys.executable, "-m", "fedclient", "run", "--config", str(path.absolute())]
    command += ["--state", str(settings.state.absolute())]
    # A percent sign is a specifier of systemd, and a dollar sign a variable.
    line = shlex.join(command).replace("%", "%%").replace("$", "$$")
    unit = UNIT.format(command=line, folder=str(path.absolute().parent).replace("%", "%%"))
    target = unit_file()
    if "\n" in line or "\n" in str(path):
        raise ConfigError("a path with a line end cannot be written into a unit", "rename the folder")
    with disk.storing(target):
        target.parent.mkdir(parents=True, exist_ok=True)
    disk.write(target, unit.encode())
    lines = [
        f"{target} is written; start it now and at each login:",
        "  systemctl --user daemon-reload && systemctl --user enable --now fedclient",
        "and without a login, too: loginctl enable-linger",
        "its log: fedclient logs --follow, or journalctl --user -u fedclient",
        "to end it: systemctl --user disable --now fedclient",
    ]
    return Result({"unit": unit, "path": str(target)}, "\n".join(lines))
