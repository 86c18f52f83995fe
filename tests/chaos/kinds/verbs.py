"""Crash points that no run passes: a verb beside the run dies there, and the same verb then does its work."""

import sqlite3
from contextlib import closing
from signal import SIGKILL

from fedserver.store.backup import DATABASE
from shoal.shell.crash import VARIABLE
from tests.chaos.kinds.kind import Kind
from tests.chaos.trial import Trial


async def named(trial: Trial) -> None:
    """A device that joins dies with its name on the disk."""
    fleet, name = trial.fleet, f"newcomer-{trial.seed}"
    (fleet.folder / name).mkdir()
    config = fleet.write_settings(name, f"127.0.0.1:{fleet.port}")
    await trial.begin()
    join = ["fedclient", "join", "-", "--config", str(config), "--device", name]
    await _twice(trial, "device.named", join, await fleet.token())


async def backup_copied(trial: Trial) -> None:
    """A backup of the working server dies before it has its name."""
    target = trial.fleet.folder / f"backup-{trial.seed}"
    await trial.begin()
    await _twice(
        trial, "server.backup-copied", ["fedserver", "backup", "--state", str(trial.fleet.state), str(target)]
    )


async def restored(trial: Trial) -> None:
    """A restore dies before the folder has its name."""
    folder = trial.fleet.folder
    backup, state = str(folder / f"kept-{trial.seed}"), str(folder / f"restored-{trial.seed}")
    await trial.begin()
    await trial.fleet.must(["fedserver", "backup", "--state", str(trial.fleet.state), backup])
    await _twice(trial, "server.restored", ["fedserver", "restore", backup, "--state", state])


async def migrating(trial: Trial) -> None:
    """An older version's database is about to be brought up to date."""
    await _update(trial, "server.migrating")


async def migrated(trial: Trial) -> None:
    """An older version's database is up to date, and nothing has used it."""
    await _update(trial, "server.migrated")


async def _update(trial: Trial, point: str) -> None:
    state = trial.fleet.folder / f"older-{trial.seed}"
    state.mkdir(mode=0o700)
    with closing(sqlite3.connect(state / DATABASE)) as database:
        for number, step in enumerate(database.STEPS[:-1], 1):
            database.executescript(f"{step}; UPDATE meta SET schema_version = {number};")
    await trial.begin()
    await _twice(trial, point, ["fedserver", "recover", "--state", str(state)])
    with closing(sqlite3.connect(state / DATABASE)) as database:
        (version,) = database.execute("SELECT schema_version FROM meta").fetchone()
    if version != database.VERSION:
        trial.wrong.append(f"the tables of {state.name} have version {version}")


async def _twice(trial: Trial, point: str, line: list[str], given: str = "") -> None:
    """Let a verb die at this point, and then do its work."""
    strike = trial.struck(point, ())
    codes = [await trial.fleet.run(line, each, given) for each in ({VARIABLE: point}, {})]
    strike.heal()
    if codes != [-SIGKILL, 0]:
        trial.wrong.append(f"{line[0]} {line[1]} ended with {codes}; see verbs.log")


KINDS = (
    Kind("crash:device.named", named, plain_text=False),
    Kind("crash:server.backup-copied", backup_copied),
    Kind("crash:server.restored", restored),
    Kind("crash:server.migrating", migrating),
    Kind("crash:server.migrated", migrated),
)
POINTS = {kind.name.partition(":")[2] for kind in KINDS}
