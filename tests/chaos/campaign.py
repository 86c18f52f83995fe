"""Many trials, one after another, on fleets that live for a score of them each."""

import json
import shutil
import tempfile
import traceback
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from shoal.core.errors import ShoalError
from tests.chaos.checks import Facts, examine, examine_fleet
from tests.chaos.fleet import Fleet
from tests.chaos.grounds import tmpfs
from tests.chaos.kinds import KINDS
from tests.chaos.kinds.kind import Kind
from tests.chaos.trial import Trial

TRIALS_A_FLEET = 20
DISKS = {"server": 256 << 20, "device": 128 << 20}
"""Bytes of the file systems of a fleet with small disks."""
TRIALS = "trials.jsonl"
"""What was seen in each trial, a line as soon as it is over."""


@dataclass(frozen=True)
class Planned:
    kind: str
    seed: int


@dataclass
class Campaign:
    """out: the folder of what comes out. say: gets its progress. secure: over mutual TLS, or in plain text.

    skipped: kinds that this machine does not permit, and why. fleets: what was wrong with a fleet at its end.
    """

    out: Path
    seed: int
    say: Any = print
    secure: bool = True
    trials: list[Facts] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)
    fleets: list[dict[str, Any]] = field(default_factory=list)

    @property
    def good(self) -> bool:
        return all(facts.good for facts in self.trials) and not any(f["problems"] for f in self.fleets)

    def plan(self, runs: int, kinds: list[str]) -> list[Planned]:
        """Which trials, each with a seed of its own: every kind as often as its weight says, well mixed.

        With `kinds` given, only those, and trial i has the seed `seed` + i: so one trial is played again.
        """
        if kinds:
            return [Planned(kinds[number % len(kinds)], self.seed + number) for number in range(runs)]
        bag, chance = list[str](), Random(self.seed)
        while len(bag) < runs:
            cycle = [name for name, kind in KINDS.items() for _ in range(kind.weight)]
            chance.shuffle(cycle)
            bag += cycle
        return [Planned(kind, self.seed + number) for number, kind in enumerate(bag[:runs])]

    def resume(self, plan: list[Planned]) -> list[Planned]:
        """What is left of a plan that was begun: what trials.jsonl has of it is taken from there.

        A line that the end cut short, and trials of another plan, are dropped.
        """
        planned, path = set(plan), self.out / TRIALS
        for line in path.read_text().split("\n")[:-1] if path.exists() else []:
            facts = Facts(**json.loads(line))
            trial = Planned(facts.kind, facts.seed)
            if trial in planned and facts.secure == self.secure:
                planned.remove(trial)
                self.trials.append(facts)
        self._write(*self.trials, empty=True)
        return [trial for trial in plan if trial in planned]

    async def play(self, plan: list[Planned]) -> None:
        """Play every trial that this machine permits."""
        for name in dict.fromkeys(planned.kind for planned in plan):
            if why := self._forbidden(KINDS[name]):
                self.skipped[name] = why
                self.say(f"{name}: not tried: {why}")
        left = [planned for planned in plan if planned.kind not in self.skipped]
        for small in (False, True):
            trials = [planned for planned in left if KINDS[planned.kind].small_disks == small]
            while trials:
                played = await self._play_on_one_fleet(trials[:TRIALS_A_FLEET], small)
                trials = trials[played:]

    def _forbidden(self, kind: Kind) -> str:
        plain = "" if self.secure or kind.plain_text else "it needs certificates"
        return plain or kind.forbidden()

    async def _play_on_one_fleet(self, trials: list[Planned], small_disks: bool) -> int:
        """Play trials until one goes wrong; how many were played."""
        folder = Path(tempfile.mkdtemp(prefix="chaos-")) / "fleet"
        fleet, played, problems = Fleet(folder, self.secure), 0, list[str]()
        with ExitStack() as stack:
            stack.callback(shutil.rmtree, folder.parent, ignore_errors=True)
            if small_disks:
                for name, place in fleet.disks().items():
                    stack.enter_context(tmpfs(place, DISKS["server" if name == "server" else "device"]))
            try:
                await fleet.start()
                for planned in trials:
                    played += 1
                    facts = await self._play_one(fleet, planned)
                    if not facts.good:
                        break
                problems = await examine_fleet(fleet)
            finally:
                fleet.kill()
                await fleet.close()
            self.fleets.append({"trials": played, "problems": problems})
            if problems or not self.trials[-1].good:
                self._keep_logs(fleet)
            for problem in problems:
                self.say(f"the fleet: {problem}")
        return played

    async def _play_one(self, fleet: Fleet, planned: Planned) -> Facts:
        trial = Trial(fleet, planned.kind, planned.seed)
        try:
            await KINDS[planned.kind].strike(trial)
            await trial.end()
            facts = examine(trial)
        except Exception as error:
            facts = Facts(
                trial.kind,
                trial.seed,
                fleet.secure,
                trial.algorithm,
                [each.facts() for each in trial.strikes],
            )
            facts.problems.append(f"{type(error).__name__}: {error}")
            if not isinstance(error, ShoalError):
                traceback.print_exc()
        self.trials.append(facts)
        self._say(facts)
        self._write(facts)
        return facts

    def _write(self, *trials: Facts, empty: bool = False) -> None:
        with (self.out / TRIALS).open("w" if empty else "a") as file:
            file.writelines(json.dumps(asdict(facts)) + "\n" for facts in trials)

    def _say(self, facts: Facts) -> None:
        state = "ok  " if facts.good else "FAIL"
        struck = ", ".join(strike["what"] for strike in facts.strikes) or "nothing struck"
        self.say(
            f"{state} {len(self.trials):4} {facts.kind} {facts.seed} ({facts.algorithm}): {struck}; "
            f"{facts.seconds:.1f} s, {facts.acknowledged} reports, {facts.lost} lost, {facts.twice} twice"
        )
        for problem in facts.problems:
            self.say(f"       {problem}")
        if not facts.good:
            self.say(f"       again: {again(facts)}")

    def _keep_logs(self, fleet: Fleet) -> None:
        """What there is to find out why, beside the results."""
        target = self.out / f"fleet-{len(self.fleets)}"
        shutil.rmtree(target, ignore_errors=True)
        for path in _telling(fleet.folder):
            copy = target / path.relative_to(fleet.folder)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, copy)
        self.say(f"       logs: {target}")


def _telling(folder: Path) -> Iterator[Path]:
    yield from folder.glob("*.log")
    yield from folder.glob("*/receipts")
    yield from folder.glob("*/state/status.json")
    yield from folder.glob("server/shoal.db*")


def again(facts: Facts) -> str:
    """The command that plays one trial again."""
    return f"python -m tests.chaos --kind {facts.kind} --seed {facts.seed} --runs 1"
