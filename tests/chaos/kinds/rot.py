"""A disk that does not keep what was written to it: one bit of a file of the server is another one."""

import asyncio
from pathlib import Path

from tests.chaos.kinds.kind import Kind
from tests.chaos.kinds.processes import _kill
from tests.chaos.trial import Trial

STORAGE = 8
"""The exit code of a process whose own disk has failed it."""


async def server_rot(trial: Trial) -> None:
    """A bit of the database, of its copy or of a model flips, and the server is killed soon after."""
    await trial.begin()
    for _ in range(trial.chance.randint(1, 2)):
        moment = trial.moment()
        if not await trial.until(moment):
            return
        path = trial.chance.choice(_files(trial.fleet.state))
        trial.expect("server", STORAGE)
        place = trial.chance.randrange(max(1, path.stat().st_size))
        strike = trial.struck("bit flip", ("server",), moment, file=path.name, byte=place)
        _flip(path, place, trial.chance.randrange(8))
        await asyncio.sleep(trial.chance.uniform(0.0, 2.0))
        await _kill(trial, None, trial.fleet.server)
        # Not before this damage is repaired: two in the two copies of one thing would be a loss.
        await trial.fleet.answering()
        strike.heal()


def _files(state: Path) -> list[Path]:
    """The files that are there a second time: the database and its copy, and the models that have a copy."""
    copies = sorted((state / "copies").glob("??/*"))
    models = [state / "blobs" / copy.parent.name / copy.name for copy in copies]
    databases = [state / name for name in ("shoal.db", "shoal.db-wal", "shoal.db.copy")]
    return [path for path in (*databases, *copies, *models) if path.is_file() and path.stat().st_size]


def _flip(path: Path, place: int, bit: int) -> None:
    with path.open("r+b") as file:
        file.seek(place)
        byte = file.read(1)
        if byte:
            file.seek(place)
            file.write(bytes([byte[0] ^ (1 << bit)]))


KINDS = (Kind("server-rot", server_rot, 4),)
