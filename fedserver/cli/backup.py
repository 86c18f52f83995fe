"""`fedserver backup`, `restore` and `recover`: before and after the loss of a disk."""

from dataclasses import asdict
from pathlib import Path

import click

from fedserver.cli import text
from fedserver.cli.options import PATH, state_option
from shoal.core.errors import ConfigError, Refused
from shoal.shell.console import Console, Result, verb

STATE = state_option("The server's state folder.")


@click.command(epilog="Example: fedserver backup --state server /backups/monday")
@verb
@STATE
@click.argument("target", type=PATH, metavar="BACKUP")
def backup(console: Console, state: Path, target: Path) -> Result:
    """Copy the state folder to BACKUP, which must not exist. The server may be running."""
    from fedserver.config import read_server
    from fedserver.store.backup import backup as copy

    if read_server(None, {"state": state}).elsewhere is not None:
        raise ConfigError(
            f"the store of {state} is in a PostgreSQL database",
            "back up the database with its own tools, and the folder of blobs: see docs/scaling.md",
        )
    console.progress(f"copying {state}")
    facts = copy(state.absolute(), target.absolute())
    what = f"{facts.runs} runs, {facts.blobs} blobs of {facts.size / 1e6:.1f} MB"
    return Result({"path": str(target), **asdict(facts)}, f"{target}: {what}")


@click.command(epilog="Example: fedserver restore /backups/monday --state server")
@verb
@STATE
@click.argument("source", type=PATH, metavar="BACKUP")
def restore(console: Console, state: Path, source: Path) -> Result:
    """Restore BACKUP into a new state folder. Every blob is verified.

    What happened after the backup was made is lost; accept that with `fedserver recover --accept` before you
    start the server. Until then, devices that have renewed their certificate since the backup are refused,
    and the server refuses new work as soon as a device has seen later work.
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
    "--accept",
    is_flag=True,
    help="Accept the restored state; later work that devices have seen is lost.",
)
@click.option(
    "--audit", type=PATH, metavar="FILE", help="The audit.jsonl of the folder that was lost. Needs --accept."
)
def recover(console: Console, state: Path, accept: bool, audit: Path | None) -> Result:
    """Continue from a state folder that was restored from a backup. The server must be stopped.

    Without --accept, the command only prints what is in doubt. With --accept, open rounds are abandoned and
    planned again, devices that have seen later work are served, and certificates that were issued after the
    backup are valid: such a device is registered when it calls. With --audit, devices that were revoked after
    the backup are revoked, tokens that were used count as used, and only the last certificate of each device
    is valid.
    """
    from fedserver.config import read_server
    from fedserver.store.backup import check_state
    from fedserver.store.identities.restored import Taken
    from fedserver.store.store import Store

    if audit and not accept:
        raise click.UsageError("--audit needs --accept")
    elsewhere = read_server(None, {"state": state}).elsewhere
    if elsewhere is None:
        check_state(state.absolute())
    store = Store(state.absolute(), elsewhere)
    try:
        doubts, gap = store.history.conflicts(), store.identities.gap.open()
        lines = [f"{device} has seen {what}" for device, what in doubts.items()]
        if gap:
            lines.append(f"this state was restored: what happened after {text.clock(gap.since)} is lost")
        if not accept:
            lines.append("to continue from this folder, give --accept" if lines else "nothing is in doubt")
            return Result({"doubts": doubts, "restored": bool(gap), "accepted": False}, "\n".join(lines))
        if not doubts and not gap:
            raise Refused(
                "this state was not restored, and no device has seen later work", "start the server"
            )
        taken = store.identities.gap.take_over(audit) if audit else Taken()
        abandoned = store.recover()
    finally:
        store.close()
    if taken.revoked:
        lines.append(f"revoked since the backup, and revoked here now: {', '.join(taken.revoked)}")
    if taken.joined:
        lines.append(f"joined since the backup, and unknown here: {', '.join(taken.joined)}")
    lines.append(f"accepted; open rounds abandoned: {len(abandoned)}; start the server with: fedserver up")
    data = {"doubts": doubts, "restored": bool(gap), "accepted": True, "abandoned": abandoned}
    return Result({**data, **asdict(taken)}, "\n".join(lines))
