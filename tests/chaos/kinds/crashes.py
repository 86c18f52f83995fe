"""Named crash points: the process dies by SIGKILL at exactly this line, on its first to third passage."""

from shoal.shell.crash import POINTS, VARIABLE
from tests.chaos.kinds import releases, verbs
from tests.chaos.kinds.kind import Kind
from tests.chaos.trial import Trial

DISK = "disk"
ONCE = {"server.booted", "server.scrubbed", "server.run-stored", "server.run-ended", "device.welcomed"}
"""Points that a process passes once in its life; it passes the others for each round or each transfer."""
ELSEWHERE = releases.POINTS | verbs.POINTS
"""Points that the agent of a device and the server do not pass in a run like any other."""
WRITES = 10
"""Files that every program writes in a run, and more."""


def at(point: str, side: str) -> Kind:
    """The kind in which the server or a device dies at this point."""

    async def strike(trial: Trial) -> None:
        most = 1 if point in ONCE else WRITES if point.startswith(DISK) else 3
        passage = trial.chance.randint(1, most)
        program = trial.fleet.server if side == "server" else trial.pick().program
        trial.expect(program.name, 0, -9)
        known = len(program.ends)
        await program.restart({VARIABLE: f"{point}:{passage}"})
        strike = trial.struck(f"{point}:{passage}", (program.name,), cut=1)
        await trial.fleet.answering()
        await trial.begin()
        await trial.until_over(lambda: len(program.ends) > known + 1)
        if len(program.ends) == known + 1:
            trial.strikes.remove(strike)
            trial.notes.append(f"{point}:{passage} was never passed")
            await program.restart()
        strike.heal()

    strike.__doc__ = f"SIGKILL of the {side} where {POINTS[point]}."
    return Kind(f"crash:{point}" + (f":{side}" if point.startswith(DISK) else ""), strike)


def _sides(point: str) -> tuple[str, ...]:
    """Who passes it."""
    side = point.partition(".")[0]
    return ("server", "device") if side == DISK else (side,)


KINDS = (
    *(at(point, side) for point in POINTS if point not in ELSEWHERE for side in _sides(point)),
    *releases.KINDS,
    *verbs.KINDS,
)
