"""`fedserver run history`: what happened in each round of a run."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from fedserver.cli import text
from fedserver.cli.options import connected
from shoal.core.server_kit.history.records import RoundHistory
from shoal.core.texts import measure, percent
from shoal.shell.console import Result, continued, one_line, verb

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
def history(
    client: "OperatorClient",
    name: str,
    rounds: int,
    devices: bool,
) -> Result:
    """Show the loss, the accuracy, the clusters and the events of each round of a run.

    With --json, other programs read all that is known of them.
    """
    found = list(client.history(name, devices=devices))[-rounds:]
    status = client.show(name)
    verdict, what = status.verdict, measure(status.summary.numbers)
    data = {"run": name, "verdict": verdict.facts() if verdict else None, "rounds": list(map(asdict, found))}
    return Result(data, "\n".join([*([str(verdict)] if verdict else []), _shown(found, what)]))


def _shown(rounds: Sequence[RoundHistory], what: str) -> str:
    if not rounds:
        return "no round is over yet"
    heads = ("round", "for", "devices", "clusters", "loss", what, "seconds", "sent", "fetched")
    rows = [
        (
            str(each.progress),
            one_line(each.title or each.abandoned),
            f"{each.reported} of {each.asked}",
            str(len(each.clusters)),
            "-" if each.loss is None else f"{each.loss:.4f}",
            percent(each.accuracy),
            f"{each.seconds:.1f}",
            text.size(each.bytes_up),
            text.size(each.bytes_down),
        )
        for each in rounds
    ]
    events = [
        f"round {each.progress}: {event.kind.replace('_', ' ')}: {continued(event.text)}"
        for each in rounds
        for event in each.events
    ]
    return "\n".join([text.table(heads, rows), *events, *_devices(rounds, what)])


def _devices(rounds: Sequence[RoundHistory], what: str) -> list[str]:
    """What devices did in each round, if that is known."""
    heads = ("round", "device", "cluster", "loss", what, "samples", "worked", "waited", "missing")
    rows = [
        (
            str(each.progress),
            device.device,
            device.cluster or "-",
            "-" if device.loss is None else f"{device.loss:.4f}",
            percent(device.accuracy),
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
