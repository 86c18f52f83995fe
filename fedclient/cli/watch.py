"""`fedclient watch`."""

import asyncio
import math
from collections.abc import Sequence
from dataclasses import asdict

import click

from fedclient.cli.options import CALLING, configured, give_up_after
from fedclient.config import ClientConfig
from shoal.core.exchange.link import ObservedRun
from shoal.shell.console import Console, Result, one_line, verb


@click.command(epilog="Example: fedclient watch --once --json")
@verb
@configured(*CALLING)
@click.pass_obj
@click.option("--once", is_flag=True, help="Print the state of the runs once and exit.")
@give_up_after("10 with --once, else never")
def watch(console: Console, settings: ClientConfig, once: bool, give_up_after: float | None) -> Result:
    """Print the state of the runs, and again at each change until all are over.

    This is for a machine that joined with a token for --role observer. It sees runs, but no devices and no
    models.
    """
    from fedclient.agent.service import watch

    if give_up_after is None:
        give_up_after = 10.0 if once else math.inf
    runs = asyncio.run(watch(settings, console, once, give_up_after, _text))
    return Result({"runs": [asdict(run) for run in runs]}, _text(runs))


def _text(runs: Sequence[ObservedRun]) -> str:
    """A line for each run, newest first."""
    return "\n".join(map(_line, runs)) or "there is no run"


def _line(run: ObservedRun) -> str:
    doing = f", {run.title}" if run.title else ""
    return one_line(f"{run.run} ({run.algorithm}): {run.stage}{doing}")
