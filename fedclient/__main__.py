"""The command line of a device: join, check, run, enroll, predict, watch, status, ledger.

What a verb needs is imported when it is used, so that `status` and `--help` are quick and need no PyTorch.
"""

import asyncio
import functools
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedclient.config import ClientConfig, read
from shoal import __version__
from shoal.shell.console import Commands, Console, Result, verb

if TYPE_CHECKING:
    from fedclient.placing import Enrolment

PATH = click.Path(path_type=Path)


@click.group(cls=Commands)
@click.version_option(__version__, prog_name="fedclient")
def main() -> None:
    """A device of a Shoal: it trains on its own data, which never leave it, or gets the model that fits them.

    \b
    Exit codes: 0 done; 1 not found or abstained; 2 wrong command line; 3 wrong settings; 4 no server;
    5 refused; 6 not approved yet; 7 wrong version; 8 data, learner or device at fault; 70 a bug of ours;
    130, 143 by a signal.
    """
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # what matters reaches people as our own errors


def placed(function: Callable[..., Result]) -> Callable[..., Result]:
    """Add the options that say which device is meant; the function gets the settings that they make."""

    @click.option("-c", "--config", "path", type=PATH, envvar="FEDCLIENT_CONFIG", help="The settings, YAML.")
    @click.option(
        "--device",
        metavar="NAME",
        help="This device's name, kept from its first use.  [default: made]",
    )
    @click.option("--state", type=PATH, metavar="FOLDER", help="The device's folder.  [default: state]")
    @functools.wraps(function)
    def wrapper(console: Console, path: Path | None, **options: Any) -> Result:
        names = ("server", "device", "state", "insecure_loopback")
        settings = read(path, {name: options.pop(name) for name in names if name in options})
        return function(console, settings, **options)

    return wrapper


def configured(function: Callable[..., Result]) -> Callable[..., Result]:
    """The same, and where the server is when the device's identity does not say."""
    server = click.option("--server", metavar="HOST:PORT", help="Where the server is.  [default: as it said]")
    plain = click.option(
        "--insecure-loopback", is_flag=True, default=None, help="Plain text, to a server on this machine."
    )
    return server(plain(placed(function)))


@main.command(epilog="Example: fedclient join shoal1:... --device attic")
@verb
@placed
@click.argument("string", metavar="STRING")
@click.option("--wait/--no-wait", default=True, help="Wait until an operator has approved.  [default: wait]")
def join(console: Console, settings: ClientConfig, string: str, wait: bool) -> Result:
    """Get an identity by STRING, the line that `fedserver token create` printed.

    STRING may also be a file that holds it, or - to read it from standard input: so it does not show in the
    list of processes. Cut off anywhere, the same command goes on.
    """
    from fedclient.identity import join as joining
    from fedclient.store.state import DeviceFolder

    line, folder = joining.read_line(string), DeviceFolder(settings.state)
    identity, new = asyncio.run(joining.join(folder, line, settings.device, console, wait))
    done = "joined" if new else "has joined already, and nothing was changed:"
    text = (
        f"{identity.device} {done} federation {identity.federation} as {identity.role.value}; "
        f"the certificate is good until {identity.ends:%Y-%m-%d} and renews itself"
    )
    return Result({**identity.facts(), "new": new, "state": str(settings.state)}, text)


@main.command(epilog="Example: fedclient check --config device.yaml")
@verb
@configured
def check(console: Console, settings: ClientConfig) -> Result:
    """Try the learner on one batch of the data.

    Prints what the network sees of the data and what came of each part of the learner. No server is asked.
    """
    from fedclient.cli import check as checking
    from fedclient.service import check as tried

    console.progress("loading the learner and the data")
    found = asyncio.run(tried(settings)).findings
    return Result(found, checking.text(found))


@main.command(epilog="Example: fedclient run --config device.yaml --until-finished")
@verb
@configured
@click.option("--once", is_flag=True, help="End after one task.")
@click.option("--until-finished", is_flag=True, help="End when no run needs this device any more.")
@click.option(
    "--patience",
    type=click.FloatRange(min=0.0),
    metavar="SECONDS",
    help="Give up when the server is away so long.  [default: 60 if there is an end, else never]",
)
def run(
    console: Console, settings: ClientConfig, once: bool, until_finished: bool, patience: float | None
) -> Result:
    """Train for a server, task by task, until stopped."""
    if once and until_finished:
        raise click.UsageError("--once and --until-finished exclude each other")
    from fedclient.agent import Until
    from fedclient.service import serve

    until = Until.ONCE if once else Until.FINISHED if until_finished else Until.STOPPED
    if patience is None:
        patience = float("inf") if until is Until.STOPPED else 60.0
    reporter = asyncio.run(serve(settings, console, until, patience))
    done = reporter.status
    names = ("device", "server", "run", "round", "cluster", "outcome")
    data = {name: getattr(done, name) or None for name in names} | {"tasks": done.tasks}
    failure = None if until is Until.STOPPED else reporter.failure
    lines = [f"{done.device}: {done.tasks} tasks reported"]
    if done.tasks:
        lines.append(
            f"To use the model: with the same settings, `fedclient enroll --run {done.run}` fetches the one "
            "of this device's cluster, and `fedclient predict` classifies with it."
        )
    return Result(data, "\n".join(lines), failure)


