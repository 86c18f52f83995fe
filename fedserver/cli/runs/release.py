"""`fedserver release ...`: what newcomers are given, and the way back."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from fedserver.cli import text
from fedserver.cli.options import connected
from fedserver.coordinator.status_types import (
    ReleaseGroup,
    ReleaseSummary,
    RolloutStatus,
    WatchedCluster,
)
from shoal.core.rollout import Sum
from shoal.core.texts import plural
from shoal.core.types import ModelKey
from shoal.shell.console import Group, Result, verb

if TYPE_CHECKING:
    from fedserver.rpc.client import OperatorClient
    from fedserver.store.records import Move

SURE = 2.0
"""How many standard errors are shown beside a mean; 95 of 100 such intervals have the true one."""
LATEST = 10
"""How many of the latest releases of a channel are shown."""


@click.group(cls=Group)
def release() -> None:
    """Make, list and choose releases: the models that newcomers are given.

    A release is a run's models as they were, for good. Newcomers follow the channel `stable`. When a run has
    finished and its held-out accuracy is above that of what `stable` has, it is released, and `stable` has
    that release.
    """


@release.command(epilog="Examples: fedserver release create digits; fedserver release create digits v1")
@verb
@connected
@click.argument("run", metavar="RUN")
@click.argument("name", required=False, default="")
def create(client: "OperatorClient", run: str, name: str) -> Result:
    """Make a release of a run as it is now, called RUN@NAME.

    Without NAME it is called after the rounds of training that are complete. No channel has it until
    `fedserver release use`.
    """
    made = client.create_release(run, name)
    next_step = f"let newcomers have it with: fedserver release use {made.release}"
    return Result(asdict(made), f"{made.release} is released; {next_step}")


@release.command(epilog="Example: fedserver release ls")
@verb
@connected
def ls(client: "OperatorClient") -> Result:
    """List the releases, newest first, and what each channel has and had."""
    found, channels, rollouts = client.releases()
    data = {
        "releases": list(map(asdict, found)),
        "channels": {name: list(map(asdict, moves)) for name, moves in channels.items()},
        "rollouts": list(map(asdict, rollouts)),
    }
    latest = {each.channel: each for each in reversed(rollouts)}
    return Result(data, "\n".join([_listed(found, channels), *map(_tried, latest.values())]))


@release.command(epilog="Examples: fedserver release show; fedserver release show digits@10")
@verb
@connected
@click.argument("name", metavar="[RELEASE]", required=False, default="")
def show(client: "OperatorClient", name: str) -> Result:
    """Show a release or what a channel has: devices, data, accuracy, privacy, code and settings.

    The accuracy of a group is the mean over its devices, with twice its standard error by how few the samples
    are.
    """
    from fedserver.cli.models import signature

    found = client.release(name)
    signed = signature.check(found)
    data = {
        **text.data(found.status),
        **asdict(found.summary),
        "signed": signed,
        "evaluations": list(map(asdict, found.evaluations)),
        "rollouts": list(map(asdict, found.rollouts)),
    }
    measured = [
        f"measured by run {each.run}, {text.ago(each.ended)}: {_accuracy(each.accuracy, each.error)}\n"
        + "\n".join(_groups(each.groups))
        for each in found.evaluations
    ]
    said = [_said(found.summary), *map(_tried, found.rollouts), *measured, signed, text.status(found.status)]
    return Result(data, "\n".join(said))


@release.command(
    epilog="Examples: fedserver release use digits@10; fedserver release use digits@12 --share 10"
)
@verb
@connected
@click.argument("name", metavar="RELEASE")
@click.option("--channel", default="", metavar="NAME", help="Channel, also a new one.  [default: stable]")
@click.option("--pin", is_flag=True, help="Stay there, also when a run has better models.")
@click.option(
    "--share",
    type=float,
    metavar="PERCENT",
    help="First let this share of the devices try it beside what the channel has.",
)
@click.option(
    "--stop-if-worse",
    type=float,
    metavar="POINTS",
    help="With --share: how much less accurate it may be in a cluster.  [default: 1]",
)
def use(
    client: "OperatorClient",
    name: str,
    channel: str,
    pin: bool,
    share: float | None,
    stop_if_worse: float | None,
) -> Result:
    """Let newcomers have this release from now on, also an earlier one.

    Those that follow a channel, with `fedclient place --follow` or `fedclient run --serve`, take it when they
    ask next.

    With --share, these devices are split: a share of each cluster, the same devices all the time, predicts
    with both releases, uses what the channel has, and counts how often the two agree, and which is right
    where programs tell the label. The rollout stops by itself once the release is shown to be worse in a
    cluster, and the channel has it once it is shown not to be in any: each with 95 % confidence over the
    whole rollout, however often devices report. Without labels it goes on. A larger --share takes in more
    devices; without --share, this release is promoted at once, and another one ends the rollout.
    """
    moves, going = client.use_release(name, channel, pin, share, stop_if_worse)
    data = {"channel": moves[-1].channel, "moves": list(map(asdict, moves))}
    said = [_moved(moves), *([_tried(going)] if going else [])]
    return Result({**data, "rollout": asdict(going) if going else None}, "\n".join(said))


@release.command(epilog="Examples: fedserver release rm digits@10; fedserver release rm beta")
@verb
@connected
@click.argument("name", metavar="RELEASE|CHANNEL")
def rm(client: "OperatorClient", name: str) -> Result:
    """Delete a release that no channel has, or end a channel, whose releases stay.

    No other release gets the name of one that was deleted: devices and measurements may know that one by it.
    """
    client.remove_release(name)
    return Result({"removed": name}, f"{name} was removed")


def _listed(found: list[ReleaseSummary], channels: Any) -> str:
    if not found:
        return "there is no release yet: a run that finishes and has learned makes one"
    rows = [
        (
            each.release,
            text.ago(each.made or None),
            str(each.devices or "-"),
            str(len(each.groups) or "-"),
            _accuracy(each.accuracy, each.error, each.numbers),
            ", ".join(each.channels) or "-",
            _notes(each),
        )
        for each in found
    ]
    heads = ("release", "made", "devices", "clusters", "accuracy", "channels", "notes")
    return "\n".join([text.table(heads, rows), *map(_moved, channels.values())])


def _tried(found: RolloutStatus) -> str:
    """A rollout, and what was counted in it."""
    when = f"{found.outcome} {text.ago(found.ended)}" if found.outcome else f"since {text.ago(found.began)}"
    head = (
        f"rollout of {found.new} beside {found.old} in channel {found.channel}, to {100 * found.share:g} % "
        f"of the devices, may be worse by {100 * found.margin:g} points: {when}, {found.why}"
    )
    return "\n".join([head, *(_cluster(key, own) for key, own in found.clusters.items())])


def _cluster(key: ModelKey, found: Sum) -> str:
    agreed = "" if found.agreement is None else f", {100 * found.agreement:.1f} % alike"
    said = f"  cluster {key}: {found.devices} devices, {found.predictions} predictions{agreed}"
    if found.low is None or found.high is None:
        return f"{said}, no labels"
    old, new = (100 * right / found.labeled for right in (found.old_right, found.new_right))
    low, high = 100 * found.low, 100 * found.high
    gain = f"{old:.1f} % before, {new:.1f} % now, {low:+.1f} to {high:+.1f} points"
    return f"{said}, {found.labeled} labels: {gain}"


def _said(found: ReleaseSummary) -> str:
    where = f", which {', '.join(found.channels)} has now" if found.channels else ""
    head = f"release {found.release}{where}: {_accuracy(found.accuracy, found.error, found.numbers)}"
    moved = map(_watched, found.watched)
    return "\n".join([head, *_groups(found.groups), *moved, *filter(None, [_notes(found)])])


def _watched(found: WatchedCluster) -> str:
    """What devices say of their data."""
    who = f"cluster {found.key}" if found.key else "devices that chose by themselves"
    since = f", more than chance explains since {text.ago(found.since)}" if found.since is not None else ""
    share = f"{100 * found.share:.0f} ± {100 * SURE * found.error:.0f} %"
    return f"  {who}: {share} have other data than the model was made for, by {found.answers} answers{since}"


def _groups(found: Sequence[ReleaseGroup]) -> list[str]:
    return [
        f"  cluster {each.key}: {plural(each.devices, 'device')}, {_accuracy(each.accuracy, each.error)}"
        for each in found
    ]


def _notes(found: ReleaseSummary) -> str:
    notes = [found.wrong]
    if found.revoked:
        notes.append(f"revoked since, and in its training: {', '.join(found.revoked)}")
    if found.withdrawn:
        notes.append(f"withdrawn since, and in its training: {', '.join(found.withdrawn)}")
    if moved := [each.key or "others" for each in found.watched if each.since is not None]:
        notes.append(f"data have moved: {', '.join(moved)}")
    return "; ".join(filter(None, notes))


def _accuracy(mean: float | None, error: float, numbers: bool = False) -> str:
    found = "-" if mean is None else f"{100 * mean:.1f} ± {100 * SURE * error:.1f} %"
    return f"{found}{' explained' if numbers and mean is not None else ''}"


def _moved(moves: "list[Move]") -> str:
    """What a channel has, and what it had before."""
    last, pinned = moves[-1], ", pinned" if moves[-1].pinned else ""
    before = [each.release or "none" for each in reversed(moves[:-1])][:LATEST]
    had = f"; before: {', '.join(before)}" if before else ""
    return f"channel {last.channel}: {last.release or 'none'}{pinned}, {last.why}, {text.ago(last.at)}{had}"
