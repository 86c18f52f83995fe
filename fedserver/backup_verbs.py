"""`fedserver backup`, `restore` and `recover`: what an operator does before and after the loss of a disk."""

from dataclasses import asdict
from pathlib import Path

import click

from fedcore.errors import Refused
from fedcore.shell.console import Console, Result, verb
from fedserver.options import PATH, state_option

STATE = state_option("The server's folder.")


@click.command(epilog="Example: fedserver backup --state server /backups/monday")
@verb
@STATE
@click.argument("target", type=PATH, metavar="BACKUP")
def backup(console: Console, state: Path, target: Path) -> Result:
    """Copy a server's folder to BACKUP, a folder that is not there yet. The server may be working."""
    from fedserver.backup import backup as copy

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

    Devices may have seen what happened after the backup was made. They say so when they call, and the server
    then takes nothing before `fedserver recover --accept`.
    """
    from fedserver.backup import restore as copy

    console.progress(f"restoring {source}")
    facts = copy(source.absolute(), state.absolute())
    what = f"{facts.runs} runs as of start {facts.start}, revision {facts.revision}"
    return Result({"state": str(state), **asdict(facts)}, f"{state}: {what}; start it: fedserver up")


@click.command(epilog="Example: fedserver recover --state server --accept")
@verb
@STATE
@click.option(
    "--accept", is_flag=True, help="Go on from what is in the folder; what devices saw is given up."
)
def recover(console: Console, state: Path, accept: bool) -> Result:
    """End the doubt of a server that was restored from the past, while it is stopped.

    Without --accept it only says what devices have seen. With it, rounds that are open are abandoned and
    planned again, and no mark that was shown until now is doubted any more.
    """
    from fedserver.backup import check_state
    from fedserver.store import Store

    check_state(state.absolute())
    store = Store(state.absolute())
    try:
        doubts = store.doubts()
        seen = [f"{device} has seen {what}" for device, what in doubts.items()]
        if not accept:
            said = "\n".join([*seen, "go on from this folder with --accept"]) if seen else "there is no doubt"
            return Result({"doubts": doubts, "accepted": False}, said)
        if not doubts:
            raise Refused("no device has seen anything that this server does not know", "just start it")
        abandoned = store.recover()
    finally:
        store.close()
    text = "\n".join([*seen, f"given up; {len(abandoned)} open rounds are abandoned; start it: fedserver up"])
    return Result({"doubts": doubts, "accepted": True, "abandoned": abandoned}, text)
