"""`fedclient run`."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import click

from fedclient.cli.options import CALLING, configured, give_up_after, own_options
from fedclient.config import ClientConfig
from shoal.shell.console import Console, Result, verb


def one_round(options: Mapping[str, Any]) -> Sequence[str]:
    """The verb that does once what this one does until it is stopped; () if it ends by itself."""
    if options["once"] or options["until_finished"]:
        return ()
    if options["serve"] is None:
        return ("run", "--once")
    return ("place", "--accept-nearest", *(("--run", options["name"]) if options["name"] else ()))


@click.command(epilog="Example: fedclient run --config device.yaml --until-finished")
@verb
@configured(*CALLING, one_round=one_round)
@click.pass_obj
@click.option("--once", is_flag=True, help="Exit after one task.")
@click.option("--until-finished", is_flag=True, help="Exit when no run needs this device any more.")
@click.option(
    "--serve",
    metavar="ADDRESS",
    help="Do not train: answer predictions at 127.0.0.1:PORT or unix:PATH, with the model that fits.",
)
@click.option(
    "--every",
    type=click.FloatRange(min=0.1),
    default=60.0,
    show_default=True,
    metavar="SECONDS",
    help="With --serve: how often to ask for a newer model.",
)
@click.option("--run", "name", default="", metavar="RUN", help="With --serve: run to follow.")
@give_up_after("60 with --once or --until-finished, else never")
def run(
    console: Console,
    settings: ClientConfig,
    once: bool,
    until_finished: bool,
    serve: str | None,
    every: float,
    name: str,
    give_up_after: float | None,
) -> Result:
    """Train for a server, task after task, until stopped.

    With --serve, the device answers predictions for the programs of this machine instead. It asks for its
    model again every 60 seconds, and exchanges it without a pause once the new one has passed a check on the
    device's data. Without a server it goes on with the model that it has.
    """
    if serve is not None:
        from fedclient.light.commands import serve as served

        return Result(asyncio.run(served(settings, console, serve, name, every)), "stopped")
    if once and until_finished:
        raise click.UsageError("--once and --until-finished exclude each other")
    from fedclient.agent.agent import Until
    from fedclient.agent.service import serve as trained

    until = Until.ONCE if once else Until.FINISHED if until_finished else Until.STOPPED
    if give_up_after is None:
        give_up_after = float("inf") if until is Until.STOPPED else 60.0
    reporter = asyncio.run(trained(settings, console, until, give_up_after))
    done = reporter.status
    names = ("device", "server", "run", "round", "cluster", "outcome")
    data = {name: getattr(done, name) or None for name in names} | {"tasks": done.tasks}
    failure = None if until is Until.STOPPED else reporter.failure
    lines = [f"{done.device}: {done.tasks} tasks reported"]
    if done.tasks and reporter.failure is None:
        own = own_options()
        lines.append(f"next: fedclient place{own} --run {done.run}, and then fedclient predict{own}")
    return Result(data, "\n".join(lines), failure)
