"""What liars in number cost the honest devices of a group: a covering array of small real fleets.

    python -m benchmarks.influence --out FILE [--data-dir DIR] [--seeds 47,48,49] [--cells N]
        [--page docs/liars.md] [--honest]

Each cell trains one group of 5, 10, 30 or 60 devices with nothing set but the number of rounds. One of them,
a tenth, a fifth or just under a quarter lie together: by an attack of `shoal_lab.liars`, with a claim of one
sample, of the true number, or of 2^40. `lost` is the accuracy of the honest devices in the same fleet
without the liars, minus theirs. Any two choices meet in some cell. `BESIDES` has groups of 200, FLUX in
two and four groups with liars among them, and two liars of five. `--honest` measures what the bounds cost
fleets without liars: the default rule against the plain mean.

Each run is one line of FILE; what is there is not run again, so the program may be stopped at any time.
"""

import argparse
import itertools
import json
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from shoal.checks.small_fleet import Device, digits, learner
from shoal.checks.subject import Subject
from shoal.core.algorithm import Algorithm, discover, find, measurement
from shoal.core.data.dataset import Dataset
from shoal.core.data.seeds import generator
from shoal.core.data.views import Views
from shoal.core.device_kit.context import DeviceContext
from shoal.core.device_kit.learner import Learner, builtin, initial_weights
from shoal.core.engine.rounds import RoundPolicy
from shoal.core.engine.simulate import simulate
from shoal.core.exchange.messages import Evaluated, Message
from shoal.core.privacy.accountant import Unmetered
from shoal.core.server_kit.history.figures import trains
from shoal.core.types import DeviceId, Tensors
from shoal.simulation.images import rotate, unit
from shoal.simulation.simulated import Simulated, on_threads
from shoal_lab.datasets import images, natural
from shoal_lab.liars.attacks import ATTACKS, CLAIM, HIDING

