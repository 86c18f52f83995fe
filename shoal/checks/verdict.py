"""All rules, and the verdict on an algorithm."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from shoal.checks.cards import configures, states_its_parts, stays_on_its_floor
from shoal.checks.liars import bears_liars
from shoal.checks.odd_fleets import bears_odd_fleets
from shoal.checks.privacy import asks_for_privacy_in_every_task
from shoal.checks.runs import (
    keeps_models_without_updates,
    places_or_says_why,
    repeats_bit_for_bit,
    resumes_from_every_round,
    survives_a_drop_out,
    travels_unchanged,
)
from shoal.checks.subject import Broken, Subject
from shoal.core.algorithm import Algorithm, find
from shoal.core.errors import ShoalError
from shoal.simulation.simulated import on_threads

RULES: Sequence[Callable[[Subject], None]] = (
    states_its_parts,
    configures,
    stays_on_its_floor,
    repeats_bit_for_bit,
    resumes_from_every_round,
    survives_a_drop_out,
    keeps_models_without_updates,
    travels_unchanged,
    places_or_says_why,
    asks_for_privacy_in_every_task,
    bears_odd_fleets,
    bears_liars,
)


@dataclass(frozen=True)
class Verdict:
    """What `check` found. broken: by the rule's text, what the algorithm did instead; empty: it keeps all."""

    algorithm: str
    kept: tuple[str, ...] = ()
    broken: Mapping[str, str] = field(default_factory=dict)

    @property
    def passed(self) -> bool:
        return not self.broken

    def __bool__(self) -> bool:
        return self.passed

    def __str__(self) -> str:
        lines = [f"ok    {rule}" for rule in self.kept]
        lines += [f"FAIL  {rule}\n      {what}" for rule, what in self.broken.items()]
        end = "keeps every rule" if self.passed else f"breaks {len(self.broken)} of {len(lines)} rules"
        return "\n".join([*lines, f"{self.algorithm} {end}"])


def check(algorithm: Algorithm | str) -> Verdict:
    """Put an algorithm, or the one of that name, through the contract suite, its variants too.

    Takes about half a minute. `print` shows the verdict in words; as a condition it is whether all was kept.

    Example:
        >>> print(shoal.check("fedavg"))  # doctest: +SKIP
        ok    The card has a legal name, frozen parameters, both halves, and the type of its state.
        ...
        fedavg keeps every rule
    """
    card = find(algorithm)[0] if isinstance(algorithm, str) else algorithm
    kept, broken = [], {}
    subjects = [Subject(card, variant) for variant in ("", *card.variants)]
    with on_threads(1):
        for rule in RULES:
            title = (rule.__doc__ or rule.__name__).strip().split("\n")[0]
            try:
                for subject in subjects:
                    rule(subject)
            except Exception as fault:
                broken[title] = _words(fault)
                if rule is states_its_parts:
                    break
            else:
                kept.append(title)
    return Verdict(card.name, tuple(kept), broken)


def _words(fault: Exception) -> str:
    if isinstance(fault, Broken | ShoalError):
        return str(fault)
    place = fault.__traceback__
    while place is not None and place.tb_next is not None:
        place = place.tb_next
    where = f", in {place.tb_frame.f_code.co_name}, line {place.tb_lineno}" if place else ""
    return f"{type(fault).__name__}: {fault}{where}"
