"""A trial by the name of its algorithm, the size of the liar's cluster and the attack."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from shoal.core.algorithm import find
from shoal_lab.liars.attacks import ATTACKS
from shoal_lab.liars.trial import Found, trial

HONEST, ABSENT = "honest", "absent"
SETTINGS: Mapping[str, Any] = {
    "inputs": "raw",
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


def tried(case: Case) -> Found:
    """How the honest devices fare in this case."""
    card, parameters = parameters_of(case.algorithm, case.private)
    attack = ATTACKS.get(case.attack)
    return trial(card, parameters, case.size - 1, attack, case.seed, present=case.attack != ABSENT)
