"""Which algorithms there are: the folders of `shoal.core.algorithms`, the entry points of other
distributions, and what was registered in this process. A plug-in that breaks a rule is rejected with a
reason, and affects nothing else."""

import functools
import importlib
import pkgutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from shoal.core.algorithm.card import Algorithm, check_rules
from shoal.core.errors import ConfigError, ShoalError, near
from shoal.core.exchange.encoding.messages import ENCODED
from shoal.core.exchange.messages import STANDARD
from shoal.core.exchange.summing import SECURE

GROUP = "shoal.algorithms"
DISTRIBUTION = "shoal-fed"
"""What the algorithms in the folders come with."""


@dataclass(frozen=True)
class Rejected:
    """A plug-in that cannot be used. name: of its entry point. source: the distribution that it came with."""

    name: str
    source: str
    reason: str
    hint: str = ""

    def __str__(self) -> str:
        return f"the plug-in {self.name} of {self.source} is not used: {self.reason}"


_registered: dict[str, Algorithm] = {}


def discover() -> dict[str, Algorithm]:
    """Every usable algorithm by name. This is cheap: no half is imported, and plug-ins are loaded once.

    Example:
        >>> discover()["fedavg"].parameters().rounds
        10
    """
    return {**_built_in(), **_plug_ins(tuple(sys.path))[0], **_registered}


def rejected() -> tuple[Rejected, ...]:
    """The plug-ins that cannot be used, and why."""
    return _plug_ins(tuple(sys.path))[1]


def package_of(name: str) -> str:
    """The distribution that an algorithm comes with; "" for one that was registered in this process."""
    if name in _built_in():
        return DISTRIBUTION
    return _plug_ins(tuple(sys.path))[2].get(name, "")


def find(name: str) -> tuple[Algorithm, Mapping[str, Any]]:
    """The algorithm of that name, and the changes to its parameters that a variant's name stands for.

    Raises ConfigError for an unknown name; for a rejected plug-in it gives the reason of the rejection.
    """
    algorithms = discover()
    for algorithm in algorithms.values():
        if name == algorithm.name:
            return algorithm, {}
        if name in algorithm.variants:
            return algorithm, algorithm.variants[name]
    for each in rejected():
        if name == each.name:
            raise ConfigError(str(each), each.hint)
    known = [*algorithms, *(variant for a in algorithms.values() for variant in a.variants)]
    hint = near(name, known) or "`fedserver algorithm ls` lists them; the distribution shoal-lab has more"
    raise ConfigError(f"there is no algorithm {name!r}", hint)


def register(card: Algorithm) -> None:
    """Make an algorithm known in this process under its name. It replaces an algorithm that was registered
    under the same name before, because a notebook cell may run again.

    Raises ConfigError if a rule is broken or the name is taken.
    """
    check_rules(card)
    _check_free(card, {**_built_in(), **_plug_ins(tuple(sys.path))[0]})
    _check_free(card, {name: each for name, each in _registered.items() if name != card.name})
    _registered[card.name] = card


@functools.cache
def _built_in() -> dict[str, Algorithm]:
    package = importlib.import_module("shoal.core.algorithms")
    modules = (f"{package.__name__}.{each.name}" for each in pkgutil.iter_modules(package.__path__))
    cards: list[Algorithm] = [importlib.import_module(module).ALGORITHM for module in modules]
    return {card.name: card for card in cards}


@functools.cache
def _plug_ins(path: tuple[str, ...]) -> tuple[dict[str, Algorithm], tuple[Rejected, ...], dict[str, str]]:
    """The plug-ins, those that cannot be used, and the distribution of each.

    path: the value of `sys.path`, so that a distribution that is installed later is found.
    """
    from importlib.metadata import entry_points  # it loads a megabyte that a light device does not use

    found: dict[str, Algorithm] = {}
    refused: list[Rejected] = []
    packages: dict[str, str] = {}
    # Sorted, so that the order does not depend on where the distributions are on the disk.
    points = sorted(entry_points(group=GROUP), key=lambda point: (point.name, point.value))
    for point in points:
        source = point.dist.name if point.dist else point.value
        try:
            card = point.load()
            if not isinstance(card, Algorithm):
                raise ConfigError(f"{point.value} is not an Algorithm")
            check_rules(card)
            _check_free(card, {**_built_in(), **found})
        except ShoalError as fault:
            refused.append(Rejected(point.name, source, fault.message, fault.hint))
        # Another author's module may raise anything while it is imported, SystemExit included.
        except (Exception, SystemExit) as fault:
            reason = f"it cannot be imported: {type(fault).__name__}: {fault}"
            refused.append(Rejected(point.name, source, reason))
        else:
            found[card.name] = card
            packages[card.name] = point.dist.name if point.dist else ""
    return found, tuple(refused), packages


def _check_free(card: Algorithm, others: Mapping[str, Algorithm]) -> None:
    """Refuse a card whose name, variant or message kind belongs to another algorithm."""
    taken = {name: other.name for other in others.values() for name in (other.name, *other.variants)}
    for name in (card.name, *card.variants):
        if name in taken:
            raise ConfigError(f"the name {name} belongs to algorithm {taken[name]}", "choose another name")
    kinds = {message.kind: "the standard messages" for message in (*STANDARD, *SECURE, *ENCODED)}
    kinds |= {message.kind: other.name for other in others.values() for message in other.messages}
    for message in card.messages:
        if message.kind in kinds:
            raise ConfigError(
                f"the message kind {message.kind} belongs to {kinds[message.kind]}",
                f"rename it to {card.name}_{message.kind}",
            )
