"""Recorded messages, damaged."""

import random

LARGEST = 1 << 16
"""Bytes of an input."""


def changed(data: bytes, other: bytes, chance: random.Random) -> bytes:
    """An input with one to eight random changes; some of them put a piece of `other` in."""
    found = bytearray(data)
    for _ in range(chance.randint(1, 8)):
        at = chance.randint(0, len(found))
        how = chance.randrange(6)
        if how == 0 and at < len(found):
            found[at] ^= 1 << chance.randrange(8)
        elif how == 1 and at < len(found):
            found[at] = chance.choice((0, 1, 0x7F, 0x80, 0xFF))
        elif how == 2:
            found[at:at] = chance.randbytes(chance.randint(1, 4))
        elif how == 3:
            del found[at : at + chance.randint(1, 16)]
        elif how == 4:
            found[at:] = other[chance.randint(0, len(other)) :]
        else:
            piece = found[at : at + chance.randint(1, 32)]
            found[at:at] = piece * chance.randint(1, 8)
    return bytes(found[:LARGEST])
