"""`fedserver run stop | pause | resume | set | rm`: change runs, and delete those that are over."""

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import click

from fedserver.cli import text
from fedserver.cli.options import connected
from fedserver.cli.runs.policy import policy_options
from fedserver.coordinator.status_types import RunChange, RunStatus
from shoal.core.errors import ConfigError, NotFound
from shoal.shell.console import Result, verb

if TYPE_CHECKING:
    from fedserver.rpc.client import OperatorClient


class Rounds(click.ParamType):  # type: ignore[type-arg, unused-ignore]
    """A number of rounds, or how many are added.

    Example:
        >>> Rounds().convert("50", None, None), Rounds().convert("+10", None, None)
        ((50, False), (10, True))
    """

    name = "rounds"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, bool]:
        number = str(value).removeprefix("+")
        if not (number.isascii() and number.isdecimal()):
            self.fail(f"{value!r} is no number of rounds: use 50 for all of them, or +10 for ten more")
        return int(number), str(value).startswith("+")


def _shown(status: RunStatus) -> Result:
    return Result(text.data(status), text.summary(status.summary))


@click.command(epilog="Example: fedserver run stop digits --reason 'wrong data'")
@verb
@connected
@click.argument("name", metavar="RUN")
@click.option("--reason", default="", metavar="TEXT", help="Reason, for the run's log.")
def stop(client: "OperatorClient", name: str, reason: str) -> Result:
    """Stop a run for good. Its last models can still be exported. No more runs of its series start."""
    return _shown(client.stop_run(name, reason))


@click.command(epilog="Example: fedserver run pause digits --reason 'new data arrives tomorrow'")
@verb
@connected
@click.argument("name", metavar="RUN")
@click.option("--reason", default="", metavar="TEXT", help="Reason, for the run's log.")
def pause(client: "OperatorClient", name: str, reason: str) -> Result:
    """Open no more rounds of a run, until it is resumed.

    A round that is open may end; meanwhile no deadline passes in it.
    """
    return _shown(client.pause_run(name, reason))


@click.command(epilog="Example: fedserver run resume digits")
@verb
@connected
@click.argument("name", metavar="RUN")
def resume(client: "OperatorClient", name: str) -> Result:
    """Let a paused run, or one that has failed, go on.

    A failed run goes on with its last models, in the round in which it failed. Remove the cause first; see it
    with: fedserver run logs RUN
    """
    return _shown(client.resume_run(name))


NOTHING = "there was nothing to delete"


@click.command("set", epilog="Example: fedserver run set digits --deadline 600 --minimum 4")
@verb
@connected
@click.argument("name", metavar="RUN")
@click.option(
    "--rounds", type=Rounds(), metavar="N|+N", help="Rounds of training in the whole run; +N: N more."
)
@click.option(
    "--readmit", multiple=True, metavar="DEVICE", help="A quarantined device whose updates count again."
)
@policy_options(defaults=False)
def change(
    client: "OperatorClient",
    name: str,
    rounds: tuple[int, bool] | None,
    readmit: tuple[str, ...],
    **policy: Any,
) -> Result:
    """Change a run that goes on. What is not given stays as it is.

    The change counts at once, also for a round that is open. The number of rounds cannot be raised if the
    devices add noise that was scaled for the present number, or once training is over. `fedserver run logs`
    names the devices that are quarantined, and why. A run that is over cannot go on: start another one from
    its models (`fedserver model export`, `run start --like RUN --initial-weights`).
    """
    given = {field: value for field, value in policy.items() if value is not None}
    if not given and rounds is None and not readmit:
        raise ConfigError("nothing is to be changed", "give an option, such as --deadline 600")
    number = None if rounds is None else _in_all(client, name, *rounds)
    asked = RunChange(given, number, readmit)
    status = client.change_run(name, asked)
    return Result(text.data(status), f"{text.summary(status.summary)}\nchanged: {asked}")


def _in_all(client: "OperatorClient", name: str, number: int, more: bool) -> int:
    """The number of all rounds. more: whether `number` is added to those that the run has."""
    if not more:
        return number
    rounds = client.show(name).summary.rounds
    if not rounds:
        raise ConfigError(
            f"run {name} does not say how many rounds it has",
            f"give the number of all rounds: fedserver run set {name} --rounds N",
        )
    return rounds + number


@click.command(epilog="Examples: fedserver run rm digits; fedserver run rm --earlier")
@verb
@connected
@click.argument("name", metavar="[RUN]", required=False, default="")
@click.option(
    "--earlier",
    is_flag=True,
    help="Delete only the models of earlier rounds; without RUN, of all runs but the newest.",
)
def rm(client: "OperatorClient", name: str, earlier: bool) -> Result:
    """Delete a run that is over: its models, its log and its rounds.

    Its releases are deleted with it; if a channel has one, nothing is deleted. What a run has measured of a
    release goes with the run. What devices have released in it stays known, and counts in the privacy over
    all runs. No other run can have its name, since devices that were away may still have results of it.

    With --earlier, the final models stay, and so do the releases and the rest of the run. A rollback to an
    earlier round is not possible afterwards. Without RUN, this is done to all runs that are over but the
    newest one that has finished: name that run, too, if it is meant.
    """
    if earlier:
        deleted = client.prune_runs(name)
        lines = [
            f"{run}: {count} states of earlier rounds are deleted" for run, count in sorted(deleted.items())
        ]
        return Result({"deleted": deleted}, "\n".join(lines) or NOTHING)
    if not name:
        raise click.UsageError("name the run to delete, or give --earlier")
    spec = None
    with suppress(NotFound):  # one that cannot be read can be removed
        spec = client.show(name).spec
    client.remove_run(name)
    measured = f", and its figures of {spec.evaluate}" if spec and spec.evaluate else ""
    return Result({"removed": name}, f"run {name} was removed{measured}")


COMMANDS = (stop, pause, resume, change, rm)
