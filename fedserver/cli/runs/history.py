"""`fedserver run history | export`: what happened in each round of a run, as text and as tables."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fedserver.cli import text
from fedserver.cli.options import PATH, connected
from shoal.core.errors import ConfigError
from shoal.core.server_kit.history.records import RoundHistory
from shoal.shell.console import Console, Result, continued, one_line, verb

if TYPE_CHECKING:
    from fedserver.rpc.client import OperatorClient

LATEST = 30
"""How many rounds `run history` prints by default."""


@click.command(epilog="Example: fedserver run history digits --rounds 100")
@verb
@connected
@click.argument("name", metavar="RUN")
@click.option(
    "--rounds",
    type=click.IntRange(min=1),
    default=LATEST,
    show_default=True,
    metavar="N",
    help="Show the last N rounds.",
)
@click.option(
    "--devices", is_flag=True, help="Show what each device reported, too, and why others are missing."
)
def history(console: Console, client: "OperatorClient", name: str, rounds: int, devices: bool) -> Result:
    """Show the loss, the accuracy, the clusters and the events of each round of a run."""
    found = list(client.history(name, devices=devices))[-rounds:]
    return Result({"run": name, "rounds": list(map(asdict, found))}, _shown(found))


def _shown(rounds: Sequence[RoundHistory]) -> str:
    if not rounds:
        return "no round is over yet"
    heads = ("round", "for", "devices", "clusters", "loss", "accuracy", "seconds", "sent", "fetched")
    rows = [
        (
            str(each.round),
            one_line(each.title or each.abandoned),
            f"{each.reported} of {each.asked}",
            str(len(each.clusters)),
            "-" if each.loss is None else f"{each.loss:.4f}",
            text.percent(each.accuracy),
            f"{each.seconds:.1f}",
            text.size(each.bytes_up),
            text.size(each.bytes_down),
        )
        for each in rounds
    ]
    events = [
        f"round {each.round}: {event.kind.replace('_', ' ')}: {continued(event.text)}"
        for each in rounds
        for event in each.events
    ]
    return "\n".join([text.table(heads, rows), *events, *_devices(rounds)])


def _devices(rounds: Sequence[RoundHistory]) -> list[str]:
    """What devices did in each round, if that is known."""
    heads = ("round", "device", "cluster", "loss", "accuracy", "samples", "worked", "waited", "missing")
    rows = [
        (
            str(each.round),
            device.device,
            device.cluster or "-",
            "-" if device.loss is None else f"{device.loss:.4f}",
            text.percent(device.accuracy),
            str(device.examples or "-"),
            _seconds(device.worked),
            _seconds(device.waited),
            one_line(device.missing),
        )
        for each in rounds
        for device in each.devices
    ]
    return [text.table(heads, rows)] if rows else []


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f} s"


@click.command(epilog="Example: fedserver run export digits --csv digits-history")
@verb
@connected
@click.argument("name", metavar="RUN")
@click.option("--csv", type=PATH, metavar="DIR", help="Write CSV files to the folder DIR.")
@click.option("--parquet", type=PATH, metavar="DIR", help="Write parquet files to the folder DIR.")
@click.option(
    "--tensorboard", type=PATH, metavar="DIR", help="Write an event file for TensorBoard to the folder DIR."
)
def export(
    console: Console,
    client: "OperatorClient",
    name: str,
    csv: Path | None,
    parquet: Path | None,
    tensorboard: Path | None,
) -> Result:
    """Write the history of a run as tables, and what it was asked for as run.json.

    The tables are rounds, clusters, devices, events and positions; their rows have the number of the round.
    TensorBoard gets the curves over the rounds, of all devices and of each cluster. Parquet needs the extra
    `data`, and TensorBoard's format the extra `tensorboard`. `fedserver model export` writes the models.
    """
    from fedserver.cli.runs.curves import write_events
    from fedserver.cli.runs.tables import write_tables

    if csv is None and parquet is None and tensorboard is None:
        raise ConfigError("no format was given", "give --csv DIR, --parquet DIR or --tensorboard DIR")
    status, rounds = client.show(name), list(client.history(name))
    written: list[str] = []
    for folder, kind in ((csv, "csv"), (parquet, "parquet")):
        if folder is not None:
            written += map(str, write_tables(folder, kind, text.data(status), rounds))
    if tensorboard is not None:
        written.append(str(write_events(tensorboard, name, rounds)))
    return Result({"run": name, "files": written}, "\n".join(written))


COMMANDS = (history, export)
