"""`fedclient ledger`: the privacy ledger of this device."""

import click

from fedclient.cli.options import configured
from fedclient.config import ClientConfig
from shoal.shell.console import Console, Group, Result, verb


@click.group(cls=Group)
def ledger() -> None:
    """Show what this device released with a privacy guarantee, what that cost, and what is left."""


@ledger.command(epilog="Example: fedclient ledger show --config device.yaml")
@verb
@configured("state")
def show(console: Console, settings: ClientConfig) -> Result:
    """Show each release and its cost: the true epsilon for each version of the data and in total."""
    from fedclient.store import privacy_report

    entries = privacy_report.ledger_of(settings).entries()
    found = privacy_report.facts(entries, settings.privacy)
    data = {"entries": privacy_report.rows(entries), **found, "budget": vars(settings.privacy)}
    return Result(data, privacy_report.text(entries, settings.privacy))


@ledger.command(epilog="Example: fedclient ledger verify --config device.yaml")
@verb
@configured("state")
def verify(console: Console, settings: ClientConfig) -> Result:
    """Verify that no line of the ledger and no stored release was changed or removed."""
    from fedclient.store import privacy_report

    entries = privacy_report.ledger_of(settings).verify()
    return Result({"lines": len(entries)}, f"{len(entries)} lines; the ledger and its releases are intact")
