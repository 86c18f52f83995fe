"""A secret of 32 bytes in shares. A threshold of them gives it back, and fewer tell nothing (Shamir 1979)."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import lru_cache
from itertools import combinations
from random import Random
from secrets import token_bytes

from shoal.core.privacy.noise.chance import Chance, Entropy

PRIME = (1 << 256) + 297
"""The first prime above 2^256."""
SECRET, SHARE = 32, 33
"""Bytes of a secret, and of a share of it."""
TRIES = 100
"""Choices of shares that are tried where more than one of them may be wrong."""
NONE: frozenset[int] = frozenset()


def split(
    secret: bytes, threshold: int, places: Sequence[int], entropy: Entropy = token_bytes
) -> list[bytes]:
    """A share for each of `places`, which are different numbers from 1 on."""
    chance = Chance(entropy)
    terms = [int.from_bytes(secret, "big"), *(chance.below(PRIME) for _ in range(threshold - 1))]

    def at(place: int) -> int:
        value = 0
        for term in reversed(terms):
            value = (value * place + term) % PRIME
        return value

    return [at(place).to_bytes(SHARE, "big") for place in places]


def joined(
    shares: Mapping[int, bytes],
    threshold: int,
    is_right: Callable[[bytes], bool],
    suspected: AbstractSet[int] = NONE,
) -> tuple[bytes, frozenset[int]] | None:
    """The secret of these shares, by place, and the places of those that were found wrong on the way; None
    where they do not give it.

    is_right: recognizes the secret. suspected: places whose shares are used last.
    """
    places = sorted(place for place, share in shares.items() if len(share) == SHARE)
    values = {place: int.from_bytes(shares[place], "big") for place in places}
    if len(places) < threshold:
        return None
    for number, some in enumerate(_choices(places, threshold, suspected)):
        value = _at(0, some, values)
        if value < 1 << 256 and is_right(found := value.to_bytes(SECRET, "big")):
            others = [place for place in places if place not in some] if number else []
            return found, frozenset(each for each in others if _at(each, some, values) != values[each])
    return None


def _choices(places: Sequence[int], threshold: int, suspected: AbstractSet[int]) -> Iterator[tuple[int, ...]]:
    """Sets of places, each a threshold of them: the best one, then without one of it, then all, or some."""
    ordered = sorted(places, key=lambda place: (place in suspected, place))
    for wrong in (0, *ordered[:threshold]):
        some = [place for place in ordered if place != wrong][:threshold]
        if len(some) == threshold:
            yield tuple(sorted(some))
    if math.comb(len(places), threshold) <= TRIES:
        yield from combinations(places, threshold)
    else:
        chance = Random(len(ordered))
        for _ in range(TRIES):
            yield tuple(sorted(chance.sample(ordered, threshold)))


def _at(place: int, some: tuple[int, ...], values: Mapping[int, int]) -> int:
    """The value at any place of the polynomial through these places."""
    return sum(w * values[each] for w, each in zip(_weights(some, place), some, strict=True)) % PRIME


@lru_cache(64)
def _weights(places: tuple[int, ...], at: int) -> tuple[int, ...]:
    """Of the share of each place in the value at another one (Lagrange)."""
    found = []
    for place in places:
        above, below = 1, 1
        for other in places:
            if other != place:
                above = above * (other - at) % PRIME
                below = below * (other - place) % PRIME
        found.append(above * pow(below, -1, PRIME) % PRIME)
    return tuple(found)