@main.command(epilog="Example: fedclient enroll new.npz --config device.yaml")
@verb
@configured
@click.argument("data", type=PATH, required=False)
@click.option("--run", default="", metavar="RUN", help="Which run.  [default: the newest that can place]")
@click.option("--accept-nearest", is_flag=True, help="Take the nearest model when none fits well.")
@click.option(
    "--patience",
    type=click.FloatRange(min=0.0),
    metavar="SECONDS",
    default=10.0,
    show_default=True,
    help="Give up when the server is away so long.",
)
def enroll(
    console: Console,
    settings: ClientConfig,
    data: Path | None,
    run: str,
    accept_nearest: bool,
    patience: float,
) -> Result:
    """Get the model that fits DATA (by default the data of the settings); labels are not needed.

    A device that trained can enroll as well: so it gets the model of its cluster, for `fedclient predict`.
    Writes model/model.safetensors and model/placement.json into the device's folder.
    """
    from fedclient.faults import Abstained
    from fedclient.service import enroll as bring

    found, path = asyncio.run(bring(settings, console, data, run, accept_nearest, patience))
    error = None
    if path is None:
        reason = found.assignment.reason or "no cluster fits these data"
        hint = "" if accept_nearest else "--accept-nearest takes the nearest one all the same"
        error = Abstained(f"no model was written: {reason}", hint)
    return Result({**found.facts(), "path": path}, _placed(found, path), error)


def _placed(found: "Enrolment", path: Path | None) -> str:
    """Where a device was put, for people."""
    from fedclient.cli.privacy_report import line

    where = found.assignment
    words = [f"cluster {where.cluster} of run {found.run}"]
    if not math.isnan(where.distance):
        words.append(f"distance {where.distance:.4g}")
    if where.runner_up:
        words.append(f"the next is {where.runner_up} at {where.runner_up_distance:.4g}")
    traffic = f"{found.seconds:.1f} s, {found.received} bytes received, {found.sent} sent"
    lines = [", ".join(words), f"confidence {where.confidence:.2f}", traffic]
    lines.append(f"privacy: {line(found.privacy)}")
    return "\n".join([*lines, *([f"model: {path}"] if path else [])])


@main.command(epilog="Example: fedclient predict new.npz --config device.yaml --out classes.csv")
@verb
@configured
@click.argument("data", type=PATH, required=False)
@click.option("--model", type=PATH, help="A safetensors file.  [default: the enrolled model]")
@click.option("--out", type=PATH, help="Write classes and probabilities: .npz, or else csv.")
def predict(
    console: Console, settings: ClientConfig, data: Path | None, model: Path | None, out: Path | None
) -> Result:
    """Classify DATA (by default the file of the settings) with the enrolled model."""
    from fedclient.work.predict import classify

    model = model or settings.state / "model" / "model.safetensors"
    console.progress(f"classifying with {model}")
    found = classify(settings, data, model, out)
    counts = {str(label): count for label, count in found.counts().items()}
    lines = [f"{len(found.classes)} samples: " + ", ".join(f"{n} of class {c}" for c, n in counts.items())]
    if found.accuracy is not None:
        lines.append(f"accuracy by the labels that are there: {found.accuracy:.4f}")
    if out is not None:
        lines.append(f"written to {out}")
    facts = {"samples": len(found.classes), "classes": counts, "accuracy": found.accuracy}
    return Result({**facts, "model": model, "out": out}, "\n".join(lines))


@main.command(epilog="Example: fedclient watch --once --json")
@verb
@configured
@click.option("--once", is_flag=True, help="Look once, and end.")
@click.option(
    "--patience",
    type=click.FloatRange(min=0.0),
    metavar="SECONDS",
    help="Give up when the server is away so long.  [default: 10 with --once, else never]",
)
def watch(console: Console, settings: ClientConfig, once: bool, patience: float | None) -> Result:
    """Say how the runs stand, and again at each change until all are over.

    For a machine that joined by a token for --role observer: it sees runs, and neither devices nor models.
    """
    from fedclient.cli import watch as watching
    from fedclient.service import watch as watched

    if patience is None:
        patience = 10.0 if once else math.inf
    runs = asyncio.run(watched(settings, console, once, patience))
    return Result(watching.facts(runs), watching.text(runs))


@main.command(epilog="Example: fedclient status --config device.yaml --json")
@verb
@configured
def status(console: Console, settings: ClientConfig) -> Result:
    """Say what this device did last, and whether its server answers."""
    from fedclient.cli import status as last

    found = last.status(settings)
    return Result(found, last.text(found))


@main.group()
def ledger() -> None:
    """What this device released with a privacy guarantee, what that cost, and what is left."""


@ledger.command(epilog="Example: fedclient ledger show --config device.yaml")
@verb
@configured
def show(console: Console, settings: ClientConfig) -> Result:
    """What was spent on what: the true epsilon for each version of the data and in all, and what is left."""
    from fedclient.cli import privacy_report

    entries = privacy_report.ledger_of(settings).entries()
    found = privacy_report.facts(entries, settings.privacy)
    data = {"entries": privacy_report.rows(entries), **found, "budget": vars(settings.privacy)}
    return Result(data, privacy_report.text(entries, settings.privacy))


@ledger.command(epilog="Example: fedclient ledger verify --config device.yaml")
@verb
@configured
def verify(console: Console, settings: ClientConfig) -> Result:
    """Look whether any line of the ledger, or anything that was released, was changed or taken away."""
    from fedclient.cli import privacy_report

    entries = privacy_report.ledger_of(settings).verify()
    return Result({"lines": len(entries)}, f"{len(entries)} lines, and what was released is as it was")


if __name__ == "__main__":
    main(prog_name="fedclient")