ABSENT = "absent"
SAMPLES = 40
ROUNDS: Mapping[int, int] = {200: 5, 60: 8, 0: 16}
"""By the number of devices, at least: large fleets take long."""
GROUPS = (5, 10, 30, 60)
LIARS: Mapping[str, Any] = {
    "one": lambda devices: 1,
    "a tenth": lambda devices: max(1, devices // 10),
    "a fifth": lambda devices: devices // 5,
    "under a quarter": lambda devices: (devices - 1) // 4,
}
CLAIMS = (1, 0, CLAIM)
SETS = ("digits", "fashion-mnist", "hapt")
BESIDES: Sequence[tuple[str, str, int, int, str, int]] = (
    ("fedavg", "fashion-mnist", 200, 49, "tuned", CLAIM),
    ("fedavg", "fashion-mnist", 200, 49, "a little", 0),
    ("fedavg", "fashion-mnist", 200, 20, "reversed x10", CLAIM),
    ("flux", "rotated", 10, 2, "reversed x10", CLAIM),
    ("flux", "rotated", 10, 2, "tuned", 0),
    ("flux", "rotated", 10, 2, "extreme", 0),
    ("flux", "rotated", 10, 2, "shuffled", CLAIM),
    ("flux", "four rotations", 8, 1, "middle", 0),
    ("flux", "four rotations", 10, 2, "middle", 0),
    ("flux", "four rotations", 10, 2, "copied", 0),
    ("flux", "four rotations", 30, 7, "middle", 0),
    ("flux", "four rotations", 30, 7, "copied", 0),
    ("flux", "four rotations", 30, 7, "of its own", 0),
    ("flux, balanced", "rotated", 10, 2, "reversed x10", CLAIM),
    ("flux, balanced", "rotated", 10, 2, "middle", 0),
    ("flux, balanced", "rotated", 10, 2, "copied", 0),
    ("flux, balanced", "rotated", 10, 2, "tuned", 0),
    ("fedavg", "digits", 5, 2, "reversed", 0),
    ("fedavg", "digits", 5, 2, "reversed x10", CLAIM),
    ("fedavg", "digits", 5, 2, "noise", 0),
    ("fedavg", "fashion-mnist", 5, 2, "wrong labels", 0),
    ("fedavg", "fashion-mnist", 5, 2, "tuned", CLAIM),
    ("fedavg", "hapt", 5, 2, "opposite", 0),
    ("fedavg", "hapt", 5, 2, "a little", 1),
)
"""Algorithm and privacy, data, devices, liars, attack and claim."""
TURNS: Mapping[str, int] = {"rotated": 2, "four rotations": 4}
SIZES = "50 to 2000"
"""Samples of each device, of Fashion-MNIST."""
HONEST = (SIZES, "alike", "sizes", "labels 2 of 10", "labels 3 of 10", "late", "rotated")
"""Fleets without liars; see `_honest`."""


@dataclass(frozen=True)
class Cell:
    """claim: 0 for the true number. attack: `ABSENT` for the fleet without the liars."""

    data: str
    devices: int
    liars: int
    attack: str
    claim: int
    seed: int
    algorithm: str = "fedavg"
    aggregation: str = "clipped"


Part = tuple[Dataset, Dataset]


def covering(seeds: Sequence[int]) -> Iterator[Cell]:
    """Cells in which any two choices of group, number, attack, claim and data meet.

    A fleet has one seed, so that the cells with the same devices share what these reach without the liars.
    """
    factors: list[Sequence[Any]] = [GROUPS, tuple(LIARS), tuple(ATTACKS), CLAIMS, SETS]
    pairs = {
        (i, a, j, b)
        for (i, one), (j, other) in itertools.combinations(enumerate(factors), 2)
        for a in one
        for b in other
    }
    chance = np.random.default_rng(0)
    while pairs:
        tries = [[each[int(chance.integers(len(each)))] for each in factors] for _ in range(200)]
        met = [
            {(i, a, j, b) for (i, a), (j, b) in itertools.combinations(enumerate(row), 2)} & pairs
            for row in tries
        ]
        best = max(range(len(tries)), key=lambda index: len(met[index]))
        if not met[best]:
            continue
        pairs -= met[best]
        devices, share, attack, claim, data = tries[best]
        liars = LIARS[share](devices)
        yield Cell(data, devices, liars, attack, claim, _seed(data, devices, liars, seeds))


def besides(seeds: Sequence[int]) -> Iterator[Cell]:
    for algorithm, data, devices, liars, attack, claim in BESIDES:
        yield Cell(data, devices, liars, attack, claim, _seed(data, devices, liars, seeds), algorithm)


def _seed(data: str, devices: int, liars: int, seeds: Sequence[int]) -> int:
    group = GROUPS.index(devices) if devices in GROUPS else 0
    return seeds[(group + (SETS.index(data) if data in SETS else 0) - liars) % len(seeds)]


def fleets(seeds: Sequence[int]) -> Iterator[Cell]:
    """Honest fleets under both rules."""
    for seed, kind, algorithm in itertools.product(seeds, HONEST, ("fedavg", "flux")):
        for rule in ("mean", "clipped"):
            yield Cell(kind, 12, 0, ABSENT, 0, seed, algorithm, rule)


# -- data ---------------------------------------------------------------------------------------------------


@cache
def _source(name: str, data_dir: str) -> tuple[Dataset, Dataset, Learner]:
    """Training and test samples of one distribution, and a small network for them."""
    if name == "digits":
        train, test = (Dataset(unit(part.x), part.y) for part in digits())
        return train, test, learner()
    if name == "hapt":
        found = next(Path(data_dir).rglob("hapt-windows-*.npz"), Path("hapt"))
        people = natural.load("hapt", found.parent, 30)
        pair = _joined([each.stages[0] for each in people]), _joined([each.test for each in people])
    else:
        pair = images.load(name, data_dir)
    flat = [Dataset(part.x.reshape(len(part), -1).astype(np.float32), part.y) for part in pair]
    top = max(1.0, float(np.abs(flat[0].x).max()))
    train, test = (Dataset(part.x / np.float32(top if name != "hapt" else 1.0), part.y) for part in flat)
    assert train.y is not None
    size = {"inputs": train.x.shape[1], "hidden": (32,), "classes": int(train.y.max()) + 1}
    return train, test.subset(np.arange(0, len(test), max(1, len(test) // 1000))), builtin("mlp", size)


def _joined(parts: Sequence[Dataset]) -> Dataset:
    return Dataset(np.concatenate([part.x for part in parts]), np.concatenate([part.y for part in parts]))


def parts_of(cell: Cell, data_dir: str) -> tuple[list[Part], Learner]:
    """Each device's training and test part."""
    chance = generator(cell.seed, "influence")
    if cell.data not in (*SETS, SIZES):
        return _honest(cell, chance), learner()
    train, test, network = _source("fashion-mnist" if cell.data == SIZES else cell.data, data_dir)
    rows = chance.permutation(len(train))
    sizes = np.full(cell.devices, min(SAMPLES, len(rows) // cell.devices))
    if cell.data == SIZES:
        sizes = np.geomspace(50, 2000, cell.devices).astype(int)
    own = np.split(rows, np.cumsum(sizes))[: cell.devices]
    return [(train.subset(each), test) for each in own], network


def _honest(cell: Cell, chance: np.random.Generator) -> list[Part]:
    """Digits of 12 devices, or as many as are rotated. sizes: of 20 to 300 samples. labels: a part of the
    devices has four fifths of its samples from the classes 5 to 9, and the others from 0 to 4. late: three
    devices come half-way. rotated: two groups, and four rotations: four."""
    train, test = digits()
    assert train.y is not None
    order, kind = chance.permutation(len(train)), cell.data
    alike = np.full(cell.devices, min(60, len(train) // cell.devices))
    sizes = np.tile([20, 40, 80, 300], 3) if kind == "sizes" else alike
    few = int(kind.split()[1]) if kind.startswith("labels") else 0
    found, high = [], [list(order[train.y[order] >= 5]), list(order[train.y[order] < 5])]
    taken = 0
    for number, size in enumerate(sizes):
        angle = 90.0 * (number % TURNS.get(kind, 1))
        if few:
            first = int(number < 12 - few)
            rows = np.array([high[first if i % 5 else 1 - first].pop() for i in range(size)])
        else:
            rows, taken = order[taken : taken + size], taken + size
        x, y = rotate(train.x[rows], angle), train.y[rows]
        found.append((Dataset(unit(x), y), Dataset(unit(rotate(test.x, angle)), test.y)))
    return found


# -- a run --------------------------------------------------------------------------------------------------


def rounds_of(devices: int) -> int:
    return next(rounds for least, rounds in ROUNDS.items() if devices >= least)


def tried(cell: Cell, data_dir: str) -> float:
    """The accuracy of the honest devices, in percent."""
    algorithm, _, privacy = cell.algorithm.partition(", ")
    card, variant = find(algorithm)
    changes = {
        "rounds": rounds_of(cell.devices),
        "privacy": privacy or "off",
        "aggregation": cell.aggregation,
        **variant,
    }
    known = {name: value for name, value in changes.items() if name in card.settings}
    half, device_half, memories = card.server(), card.device(), dict[DeviceId, Tensors]()
    attack = None if cell.attack == ABSENT else replace({**ATTACKS, **HIDING}[cell.attack], claims=cell.claim)
    parts, network = parts_of(cell, data_dir)
    shared, contexts = network.module(seed=0), dict[DeviceId, DeviceContext]()
    for number, (own, test) in enumerate(parts):
        liar = number < cell.liars
        if liar and attack and attack.mislabels:
            assert own.y is not None
            own = Dataset(own.x, own.y.max() - own.y)
        noise, name = np.random.default_rng((cell.seed, number)), f"{'z' if liar else 'd'}{number:03}"
        contexts[name] = DeviceContext(
            network, Views.of(own, test), "cpu", 0, noise, shared, Unmetered(noise.bytes)
        )
    devices: dict[DeviceId, Device] = {
        name: Simulated(device_half, context, name, memories)
        for name, context in sorted(contexts.items())
        if attack or name[0] == "d"
    }
    if attack:
        devices = _beside(devices, attack)
    if cell.data == "late":
        devices = _late(devices)
    policy = RoundPolicy(minimum=max(1, cell.devices - cell.liars - 3))
    state = half.start(initial_weights(network, 42), card.configure("default", known))
    outcome = simulate(half, state, devices, policy, cell.seed)
    if outcome.failed and attack is None:
        raise RuntimeError(f"{cell} fails without the liars: {outcome.reason}")
    if outcome.failed:
        return 0.0
    found = []
    for name, key in sorted(outcome.state.assignments.items()):
        if name[0] == "d":
            task = measurement(half, outcome.state, key)
            answer = device_half.perform(task, contexts[name].for_task(0, memories.get(name), task))
            assert isinstance(answer, Evaluated)
            found.append(answer.accuracy)
    return 100.0 * float(np.mean(found))


def _beside(devices: Mapping[DeviceId, Device], attack: Any) -> dict[DeviceId, Device]:
    """The devices, where those whose names begin with z lie, and see what the honest have answered."""
    seen: list[tuple[Message, Message]] = []
    taught: dict[DeviceId, int] = {}
    last = max(name for name in devices if name[0] == "z")

    def watched(device: Device) -> Device:
        def perform(task: Message, seed: int) -> Message:
            answer = device(task, seed)
            seen.append((task, answer))
            return answer

        return perform

    def lying(name: DeviceId) -> Device:
        def perform(task: Message, seed: int) -> Message:
            honest = devices[name](task, seed)
            mates = [answer for other, answer in seen if other is task and type(answer) is type(honest)]
            if name == last:
                seen.clear()
            taught[name] = taught.get(name, 0) + trains(task)
            patient = attack.patience and taught[name] <= attack.patience
            return honest if patient else attack.lie(task, honest, mates)

        return perform

    return {name: lying(name) if name[0] == "z" else watched(each) for name, each in devices.items()}


def _late(devices: Mapping[DeviceId, Device]) -> dict[DeviceId, Device]:
    """The last three devices answer from the middle of the run on; before, they learn nothing."""

    def late(device: Device) -> Device:
        rounds = 0

        def perform(task: Message, seed: int) -> Message:
            nonlocal rounds
            answer, rounds = device(task, seed), rounds + trains(task)
            idle = rounds <= ROUNDS[0] // 2 and hasattr(answer, "model") and hasattr(task, "model")
            return replace(answer, model=task.model) if idle else answer  # type: ignore[type-var, attr-defined]

        return perform

    names = sorted(devices)
    return {name: late(devices[name]) if name in names[-3:] else devices[name] for name in names}


# -- the program --------------------------------------------------------------------------------------------


def play(cells: Sequence[Cell], path: Path, data_dir: str) -> dict[Cell, float]:
    """Try each cell that the file does not have yet."""
    known = {}
    for line in path.read_text().splitlines() if path.exists() else []:
        row = json.loads(line)
        known[Cell(**{name: row[name] for name in Cell.__dataclass_fields__})] = row["accuracy"]
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file, on_threads(1):
        for cell in cells:
            if cell not in known:
                known[cell] = tried(cell, data_dir)
                file.write(json.dumps({**asdict(cell), "accuracy": known[cell]}) + "\n")
                file.flush()
                sys.stderr.write(f"{cell}: {known[cell]:.1f}\n")
    return known


def without(cell: Cell) -> Cell:
    """The same fleet without the liars."""
    return replace(cell, attack=ABSENT, claim=0)


def table(cells: Sequence[Cell], known: Mapping[Cell, float]) -> str:
    """Markdown: the cells with liars, those that cost most first."""
    lines = ["| fleet | devices | liars | attack | claim | without | with | lost |", "|" + "---|" * 8]
    tried = [cell for cell in cells if cell in known]
    lost = {cell: known[without(cell)] - known[cell] for cell in tried}
    for cell in sorted(lost, key=lambda cell: -lost[cell]):
        shown = f"**{lost[cell]:.1f}**" if lost[cell] > 2.0 else f"{lost[cell]:.1f}"
        claim = {0: "true", 1: "1"}.get(cell.claim, "2^40")
        fleet = cell.data if cell.algorithm == "fedavg" else f"{cell.data}, {cell.algorithm}"
        lines.append(
            f"| {fleet} | {cell.devices} | {cell.liars} | {cell.attack} | {claim} | "
            f"{known[without(cell)]:.1f} | {known[cell]:.1f} | {shown} |"
        )
    return "\n".join(lines) + "\n"


LISTED = 0.2
"""Points: rows that cost less are only counted."""
HEAD = """# Liars: what devices that lie together can do to the others

This page is written by `make liars`. Each row is a small real fleet with nothing set, by FedAvg and in one
group, if it says nothing else: {rounds}, and at most {samples} samples
on each device. Some of them lie together. A **claim** is the number of samples that each liar says it has.
**without** is the accuracy of the honest devices in the same fleet without the liars, in percent, **with**
the same beside them, and **lost** the difference; bold above 2 points. `rotated` has two groups and `four
rotations` four, with liars among them; FLUX has no privacy there, or that of `balanced`. Seeds: {seeds}. Any
two of size up to 60, number, attack, claim and data meet in some row{part}.
What the rules promise is in [aggregation.md](aggregation.md#the-contract).

In {tried} fleets fewer than a quarter lie; in {least} the others lost less than {listed} points. The rest:

{table}
What 49 of 200 cost shrinks with the rounds: after ten, `a little` costs 3.3 points (79.9 and 76.6, seed 47).
A part of each bounded step is theirs, so learning may only be slower; that was not tried for longer.

Two of five are more than a quarter, and nothing is promised:

{more}
What else liars can try, and what the rules cost:

- **Groups that updates tell** (FLUX; `middle`, `copied`, `of its own`). Of drawn fleets whose liars know all
  updates, one liar changes the others' groups in 0.2 %, and just under a quarter in 2.3 %
  (`tests/core/server_kit/test_congruence.py`). With noise, where descriptions tell nothing, two of ten in the
  `middle` cost 0.1 points (seed 47). A liar still chooses its group, and may be more than a quarter of that
  one; that may be what `copied` costs.
- **Initial weights** come from three devices, and what two of them agree on counts. Two liars of ten are both
  asked in 7 % of runs, and always if they choose names that are asked first; from their weights nothing may
  be learned. No device decides about weights that are given (`--learner`, `--initial-weights`).
- **Sizes.** As a claim counts up to what enough others have, twelve honest devices with 50 to 2,000 samples
  of Fashion-MNIST have 86.7, and 86.9 by `mean` (seeds 47 and 48; `--honest`).

{open}| attack | what a liar reports |
|---|---|
{attacks}
"""
OPEN = "In these algorithms liars can do more, as what they say decides whose models others get:"


def _open(card: Algorithm) -> Iterator[str]:
    """What liars can do, with and without privacy."""
    for privacy in ({"privacy": "off"}, {"privacy": "explicit", "epsilon": 5.0, "delta": 1e-6}):
        if text := card.liars(Subject(card).parameters(privacy)):
            yield text


def page(cells: Sequence[Cell], known: Mapping[Cell, float]) -> str:
    """docs/liars.md."""
    of = [cell for cell in cells if cell in known]
    bounded = [cell for cell in of if 4 * cell.liars < cell.devices]
    listed = [cell for cell in bounded if known[without(cell)] - known[cell] >= LISTED]
    left = Counter(cell.devices for cell in cells if cell not in known)
    sizes = ", ".join(f"{count} with {devices} devices" for devices, count in sorted(left.items()))
    open_ = sorted({(name, text) for name, card in discover().items() for text in _open(card)})
    few = [f"{rounds} with {least} devices" for least, rounds in ROUNDS.items() if least]
    return HEAD.format(
        rounds=f"{ROUNDS[0]} rounds ({', '.join(reversed(few))})",
        samples=SAMPLES,
        part=f"; of {len(cells)}, these have not been tried: {sizes}" if left else "",
        seeds=", ".join(map(str, sorted({cell.seed for cell in of}))),
        tried=len(bounded),
        least=len(bounded) - len(listed),
        listed=LISTED,
        table=table(listed, known),
        more=table([cell for cell in of if cell not in bounded], known),
        open="\n".join([OPEN, "", *(f"- **{name}**: {text}" for name, text in open_), "\n"]) if open_ else "",
        attacks="\n".join(f"| {name} | {attack.meaning} |" for name, attack in {**ATTACKS, **HIDING}.items()),
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="influence", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="finished runs")
    parser.add_argument("--data-dir", default="", help="the folder of fashion-mnist and hapt")
    parser.add_argument("--seeds", default="47,48,49", help="seeds, separated by commas")
    parser.add_argument("--cells", type=int, help="at most this many cells; 0 for what is there")
    parser.add_argument("--page", type=Path, help="write it as a page, of what has been tried")
    parser.add_argument("--honest", action="store_true", help="fleets without liars instead")
    given = parser.parse_args()
    seeds = [int(each) for each in given.seeds.split(",")]
    if given.honest:
        known = play(list(fleets(seeds)), given.out, given.data_dir)
        for kind, algorithm in itertools.product(HONEST, ("fedavg", "flux")):
            means = [
                float(np.mean([known[Cell(kind, 12, 0, ABSENT, 0, seed, algorithm, rule)] for seed in seeds]))
                for rule in ("mean", "clipped")
            ]
            sys.stdout.write(f"| {kind} | {algorithm} | {means[0]:.1f} | {means[1]:.1f} |\n")
        return
    cells = sorted([*covering(seeds), *besides(seeds)], key=lambda cell: cell.devices)  # the cheapest first
    wanted = cells if given.cells is None else cells[: given.cells]
    known = play([each for cell in wanted for each in (without(cell), cell)], given.out, given.data_dir)
    if given.page:
        given.page.write_text(page(cells, known))
    sys.stdout.write(table(cells, known))


if __name__ == "__main__":
    main()
