"""`fedserver backup`, `restore` and `recover`: before and after the loss of a disk."""

from dataclasses import asdict
from pathlib import Path

import click

from fedserver.cli.options import PATH, state_option
from shoal.core.errors import ConfigError, Refused
from shoal.shell.console import Console, Result, verb


@click.command(epilog="Example: fedserver backup --state server /backups/monday")
@verb
@click.pass_obj
@state_option
@click.argument("target", type=PATH, metavar="BACKUP")
def backup(console: Console, state: Path, target: Path) -> Result:
    """Copy the state folder to BACKUP, which must not exist. The server may be running."""
    from fedserver.config import read_server
    from fedserver.store.backup import backup as copy

    if read_server({"state": state}).elsewhere is not None:
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
@click.pass_obj
@state_option
@click.argument("source", type=PATH, metavar="BACKUP")
def restore(console: Console, state: Path, source: Path) -> Result:
    """Restore BACKUP into a new state folder. Every blob is verified.

    What happened after the backup was made is lost. Start the server; once a device has seen later work, it
    refuses new work, until you stop it and accept that with `fedserver recover --accept`. Devices that it
    has forgotten come back and wait for approval: fedserver device approve --all. Keys that were revoked
    since stay revoked, by the file STATE.revoked beside the folder: restore to the same place, or bring that
    file along. Join strings that were open are revoked, since some may have been used.
    """
    from fedserver.store.backup import restore as copy

    console.progress(f"restoring {source}")
    facts = copy(source.absolute(), state.absolute())
    what = f"{facts.runs} runs as of start {facts.start}, revision {facts.revision}"
    return Result(
        {"state": str(state), **asdict(facts)}, f"{state}: {what}\nnext: fedserver up --state {state}"
    )


@click.command(epilog="Example: fedserver recover --state server --accept")
@verb
@state_option
@click.option(
    "--accept",
    is_flag=True,
    help="Accept the restored state; later work that devices have seen is lost.",
)
def recover(state: Path, accept: bool) -> Result:
    """Continue from a state folder that was restored from a backup. The server must be stopped.

    Without --accept, the command only prints what is in doubt. With --accept, open rounds are abandoned and
    planned again, devices that have seen later work are served, and join strings that are open here are
    revoked, since some may have been used.
    """
    from fedserver.config import read_server
    from fedserver.store.backup import check_state
    from fedserver.store.store import Store

    elsewhere = read_server({"state": state}).elsewhere
    if elsewhere is None:
        check_state(state.absolute())
    store = Store(state.absolute(), elsewhere)
    try:
        doubts = store.history.conflicts()
        lines = [f"{device} has seen {what}" for device, what in doubts.items()]
        if not accept:
            lines.append(
                "to continue from this folder, give --accept" if lines else "no device has seen later work"
            )
            return Result({"doubts": doubts, "accepted": False}, "\n".join(lines))
        if not doubts:
            raise Refused("no device has seen later work than this state", "start the server")
        abandoned = store.recover()
    finally:
        store.close()
    lines.append(f"accepted; open rounds abandoned: {len(abandoned)}; start the server with: fedserver up")
    return Result({"doubts": doubts, "accepted": True, "abandoned": abandoned}, "\n".join(lines))
