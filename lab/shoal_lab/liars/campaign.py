"""All trials: algorithm x size of the liar's cluster x attack, with and without privacy, and their table.

Each finished trial is a line of a JSON file, so a campaign that was stopped goes on where it was.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from shoal.core.algorithm import discover, find
from shoal_lab.liars.attacks import ATTACKS
from shoal_lab.liars.trial import Found, trial

HONEST, ABSENT = "honest", "absent"
SIZES = range(2, 11)
SETTINGS: Mapping[str, Any] = {
    "rounds": 16,
    "epochs": 2,
    "learning_rate": 0.05,
    "batch_size": 16,
    "privacy": "off",
}
PRIVATE: Mapping[str, Any] = {"privacy": "explicit", "epsilon": 60.0, "delta": 1e-6}
"""An epsilon that a hundred samples of ten classes can be described with."""
ALLOWED = 2.0
"""Points of accuracy that one device may cost the others."""


@dataclass(frozen=True)
class Case:
    """size: devices in the liar's cluster, itself included. attack: a key of `ATTACKS`, or what the others
    reach with the device as an honest one, or without it."""

    algorithm: str
    private: bool
    size: int
    attack: str
    seed: int


def parameters_of(algorithm: str, private: bool) -> tuple[Any, Any]:
    """The card, and its parameters in these trials. The number of clusters is given where one is required."""
    card, variant = find(algorithm)
    changes = {**SETTINGS, **variant, **(PRIVATE if private else {})}
    if card.settings.get("clusters") and (changes.get("clusters") == -1 or card.settings["clusters"].default):
        changes["clusters"] = 2
    known = {name: value for name, value in changes.items() if name in card.settings}
    return card, card.configure("default", known)


def cases(
    algorithms: Iterable[str], sizes: Sequence[int], attacks: Sequence[str], seeds: Sequence[int]
) -> Iterator[Case]:
    """Every case, each attack after what it is compared with."""
    for name in algorithms:
        both = [False, True] if "epsilon" in find(name)[0].settings else [False]
        for private in both:
            for size in sizes:
                for seed in seeds:
                    for attack in (HONEST, ABSENT, *attacks):
                        yield Case(name, private, size, attack, seed)


def tried(case: Case) -> Found:
    """How the honest devices fare in this case."""
    card, parameters = parameters_of(case.algorithm, case.private)
    attack = ATTACKS.get(case.attack)
    return trial(card, parameters, case.size - 1, attack, case.seed, present=case.attack != ABSENT)


def play(wanted: Iterable[Case], path: Path, say: Callable[[str], None]) -> dict[Case, Found]:
    """Try each case that the file does not have yet, and return what is known of all."""
    known = read(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        for case in wanted:
            if case not in known:
                known[case] = tried(case)
                file.write(json.dumps({**asdict(case), **asdict(known[case])}) + "\n")
                file.flush()
                say(f"{case}: {known[case]}")
    return known


def read(path: Path) -> dict[Case, Found]:
    """What a file of finished trials says."""
    found = {}
    for line in path.read_text().splitlines() if path.exists() else []:
        row = json.loads(line)
        case = Case(*(row[name] for name in Case.__dataclass_fields__))
        found[case] = Found(*(row[name] for name in Found.__dataclass_fields__))
    return found


def names() -> list[str]:
    """All algorithms that are installed."""
    return sorted(discover())
