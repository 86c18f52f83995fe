"""`fedclient ledger`: the privacy ledger of this device."""

import click

from fedclient.cli.options import configured
from fedclient.config import ClientConfig
from shoal.shell.console import Result, verb


@click.command(epilog="Examples: fedclient ledger --config device.yaml; fedclient ledger --verify")
@verb
@configured("state")
@click.option(
    "--verify", is_flag=True, help="Only verify that no line and no stored release was changed or removed."
)
def ledger(settings: ClientConfig, verify: bool) -> Result:
    """Show what this device released with a privacy guarantee, what that cost, and what is left.

    Each release is shown with its cost, and the true epsilon for each version of the data and in total.
    """
    from fedclient.store import privacy_report

    found = privacy_report.ledger_of(settings)
    if verify:
        lines = len(found.verify())
        return Result({"lines": lines}, f"{lines} lines; the ledger and its releases are intact")
    entries = found.entries()
    data = {"entries": privacy_report.rows(entries), **privacy_report.facts(entries, settings.privacy)}
    return Result({**data, "budget": vars(settings.privacy)}, privacy_report.text(entries, settings.privacy))
