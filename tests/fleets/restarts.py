"""A restart of the server at every point of a run: python -m tests.fleets.restarts [--every N] [--seed N]

The policy is the default one, and there are 20 devices of two kinds. They return within 45 s, in any order;
in half of the runs a third of them never returns. The run has to form the same clusters, no round may have
under half of the devices that were there, and if all of them return, all bits are the same.
"""

import argparse
import sys
from dataclasses import dataclass
from typing import Any

from fedserver.coordinator.recipe import recipe_of
from fedserver.store.records import RunSpec
from shoal.core.engine.bootstrap import ASKED, Unstarted
from shoal.core.engine.rounds import RoundPolicy
from shoal.core.exchange.messages import Message
from shoal.core.exchange.tensors import digest
from shoal.core.types import DeviceId
from tests.fleets.virtual import Device, VirtualFleet
from tests.histories.devices import answer, model_of

FLEET, VALUES = 20, 5
SPECS = {
    "fedavg": RunSpec("run", "fedavg", "default", {"rounds": 3}),
    "flux": RunSpec(
        "run",
        "flux",
        "default",
        {"rounds": 4, "classes": 3, "dims": 4, "earliest": 1, "privacy": "off"},
    ),
}


@dataclass(frozen=True)
class Outcome:
    """How a run ended. bits: of all models. clusters: which devices are together. least: the smallest share
    of the devices there that a round had. took: seconds."""

    failed: bool
    bits: tuple[str, ...]
    clusters: frozenset[frozenset[DeviceId]]
    least: float
    steps: int
    took: float


def played(algorithm: str, seed: int, stop_at: int | None = None, lost: int = 0) -> Outcome:
    """A run whose server stops before one of its steps. lost: how many devices never return then."""
    recipe = recipe_of(SPECS[algorithm])
    state: Any = recipe.start(model_of(VALUES))
    names = [f"d{number}" for number in range(FLEET)]

    def work(name: DeviceId) -> Any:
        return lambda number: 20.0 + (hash_of(name, number, seed) % 100) / 10

    fleet = VirtualFleet(
        recipe.server_half,
        state,
        RoundPolicy(),
        [Device(name, work(name)) for name in names],
        _answer,
        seed,
        stop_at,
    )
    there = [(0.0, FLEET)]

    def restarted() -> None:
        for name in names[FLEET - lost :]:
            fleet.devices[name].here = False
        there.append((fleet.now, FLEET - lost))

    fleet.on_restart = restarted
    fleet.run()
    shares = []
    for each in fleet.rounds:
        asked = ASKED if each.number == 1 and isinstance(state, Unstarted) else FLEET
        here = min(count for since, count in there if since <= each.at)
        shares.append(len(each.reported) / min(here, asked))
    members: dict[str, set[DeviceId]] = {}
    for device, key in fleet.state.assignments.items():
        members.setdefault(key, set()).add(device)
    bits = tuple(f"{key} {digest(model)}" for key, model in sorted(fleet.state.models.items()))
    clusters = frozenset(map(frozenset, members.values()))
    return Outcome(fleet.failed is not False, bits, clusters, min(shares), fleet.steps, fleet.now)


def _answer(device: DeviceId, message: Message, seed: int) -> Message:
    return answer(int(device[1:]), message, seed, 0, VALUES)


def hash_of(name: DeviceId, number: int, seed: int) -> int:
    """A number that is the same in every process."""
    return (int(name[1:]) * 7919 + number * 104729 + seed * 1299709) % 10_007


def wrong(quiet: Outcome, found: Outcome, lost: int) -> str:
    """What does not hold of a run that was interrupted; "" if all does."""
    gone = {f"d{number}" for number in range(FLEET - lost, FLEET)}
    left = frozenset(cluster - gone for cluster in found.clusters) - {frozenset[DeviceId]()}
    wanted = frozenset(cluster - gone for cluster in quiet.clusters) - {frozenset[DeviceId]()}
    if found.failed:
        return "the run failed"
    if left != wanted:
        return f"other clusters: {sorted(map(sorted, left))}"
    if found.least < 0.5:
        return f"a round had {found.least:.0%} of the devices"
    return "" if lost or found.bits == quiet.bits else "other bits"


def campaign(algorithm: str, seed: int, every: int, lost: int) -> tuple[int, list[str], float, float]:
    """How many restarts there were, what did not hold, the least share of a round, and the longest run in
    seconds; one restart before every `every`-th step."""
    quiet = played(algorithm, seed)
    assert (quiet.failed, quiet.least) == (False, 1.0), quiet
    found = {at: played(algorithm, seed, at, lost) for at in range(1 + seed % every, quiet.steps + 1, every)}
    bad = [
        f"{algorithm} seed {seed} step {at}: {why}"
        for at, one in found.items()
        if (why := wrong(quiet, one, lost))
    ]
    return len(found), bad, min(one.least for one in found.values()), max(one.took for one in found.values())


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fleets.restarts")
    parser.add_argument("--every", type=int, default=1, help="restart before every N-th step only")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    print("algorithm  devices  never return  restarts  wrong  least share of a round  longest run")
    failures: list[str] = []
    for algorithm in SPECS:
        for lost in (0, FLEET // 3):
            count, bad, least, longest = campaign(algorithm, options.seed, options.every, lost)
            line = f"{algorithm:9}  {FLEET:7}  {lost:12}  {count:8}  {len(bad):5}  {least:22.0%}"
            print(f"{line}  {longest:9.0f} s", flush=True)
            failures += bad
    print("\n".join(failures[:20]))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
