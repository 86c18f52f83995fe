"""What a run asks of a device over all of its rounds: the terms of the run.

The server sends them with every task, as JSON. The device judges them before its first task of the run: it
computes what all of it will cost, and refuses where its owner does not want that. It needs no part of the
algorithm for this, so one that only the server has is judged like any other.

    {"algorithm": "fedavg", "package": "shoal-fed", "tasks": [], "asks": {"lessons": 20, "training": {...},
     ...}, "series": "daily"}

A server can lie about the terms. Nothing depends on them but what is reserved, and what the owner sees
beforehand: what leaves is decided task by task, by the task's own message (`shoal.core.privacy.report`), and
is paid for by itself. What the device cannot read or does not know, it refuses.
"""

import json
import re
from dataclasses import asdict, dataclass
from typing import Any

from shoal.core.data.from_json import value_of
from shoal.core.errors import BadPayload
from shoal.core.exchange.messages import MAX_RHO, MIN_NOISE, MIN_RHO, PrivateTraining
from shoal.core.exchange.parts import MAX_ROWS, MAX_SCALE, PrivacySettings
from shoal.core.privacy.cost import Cost, epsilon_of, rho_of
from shoal.core.privacy.payment import Payment
from shoal.core.privacy.report import OPEN, as_computed
from shoal.core.privacy.sums import REPLACED

MAX_COUNT = 1 << 40
"""The largest number of rounds and the like. No run has as many."""
WORD = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,98}[A-Za-z0-9])?", re.ASCII)
"""A name that is shown to people: of an algorithm, a package, or a kind of messages."""
NAME = re.compile(r"[0-9a-f]{64}")
"""A SHA-256."""
UPDATE = "update this device, or ask the run's operator to update the server"


@dataclass(frozen=True)
class Asks:
    """Of one device, if no round is repeated, and at most.

    lessons: how many times it trains. training: by DP-SGD, with these numbers; None for training without.
    epochs, batch_size: of such training, in passes and in samples. descriptor: the guarantee of what it
    releases about its data, None for none or no guarantee; classes: of the run's labels. accuracies: with
    noise, and rho, what each costs. sums: whether it sends masked updates; noise: in the sum of each, in
    units of the clipping norm, by all devices. opened: what leaves without a guarantee, by its name in
    `shoal.core.privacy.report.OPEN`. reports: the kinds of reports that leave as they were computed.
    described_by: SHA-256 of the encoder and the projector of the descriptor; empty while they are not known.

    Raises BadPayload for what cannot be, or is not known.
    """

    lessons: int = 0
    training: PrivateTraining | None = None
    epochs: int = 1
    batch_size: int = 1
    descriptor: PrivacySettings | None = None
    classes: int = 0
    accuracies: int = 0
    rho: float = 0.0
    sums: bool = False
    noise: float = 0.0
    opened: tuple[str, ...] = ()
    reports: tuple[str, ...] = ()
    described_by: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        sane = {
            "lessons": 0 <= self.lessons <= MAX_COUNT,
            "epochs": 1 <= self.epochs <= MAX_COUNT,
            "batch_size": 1 <= self.batch_size <= MAX_COUNT,
            "classes": 0 <= self.classes < MAX_ROWS,
            "accuracies": 0 <= self.accuracies <= MAX_COUNT,
            "rho": self.rho == 0.0 if not self.accuracies else MIN_RHO <= self.rho <= MAX_RHO,
            "noise": self.noise == 0.0 or (self.sums and MIN_NOISE <= self.noise <= MAX_SCALE),
            "reports": all(map(_is_word, self.reports)),
            "described_by": len(self.described_by) in (0, 2) and all(map(NAME.fullmatch, self.described_by)),
        }
        for name, holds in sane.items():
            if not holds:
                raise BadPayload(f"the terms of the run cannot be: {name} is {getattr(self, name)}", UPDATE)
        for name in self.opened:
            if name not in OPEN:
                raise BadPayload(f"the run asks for {name[:40]!r}, which this device does not know", UPDATE)

    @property
    def in_the_open(self) -> tuple[str, ...]:
        """What leaves without a guarantee, in the words of every report."""
        return (*(OPEN[name] for name in self.opened), *map(as_computed, self.reports))


@dataclass(frozen=True)
class RunTerms:
    """algorithm: its name. package: the distribution that the server has it from, "" if it has none.

    tasks: the kinds of its own tasks, which a device can do only if it has the package, too. asks: of each
    device. series: of standing runs, in which a device trains once on the same data; "": the run is in none.
    """

    algorithm: str
    package: str
    tasks: tuple[str, ...]
    asks: Asks
    series: str = ""

    def __post_init__(self) -> None:
        shown = (self.algorithm, *filter(None, (self.package, self.series)), *self.tasks)
        for name in shown:
            if not _is_word(name):
                raise BadPayload(f"the terms of the run cannot be: {name[:40]!r} is no name", UPDATE)

    def __str__(self) -> str:
        """As they travel."""
        return json.dumps(asdict(self))


@dataclass(frozen=True)
class WholeRun:
    """algorithm: its name. asks: of this device. cost: of all of that, for one sample.

    description: of the data, where it is known by what the device is to describe them: an earlier release
    may do, and then it costs nothing. Its cost is a part of `cost`.
    """

    algorithm: str
    asks: Asks
    cost: Cost
    description: Payment | None = None

    def facts(self, delta: float, group_size: int) -> dict[str, Any]:
        """For the owner, at the owner's delta and group size.

        epsilon, if_replaced: of what has a guarantee. sums: epsilon of the masked updates for all data of the
        device together, as long as all devices add their noise; None for none. noise: see `Asks`.
        """
        rho = self.asks.lessons * rho_of(self.asks.noise) if self.asks.noise else 0.0
        return {
            "algorithm": self.algorithm,
            "lessons": self.asks.lessons,
            "epsilon": self.cost.epsilon(delta, group_size),
            "if_replaced": self.cost.epsilon_if_replaced(REPLACED, delta, group_size),
            "delta": delta,
            "sums": epsilon_of(rho, delta) if rho else None,
            "noise": self.asks.noise,
            "opened": list(self.asks.in_the_open),
        }


def read_terms(text: str) -> RunTerms:
    """The terms of a run. Raises BadPayload for what is none, cannot be, or is not known to this version."""
    try:
        found: RunTerms = value_of(RunTerms, json.loads(text))
    except (ValueError, TypeError, OverflowError, RecursionError):
        raise BadPayload("the terms of the run cannot be read", UPDATE) from None
    return found


def _is_word(name: str) -> bool:
    return WORD.fullmatch(name) is not None
