"""`fedserver run pause | resume | set | extend | prune | rm`: change runs, and delete those that are over."""

from typing import TYPE_CHECKING, Any

import click

from fedserver.cli import text
from fedserver.cli.options import connected
from fedserver.cli.runs.policy import policy_options
from fedserver.coordinator.status_types import RunChange, RunStatus
from shoal.core.errors import ConfigError
from shoal.shell.console import Console, Result, verb

if TYPE_CHECKING:
    from fedserver.rpc.client import OperatorClient


def _shown(status: RunStatus) -> Result:
    return Result(text.data(status), text.summary(status.summary))


@click.command(epilog="Example: fedserver run pause digits --reason 'new data arrives tomorrow'")
@verb
@connected
@click.argument("name", metavar="RUN")
@click.option("--reason", default="", metavar="TEXT", help="Reason, for the run's log.")
def pause(console: Console, client: "OperatorClient", name: str, reason: str) -> Result:
    """Open no more rounds of a run, until it is resumed.

    A round that is open may end; meanwhile no deadline passes in it.
    """
    return _shown(client.pause_run(name, reason))


@click.command(epilog="Example: fedserver run resume digits")
@verb
@connected
@click.argument("name", metavar="RUN")
def resume(console: Console, client: "OperatorClient", name: str) -> Result:
    """Let a paused run, or one that has failed, go on.

    A failed run goes on with its last models, in the round in which it failed. Remove the cause first; see it
    with: fedserver run logs RUN
    """
    return _shown(client.resume_run(name))


@click.command("set", epilog="Example: fedserver run set digits --deadline 600 --minimum 4")
@verb
@connected
@click.argument("name", metavar="RUN")
@click.option("--rounds", type=int, metavar="N", help="Rounds of training in the whole run.")
@click.option(
    "--readmit", multiple=True, metavar="DEVICE", help="A quarantined device whose updates count again."
)
@policy_options(defaults=False)
def change(
    console: Console,
    client: "OperatorClient",
    name: str,
    rounds: int | None,
    readmit: tuple[str, ...],
    **policy: Any,
) -> Result:
    """Change a run that goes on. What is not given stays as it is.

    The change counts at once, also for a round that is open. The number of rounds cannot be raised if the
    devices add noise that was scaled for the present number. `fedserver run logs` names the devices that are
    quarantined, and why.
    """
    given = {field: value for field, value in policy.items() if value is not None}
    if not given and rounds is None and not readmit:
        raise ConfigError("nothing is to be changed", "give an option, such as --deadline 600")
    status = client.change_run(name, RunChange(given, rounds, readmit))
    return Result(text.data(status), text.status(status))


@click.command(epilog="Example: fedserver run extend digits 10")
@verb
@connected
@click.argument("name", metavar="RUN")
@click.argument("more", metavar="ROUNDS", type=click.IntRange(min=1))
def extend(console: Console, client: "OperatorClient", name: str, more: int) -> Result:
    """Add ROUNDS rounds of training to a run that goes on.

    The same as `fedserver run set RUN --rounds` with the sum. A run that is over cannot be extended: start
    another one from its models (`fedserver model export`, `run start --initial-weights`).
    """
    summary = client.show(name).summary
    if not summary.rounds:
        raise ConfigError(
            f"run {name} does not say how many rounds it has",
            f"set the number of all rounds: fedserver run set {name} --rounds N",
        )
    return _shown(client.change_run(name, RunChange({}, summary.rounds + more)))


@click.command(epilog="Example: fedserver run prune digits")
@verb
@connected
@click.argument("name", metavar="RUN", required=False, default="")
def prune(console: Console, client: "OperatorClient", name: str) -> Result:
    """Delete the models of earlier rounds of RUN, which must be over, or of all runs that are over.

    The final models stay. A rollback to an earlier round is not possible afterwards.
    """
    deleted = client.prune_runs(name)
    lines = [f"{run}: {count} states of earlier rounds are deleted" for run, count in sorted(deleted.items())]
    return Result({"deleted": deleted}, "\n".join(lines) or "there was nothing to delete")


@click.command("rm", epilog="Example: fedserver run rm digits")
@verb
@connected
@click.argument("name", metavar="RUN")
def rm(console: Console, client: "OperatorClient", name: str) -> Result:
    """Delete a run that is over: its models, its log and its rounds.

    Export its models first, with `fedserver model export`. What devices have released in it stays known, and
    counts in the privacy over all runs. No other run can have its name, since devices that were away may
    still have results of it.
    """
    client.remove_run(name)
    return Result({"removed": name}, f"run {name} was removed")


COMMANDS = (pause, resume, change, extend, prune, rm)
