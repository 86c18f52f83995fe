"""`fedserver run ...`: start runs, look at them, wait for them, stop them."""

import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedserver.cli import text
from fedserver.cli.options import PATH, connected
from fedserver.coordinator.status_types import RunStatus
from fedserver.store.records import LogLine
from shoal.core.errors import ShoalError, Unavailable
from shoal.shell.config import parsed
from shoal.shell.console import Console, Result, printable, verb

if TYPE_CHECKING:
    from fedserver.rpc.client import OperatorClient

AWAY = 60.0
"""Seconds that a server may be away while somebody waits for a run: a restart is no reason to give up."""
BUILTIN = "builtin:"
POLICY = (
    "devices",
    "minimum",
    "oversample",
    "wait_for_devices",
    "deadline",
    "device_timeout",
    "max_abandoned_rounds",
)


class RunFailed(ShoalError):
    """A run that was waited for gave up, or was stopped."""

    code = "run-failed"


@click.group()
def run() -> None:
    """Start runs, look at them, wait for them, stop them."""


@run.command(
    epilog="Example: fedserver run start digits --algorithm flux --set rounds=20 --devices 8 --minimum 8"
)
@verb
@connected
@click.argument("name", required=False)
@click.option("-f", "--file", "path", type=PATH, help="The run as a YAML file; options come before it.")
@click.option("--algorithm", metavar="NAME", help="Such as fedavg, flux or flux-soft.")
@click.option("--preset", help="Named parameters of the algorithm.  [default: default]")
@click.option("--set", "changes", multiple=True, metavar="NAME=VALUE", help="A parameter of the algorithm.")
@click.option("--devices", type=int, help="Reports that close a round.  [default: of all that are there]")
@click.option("--minimum", type=int, help="Devices to open a round with, and reports to go on with.")
@click.option("--oversample", type=float, help="How many times --devices are asked, against drop-outs.")
@click.option("--wait-for-devices", type=float, metavar="SECONDS", help="Wait so long for --devices.")
@click.option("--deadline", type=float, metavar="SECONDS", help="A round takes no longer.")
@click.option(
    "--device-timeout", type=float, metavar="SECONDS", help="A device not heard of so long is gone."
)
@click.option(
    "--max-abandoned-rounds", type=int, metavar="ROUNDS", help="So many abandoned in a row are a failure."
)
@click.option("--seed", type=int, help="Where all sampling starts from.  [default: 0]")
@click.option("--initial-weights", type=PATH, metavar="FILE", help="Weights to start from, safetensors.")
@click.option(
    "--learner", metavar="FILE", help="learner.py or builtin:NAME: the weights are made here, with PyTorch."
)
@click.option("--learner-options", multiple=True, metavar="NAME=VALUE", help="Arguments of a builtin one.")
@click.option("--model-seed", type=int, help="Of the weights that a learner makes.  [default: 42]")
def start(
    console: Console,
    client: "OperatorClient",
    path: Path | None,
    changes: tuple[str, ...],
    learner: str | None,
    learner_options: tuple[str, ...],
    model_seed: int | None,
    **flags: Any,
) -> Result:
    """Start a run. Without --initial-weights and --learner the first device is asked for its weights.

    NAME must be free; without one it is made from the algorithm, with a number where one is needed.
    """
    from fedserver.cli.weights import initial_weights
    from fedserver.config import read_run

    flags["policy"] = {name: flags.pop(name) for name in POLICY}
    flags["parameters"] = dict(map(parsed, changes))
    flags["learner"] = _learner(learner, dict(map(parsed, learner_options)), model_seed)
    config = read_run(path, flags)
    started = client.start_run(config.spec(), initial_weights(config))
    return Result({"run": started}, f"run {started} has started; see it with: fedserver run show {started}")


def _learner(learner: str | None, options: Mapping[str, Any], seed: int | None) -> Mapping[str, Any]:
    """The learner of the options, as a settings file would have it."""
    builtin = learner is not None and learner.startswith(BUILTIN)
    return {
        "builtin": learner.removeprefix(BUILTIN) if learner and builtin else None,
        "file": Path(learner) if learner and not builtin else None,
        "options": options,
        "seed": seed,
    }


@run.command("ls", epilog="Example: fedserver run ls --json")
@verb
@connected
def ls(console: Console, client: "OperatorClient") -> Result:
    """All runs, newest first."""
    runs = client.runs()
    return Result({"runs": list(map(vars, runs))}, text.runs(runs))


@run.command(epilog="Example: fedserver run show digits")
@verb
@connected
@click.argument("name", metavar="RUN")
def show(console: Console, client: "OperatorClient", name: str) -> Result:
    """Everything about one run."""
    status = client.show(name)
    return Result(text.data(status), text.status(status))


@run.command(epilog="Example: fedserver run stop digits --reason 'wrong data'")
@verb
@connected
@click.argument("name", metavar="RUN")
@click.option("--reason", default="", help="Why, for people.")
def stop(console: Console, client: "OperatorClient", name: str, reason: str) -> Result:
    """End a run for good; its last models stay."""
    status = client.stop_run(name, reason)
    return Result(text.data(status), text.summary(status.summary))


@run.command(epilog="Example: fedserver run wait digits --timeout 600")
@verb
@connected
@click.argument("name", metavar="RUN")
@click.option("--timeout", type=float, metavar="SECONDS", help="Give up after so long.")
def wait(console: Console, client: "OperatorClient", name: str, timeout: float | None) -> Result:
    """Wait until a run is over; fails when the run did. The server may start anew meanwhile."""
    status = _over(console, client, name, timeout)
    stage, error = status.summary.stage, None
    if stage != "finished":
        auxiliary = "was" if stage == "stopped" else "has"
        error = RunFailed(f"run {name} {auxiliary} {stage}: {status.summary.waiting_for}")
    return Result(text.data(status), text.status(status), error)


def _over(console: Console, client: "OperatorClient", name: str, timeout: float | None) -> RunStatus:
    """The run when it is over."""
    until = None if timeout is None else time.monotonic() + timeout
    status, seen = client.show(name), time.monotonic()
    told: tuple[str, int, str] | None = None
    live = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
    while not status.summary.over:
        try:
            left = None if until is None else max(0.0, until - time.monotonic())
            for status in client.watch(name, left):
                found = status.summary
                step = (found.stage, found.round, found.title)
                if live or step != told:
                    console.progress(text.summary(found) if live else text.step(found))
                told = step
                seen = time.monotonic()
        except Unavailable:
            if time.monotonic() - seen > AWAY:
                raise
            time.sleep(1.0)
    return status


@run.command(epilog="Example: fedserver run logs digits --follow")
@verb
@connected
@click.argument("name", metavar="RUN")
@click.option("--follow", is_flag=True, help="Go on until the run is over.")
def logs(console: Console, client: "OperatorClient", name: str, follow: bool) -> Result:
    """What happened in a run, with the tracebacks of learners that failed."""
    lines: list[LogLine] = []
    while True:
        last = not follow or client.show(name).summary.over
        for line in client.log(name, lines[-1].number if lines else 0):
            click.echo(printable(text.line(line)))
            lines.append(line)
        if last:
            return Result({"lines": list(map(vars, lines))}, "")
        time.sleep(1.0)
