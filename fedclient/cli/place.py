"""`fedclient place`."""

import asyncio
import math
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fedclient.cli.options import CALLING, PATH, configured, give_up_after
from fedclient.config import ClientConfig
from shoal.shell.console import Console, Result, one_line, verb

if TYPE_CHECKING:
    from fedclient.placing.placement import PlacementResult

GIVE_UP_AFTER = 10.0
EVERY_SECONDS, MIN_SECONDS = 6 * 3600.0, 1.0
"""Seconds between two requests of `--follow`; a server gives a device ten placements a day by default."""


@click.command(epilog="Example: fedclient place new.npz --config device.yaml")
@verb
@configured(*CALLING)
@click.pass_obj
@click.argument("data", type=PATH, required=False)
@click.option("--run", default="", metavar="RUN", help="Run, release or channel to ask.  [default: stable]")
@click.option("--accept-nearest", is_flag=True, help="Take the nearest model if none fits well.")
@click.option("--no-tune", is_flag=True, help="Take the model of the device's cluster as it is.")
@click.option("--follow", is_flag=True, help="Ask again from time to time, until the command is stopped.")
@click.option(
    "--every",
    type=click.FloatRange(min=MIN_SECONDS),
    default=EVERY_SECONDS,
    show_default=True,
    metavar="SECONDS",
    help="With --follow: seconds between two requests. A server gives a device a few placements a day.",
)
@click.option("--hook", default="", metavar="COMMAND", help="With --follow: run COMMAND for each new model.")
@give_up_after("10")
def place(
    console: Console,
    settings: ClientConfig,
    data: Path | None,
    run: str,
    accept_nearest: bool,
    no_tune: bool,
    follow: bool,
    every: float,
    hook: str,
    give_up_after: float | None,
) -> Result:
    """Get the model that fits DATA, by default the data of the settings. Labels are not needed.

    The models of all clusters are tried on the data, on this device, and nothing about the data leaves it,
    unless the run is set to decide by itself. Each model is shown with the mutual information of samples and
    predictions, its standard error, the probability that it is the right one, and, where the run knows where
    the clusters' data lie, how likely the samples are there, as a logarithm below the likeliest cluster.

    Where several models may be the right one, predictions are the mean of what up to four of them say, in
    which likelier models count more.

    A device that trains in the run gets the model of its own cluster, unless DATA is given. It trains that
    model for five more epochs on its own data, and uses the mean of both if that lowers the loss on the
    held-out samples by at least a tenth, and by two standard errors. Nothing of this leaves the device.

    The model that fits best is written to model/model.safetensors in the device's folder, others that predict
    with it are written beside it, and where they come from is in model/placement.json.

    With --follow, the command goes on and fetches a newer model when there is one. A model is replaced as a
    whole. The hook runs after that, with SHOAL_MODEL, SHOAL_RUN and SHOAL_CLUSTER in its environment.
    """
    from fedclient.agent.signals import until_signal
    from fedclient.faults import Abstained
    from fedclient.placing import follow as following
    from fedclient.placing.service import place

    seconds = GIVE_UP_AFTER if give_up_after is None else give_up_after
    once = partial(place, settings, console, data, run, accept_nearest, seconds, not no_tune, follow)
    words, folder = following.command_of(hook), settings.state / "model"
    if follow:
        console.repeats = True
        announce = partial(following.announce, folder, words, console.say)
        asyncio.run(until_signal(following.follow(once, announce, every, console.say)))
        return Result({"path": folder / "model.safetensors"}, "stopped")
    found, path = asyncio.run(once())
    error = None
    if path is None:
        reason = found.assignment.reason or "no cluster fits these data"
        error = Abstained(f"no model was written: {reason}", _hint(found, accept_nearest))
    return Result({**found.facts(), "path": path}, _text(found, path), error)


def _hint(found: "PlacementResult", accept_nearest: bool) -> str:
    """What helps where the server abstained."""
    more = "give more samples, or samples of more classes"
    if accept_nearest:
        return f"{more}; the server named no model to fall back to"
    where = found.assignment
    between = f" (clusters {where.cluster} and {where.runner_up} are closest)" if where.runner_up else ""
    return f"{more}{between}; or take the model of cluster {where.cluster} anyway with --accept-nearest"


def _text(found: "PlacementResult", path: Path | None) -> str:
    """Where the device was placed, for people."""
    from fedclient.store.privacy_report import line

    where = found.assignment
    whose = f"release {found.release}" if found.release else f"run {found.run}"
    words = [f"cluster {where.cluster} of {whose}"]
    if not math.isnan(where.distance):
        words.append(f"distance {where.distance:.4g}")
    if where.runner_up and not math.isnan(where.runner_up_distance):
        words.append(f"the next is {where.runner_up} at {where.runner_up_distance:.4g}")
    traffic = f"{found.seconds:.1f} s, {found.received} bytes received, {found.sent} sent"
    lines = [one_line(", ".join(words)), *filter(None, [one_line(where.reason)])]
    lines += [
        f"confidence {where.confidence:.2f}",
        *_tried(found),
        *_mixture(found),
        *_tuning(found),
        traffic,
    ]
    lines.append(f"privacy: {line(found.privacy)}")
    return "\n".join([*lines, *([f"model: {path}"] if path else [])])


def _mixture(found: "PlacementResult") -> list[str]:
    """The models that predict together."""
    if not found.mixture:
        return []
    parts = [f"{one_line(each.cluster)} ({each.share:.2f})" for each in found.mixture]
    return [f"predictions mix {', '.join(parts[:-1])} and {parts[-1]}"]


def _tuning(found: "PlacementResult") -> list[str]:
    """What came of fine-tuning."""
    tuning = found.tuning
    if tuning is None:
        return []
    losses = ""
    if tuning.before is not None and tuning.after is not None:
        losses = f"held-out loss {tuning.before:.3g} before, {tuning.after:.3g} after"
    if tuning.kept:
        return [f"fine-tuned on this device's data: {losses}"]
    why = f"{tuning.reason} ({losses})" if losses else tuning.reason
    return [one_line(f"the model is its cluster's, unchanged: {why}")]


def _tried(found: "PlacementResult") -> list[str]:
    """A table of the models that this device chose among."""
    if not found.tried:
        return []
    known = any(each.likelihood is not None for each in found.tried)
    head = f"{'model':<12}{'information':>12}{'error':>9}{'probability':>13}{'agreement':>11}"
    head += f"{'likelihood':>12}" if known else ""
    rows = [
        f"{one_line(each.model):<12}{each.information:>12.3f}{each.error:>9.3f}"
        f"{each.probability:>13.2f}{each.agreement:>11.2f}"
        + ("" if each.likelihood is None else f"{each.likelihood:>12.2f}")
        for each in found.tried
    ]
    return [head, *rows]
