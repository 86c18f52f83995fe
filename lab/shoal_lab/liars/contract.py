"""The influence of one device on all others, on one size of cluster.

It is no rule of `shoal.check`, because an algorithm need not keep it: as published, one that is given the
number of clusters spends one of them on a device that looks like no other. docs/liars.md has all results.
"""

from collections.abc import Callable
from functools import cache

from shoal.checks.subject import expect
from shoal_lab.liars.campaign import ABSENT, ALLOWED, HONEST, Case, tried
from shoal_lab.liars.trial import Found

SIZE, SEED = 4, 5

reached: Callable[[Case], Found] = cache(tried)
"""How the honest devices fare in a case; each case is tried once in a process."""


def bears_one_liar(algorithm: str, attack: str, private: bool = False, size: int = SIZE) -> None:
    """A device that lies costs the others at most two points, and moves none of them to another cluster.

    attack: a key of `shoal_lab.liars.attacks.ATTACKS`. size: of the liar's cluster; of two, only the other
    group counts. Raises Broken.
    """
    honest, absent, attacked = (
        reached(Case(algorithm, private, size, each, SEED)) for each in (HONEST, ABSENT, attack)
    )
    expect(not attacked.reason, f"under {attack!r} the run fails: {attacked.reason}")
    before, after = min(honest.accuracy, absent.accuracy), attacked.accuracy
    expect(
        after >= before - ALLOWED,
        f"{attack!r} by one device takes the others from {before:.1f} to {after:.1f} %",
    )
    grouped = min(honest.ari, absent.ari)
    expect(
        attacked.ari >= grouped - 1e-9,
        f"{attack!r} by one device takes the ARI of the others from {grouped:.2f} to {attacked.ari:.2f}",
    )
