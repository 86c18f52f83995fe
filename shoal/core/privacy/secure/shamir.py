"""A secret of 32 bytes in shares. A threshold of them gives it back, and fewer tell nothing (Shamir 1979)."""

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from secrets import token_bytes

from shoal.core.privacy.noise.chance import Chance, Entropy

PRIME = (1 << 256) + 297
"""The first prime above 2^256."""
SECRET, SHARE = 32, 33
"""Bytes of a secret, and of a share of it."""


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


def joined(shares: Mapping[int, bytes], threshold: int, is_right: Callable[[bytes], bool]) -> bytes | None:
    """The secret of these shares, by place, or None where they do not give it.

    is_right: recognizes the secret. One share that is wrong is left out.
    """
    places = sorted(place for place, share in shares.items() if len(share) == SHARE)
    for wrong in (0, *places[:threshold]):
        some = tuple(place for place in places if place != wrong)[:threshold]
        if len(some) == threshold:
            weights = _weights(some)
            value = sum(
                weight * int.from_bytes(shares[place], "big")
                for place, weight in zip(some, weights, strict=True)
            )
            value %= PRIME
            if value < 1 << 256 and is_right(found := value.to_bytes(SECRET, "big")):
                return found
    return None


@lru_cache(64)
def _weights(places: tuple[int, ...]) -> tuple[int, ...]:
    """Of the share of each place in the value at 0 (Lagrange)."""
    found = []
    for place in places:
        above, below = 1, 1
        for other in places:
            if other != place:
                above = above * other % PRIME
                below = below * (other - place) % PRIME
        found.append(above * pow(below, -1, PRIME) % PRIME)
    return tuple(found)
