"""What a run asks of a device over all of its rounds, by the algorithm's parameters: the run's terms.

The server sends the terms with every task, as JSON. The device reads them before its first task of the run,
computes what all of it will cost, and refuses where its owner does not want that.

    {"algorithm": "fedavg", "parameters": {"rounds": 20, "dp_epsilon": 3.0, ...}}
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from shoal.core.algorithm.card import Algorithm
from shoal.core.algorithm.discovery import find
from shoal.core.errors import BadPayload
from shoal.core.exchange.parts import PrivacySettings
from shoal.core.privacy.cost import Cost, epsilon_of, rho_of
from shoal.core.privacy.report import OPEN, opened_by
from shoal.core.privacy.sums import REPLACED

BY_DESCRIPTION = {
    "losses of the models": OPEN["figures"],
    "mean embeddings": OPEN["prototypes"],
    "mean embeddings of classes": OPEN["prototypes"],
}
"""What `TrainingParameters.OPEN` of an algorithm means, where no message of its own says so."""


@dataclass(frozen=True)
class Asks:
    """Of one device, if no round is repeated, and at most.

    lessons: how many times it trains. private: whether by DP-SGD. descriptor: the guarantee of what it
    releases about its data, None for none or no guarantee. accuracies: with noise, and rho, what each costs.
    sums: whether it sends masked updates; noise: in the sum of each, in units of the clipping norm, by all
    devices. opened: what leaves without a guarantee.
    """

    lessons: int
    private: bool
    descriptor: PrivacySettings | None
    accuracies: int
    rho: float
    sums: bool
    noise: float
    opened: tuple[str, ...]


@dataclass(frozen=True)
class WholeRun:
    """algorithm: its name. asks: of this device. cost: of all of that, for one sample."""

    algorithm: str
    asks: Asks
    cost: Cost

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
            "opened": list(self.asks.opened),
        }


def terms_of(algorithm: str, parameters: Any) -> str:
    """The terms of a run, for its devices."""
    values = {name: value for name, value in vars(parameters).items() if not name.startswith("_")}
    return json.dumps({"algorithm": algorithm, "parameters": values})


def read_terms(terms: str) -> tuple[Algorithm, Any]:
    """The algorithm of a run and its parameters. Those that this version does not know are left out.

    Raises BadPayload, and ConfigError for an algorithm that is not installed or for an illegal value.
    """
    try:
        found = json.loads(terms)
        name, given = found["algorithm"], found["parameters"]
        if not isinstance(name, str) or not isinstance(given, Mapping):
            raise ValueError("terms have an algorithm and parameters")
    except (ValueError, TypeError, KeyError, RecursionError):
        raise BadPayload("the terms of the run cannot be read", "update the server or the device") from None
    card, _ = find(name)
    known = {key: value for key, value in given.items() if key in card.settings}
    try:
        return card, card.configure("default", known)
    except (OverflowError, TypeError, ValueError) as error:  # numbers beyond all numbers
        raise BadPayload(f"the terms of the run cannot be: {error}") from None


def asks_of(card: Algorithm, parameters: Any) -> Asks:
    """What a run of this algorithm with these parameters asks of one device.

    Example:
        >>> card, _ = find("fedavg")
        >>> asks_of(card, card.configure("default", {"dp_epsilon": 3.0, "rounds": 4})).accuracies
        1
    """
    private = getattr(parameters, "private", False)
    measured = getattr(parameters, "measured", False)  # by which accuracies FLUX ends its warm-up
    longest = math.ceil(parameters.rounds * parameters.latest) if measured else 0
    accuracies = longest + int(getattr(parameters, "evaluate", True))
    asked: PrivacySettings | None = getattr(parameters, "asked_privacy", None)
    calibrated = asked is not None and asked.calibrated
    secure = getattr(parameters, "secure_aggregation", False)
    noised = secure and parameters.aggregation == "noised"
    return Asks(
        lessons=getattr(parameters, "lessons", getattr(parameters, "rounds", 1)),
        private=private,
        descriptor=asked if calibrated else None,
        accuracies=accuracies if private else 0,
        rho=parameters.dp_accuracy if private else 0.0,
        sums=secure,
        noise=parameters.central_noise if noised else 0.0,
        opened=_opened(card, parameters, private, secure, bool(accuracies)),
    )


def _opened(card: Algorithm, parameters: Any, private: bool, secure: bool, measures: bool) -> tuple[str, ...]:
    found = [OPEN["summed"]] if secure else [] if private else [OPEN["weights"]]
    if not private and (measures or getattr(parameters, "select", "last") != "last"):
        found.append(OPEN["figures"])
    asked: PrivacySettings | None = getattr(parameters, "asked_privacy", None)
    if asked is not None and not asked.calibrated:
        found += [OPEN[asked.mode], OPEN["bounds"], OPEN["figures"]]  # bounds come with accuracies
    if described := BY_DESCRIPTION.get(getattr(parameters, "OPEN", "")):
        found.append(described)
    for message in card.messages:
        found += opened_by(message, not private)
    return tuple(dict.fromkeys(found))
