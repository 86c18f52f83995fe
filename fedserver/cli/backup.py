"""`fedserver backup`, `restore` and `recover`: what an operator does before and after the loss of a disk."""

from dataclasses import asdict
from pathlib import Path

import click

from fedserver.cli import text
from fedserver.cli.options import PATH, state_option
from shoal.core.errors import Refused
from shoal.shell.console import Console, Result, verb

STATE = state_option("The server's folder.")


@click.command(epilog="Example: fedserver backup --state server /backups/monday")
@verb
@STATE
@click.argument("target", type=PATH, metavar="BACKUP")
def backup(console: Console, state: Path, target: Path) -> Result:
    """Copy a server's folder to BACKUP, a folder that is not there yet. The server may be working."""
    from fedserver.store.backup import backup as copy

    console.progress(f"copying {state}")
    facts = copy(state.absolute(), target.absolute())
    what = f"{facts.runs} runs, {facts.blobs} blobs of {facts.size / 1e6:.1f} MB"
    return Result({"path": str(target), **asdict(facts)}, f"{target}: {what}")


@click.command(epilog="Example: fedserver restore /backups/monday --state server")
@verb
@STATE
@click.argument("source", type=PATH, metavar="BACKUP")
def restore(console: Console, state: Path, source: Path) -> Result:
    """Make a server's folder, which must not be there, of a backup; every blob is checked.

    What happened after the backup was made is lost. `fedserver recover --accept` goes on without it; before
    that, devices that renewed meanwhile are refused, and once a device has seen more nothing is taken.
    """
    from fedserver.store.backup import restore as copy

    console.progress(f"restoring {source}")
    facts = copy(source.absolute(), state.absolute())
    what = f"{facts.runs} runs as of start {facts.start}, revision {facts.revision}"
    return Result(
        {"state": str(state), **asdict(facts)}, f"{state}: {what}\nnext: fedserver recover --state {state}"
    )


@click.command(epilog="Example: fedserver recover --state server --audit server.broken/audit.jsonl --accept")
@verb
@STATE
@click.option(
    "--accept", is_flag=True, help="Go on from what is in the folder; what devices saw is given up."
)
@click.option("--audit", type=PATH, metavar="FILE", help="The audit.jsonl of the folder that was lost.")
def recover(console: Console, state: Path, accept: bool, audit: Path | None) -> Result:
    """Go on from a folder that was restored from the past, while its server is stopped.

    Without --accept it only says what is in doubt. With it, rounds that are open are abandoned and planned
    again, no mark that was shown until now is doubted any more, and certificates that were issued after the
    backup hold: a device gets its row when it calls. With --audit devices that were revoked after the backup
    are revoked, tokens that were used are used, and of each device only the last certificate holds.
    """
    from fedserver.store.backup import check_state
    from fedserver.store.identities.restored import Taken
    from fedserver.store.store import Store

    if audit and not accept:
        raise click.UsageError("--audit goes with --accept")
    check_state(state.absolute())
    store = Store(state.absolute())
    try:
        doubts, gap = store.history.conflicts(), store.identities.gap.open()
        lines = [f"{device} has seen {what}" for device, what in doubts.items()]
        if gap:
            lines.append(f"restored: what happened after {text.clock(gap.since)} is not known here")
        if not accept:
            lines.append("go on from this folder with --accept" if lines else "there is no doubt")
            return Result({"doubts": doubts, "restored": bool(gap), "accepted": False}, "\n".join(lines))
        if not doubts and not gap:
            raise Refused("this state was not restored, and no device has seen more than it", "just start it")
        taken = store.identities.gap.take_over(audit) if audit else Taken()
        abandoned = store.recover()
    finally:
        store.close()
    if taken.revoked:
        lines.append(f"revoked since, and so here: {', '.join(taken.revoked)}")
    if taken.joined:
        lines.append(f"joined since, and unknown here: {', '.join(taken.joined)}")
    lines.append(f"accepted; {len(abandoned)} open rounds are abandoned; start it: fedserver up")
    data = {"doubts": doubts, "restored": bool(gap), "accepted": True, "abandoned": abandoned}
    return Result({**data, **asdict(taken)}, "\n".join(lines))
