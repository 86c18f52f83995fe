"""Named crash points: the process dies by SIGKILL at exactly this line, on its first to third passage."""

from tests.chaos.kinds.kind import Kind
from tests.chaos.trial import Trial

try:
    from fedcore.shell.crash import POINTS, VARIABLE
except ImportError:
    POINTS, VARIABLE = {}, ""


def at(point: str) -> Kind:
    """The kind that dies at this point."""

    async def strike(trial: Trial) -> None:
        side, passage = point.partition(".")[0], trial.chance.randint(1, 3)
        on_server = side == "server" or (side == "disk" and trial.chance.random() < 0.5)
        program = trial.fleet.server if on_server else trial.pick().program
        trial.expect(program.name, 0, -9)
        known = len(program.ends)
        await program.anew({VARIABLE: f"{point}:{passage}"})
        strike = trial.struck(f"{point}:{passage}", (program.name,))
        await trial.fleet.answering()
        await trial.begin()
        await trial.until_over(lambda: len(program.ends) > known + 1)
        if len(program.ends) == known + 1:
            trial.strikes.remove(strike)
            trial.notes.append(f"{point}:{passage} was never passed")
            await program.anew()
        strike.heal()

    return Kind(f"crash:{point}", strike)


KINDS = tuple(map(at, POINTS))
