"""`fedclient logs`: what the agent of this device did."""

import time

import click

from fedclient.cli.options import configured
from fedclient.config import ClientConfig
from fedclient.store.agent_log import AgentLog
from shoal.core.errors import NotFound
from shoal.shell.console import Result, printable, verb

POLL_SECONDS = 0.5
"""Seconds between two looks of --follow."""


@click.command(epilog="Example: fedclient logs --config device.yaml --follow")
@verb
@configured("state")
@click.option(
    "--lines",
    type=click.IntRange(min=0),
    default=100,
    show_default=True,
    metavar="N",
    help="Print the last N lines.",
)
@click.option("--follow", is_flag=True, help="Keep printing new lines until Ctrl-C.")
def logs(settings: ClientConfig, lines: int, follow: bool) -> Result:
    """Print what `fedclient run` did on this device: its tasks, what it waited for, and what failed.

    The log is in the device's folder, takes at most 2 MB, and never leaves the device.
    """
    log = AgentLog(settings.state)
    if not (found := log.last(lines or 1)) and not follow:
        raise NotFound(f"there is no log in {settings.state}", "it begins with: fedclient run")
    found = found[len(found) - lines :] if lines else []
    for line in found:
        click.echo(printable(line))
    if follow:
        for line in log.follow(lambda: time.sleep(POLL_SECONDS)):
            click.echo(printable(line))
    return Result({"lines": found}, "")
