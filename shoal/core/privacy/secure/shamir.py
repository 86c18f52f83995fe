"""A secret of 32 bytes in shares. A threshold of them gives it back, and fewer tell nothing (Shamir 1979).

Where a few shares are wrong, the secret is found all the same: shares are a word of a Reed-Solomon code,
which is decoded uniquely (Gao, A New Algorithm for Decoding Reed-Solomon Codes, 2003).
"""

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from secrets import token_bytes

from shoal.core.privacy.noise.chance import Chance, Entropy

PRIME = (1 << 256) + 297
"""The first prime above 2^256."""
SECRET, SHARE = 32, 33
"""Bytes of a secret, and of a share of it."""
Polynomial = list[int]
"""Coefficients, that of the constant first; the last one is not 0."""


def split(
    secret: bytes, threshold: int, places: Sequence[int], entropy: Entropy = token_bytes
) -> list[bytes]:
    """A share for each of `places`, which are different numbers from 1 on."""
    chance = Chance(entropy)
    terms = [int.from_bytes(secret, "big"), *(chance.below(PRIME) for _ in range(threshold - 1))]
    return [_at(place, terms).to_bytes(SHARE, "big") for place in places]


def joined(
    shares: Mapping[int, bytes], threshold: int, is_right: Callable[[bytes], bool]
) -> tuple[bytes, frozenset[int]] | None:
    """The secret of these shares, by place, and the places of those that were found wrong on the way; None
    where they do not give it.

    Of m shares, (m - threshold) // 2 may be wrong, wherever they are. is_right: recognizes the secret.
    """
    values = {place: int.from_bytes(share, "big") for place, share in sorted(shares.items())}
    if len(values) < threshold:
        return None
    some = tuple(values)[:threshold]
    first = sum(w * values[each] for w, each in zip(_weights(some), some, strict=True)) % PRIME
    if first < 1 << 256 and is_right(found := first.to_bytes(SECRET, "big")):
        return found, frozenset()
    terms = _decoded(values, threshold)
    if terms is None or terms[0] >= 1 << 256 or not is_right(found := terms[0].to_bytes(SECRET, "big")):
        return None
    return found, frozenset(place for place, value in values.items() if _at(place, terms) != value)


def _decoded(values: Mapping[int, int], threshold: int) -> Polynomial | None:
    """The polynomial with `threshold` terms, padded to one at least, that goes through all but at most
    (m - threshold) // 2 of m values; None where there is none."""
    whole, through = [1], [0]
    for place, value in values.items():  # Newton: `whole` is 0 at all places so far, `through` is right there
        missing = (value - _at(place, through)) * pow(_at(place, whole), -1, PRIME) % PRIME
        through = _plus(through, whole, missing)
        whole = _plus([0, *whole], whole, -place)
    last, now, before, error = whole, through, [0], [1]
    while 2 * (len(now) - 1) >= len(values) + threshold:  # the extended algorithm of Euclid, cut short
        quotient, rest = _divided(last, now)
        last, now = now, rest
        before, error = error, _plus(before, _times(quotient, error), -1)
    found, rest = _divided(now, error)
    return found if not any(rest) and len(found) <= threshold else None


def _at(place: int, terms: Polynomial) -> int:
    value = 0
    for term in reversed(terms):
        value = (value * place + term) % PRIME
    return value


def _trimmed(terms: Polynomial) -> Polynomial:
    while len(terms) > 1 and not terms[-1]:
        terms.pop()
    return terms


def _plus(first: Polynomial, second: Polynomial, factor: int) -> Polynomial:
    """first + factor * second."""
    found = [*first, *[0] * (len(second) - len(first))]
    for at, term in enumerate(second):
        found[at] = (found[at] + factor * term) % PRIME
    return _trimmed(found)


def _times(first: Polynomial, second: Polynomial) -> Polynomial:
    found = [0] * (len(first) + len(second) - 1)
    for shift, factor in enumerate(first):
        for at, term in enumerate(second):
            found[shift + at] = (found[shift + at] + factor * term) % PRIME
    return _trimmed(found)


def _divided(above: Polynomial, below: Polynomial) -> tuple[Polynomial, Polynomial]:
    """The quotient, and what is left."""
    rest, size = [*above], len(below)
    quotient, inverse = [0] * max(1, len(above) - size + 1), pow(below[-1], -1, PRIME)
    for shift in range(len(above) - size, -1, -1):
        quotient[shift] = factor = rest[shift + size - 1] * inverse % PRIME
        for at, term in enumerate(below):
            rest[shift + at] = (rest[shift + at] - factor * term) % PRIME
    return _trimmed(quotient), _trimmed(rest)


@lru_cache(64)
def _weights(places: tuple[int, ...]) -> tuple[int, ...]:
    """Of the share of each place in the secret (Lagrange)."""
    found = []
    for place in places:
        above, below = 1, 1
        for other in places:
            if other != place:
                above = above * other % PRIME
                below = below * (other - place) % PRIME
        found.append(above * pow(below, -1, PRIME) % PRIME)
    return tuple(found)
