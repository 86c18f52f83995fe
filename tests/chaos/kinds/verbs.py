"""Crash points that no run passes: a verb beside the run dies there, and the same verb then does its work."""

from signal import SIGKILL

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
)
POINTS = {kind.name.partition(":")[2] for kind in KINDS}
