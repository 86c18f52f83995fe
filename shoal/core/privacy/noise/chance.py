"""Exact chance: events whose probability is a rational number, or e to the power of one, with no rounding.

Floating-point noise gives itself away by which numbers it can reach (Mironov 2012). Here every decision is
made between whole numbers, so that what is proved of the noise holds for the program.
"""

import secrets
from collections.abc import Callable

Entropy = Callable[[int], bytes]
"""Gives a number of random bytes: the operating system's on a device, or a seeded source in a simulation."""

BUFFER = 4096
"""Bytes asked of the operating system at once: one call for each draw would take most of the time."""


class Chance:
    """Independent exact decisions, from 64-bit words of entropy. No word is used twice."""

    def __init__(self, entropy: Entropy = secrets.token_bytes) -> None:
        self._entropy = entropy
        self._words: list[int] = []

    def word(self) -> int:
        """One of 0 .. 2^64 - 1, all alike probable."""
        if not self._words:
            self._words = memoryview(self._entropy(BUFFER)).cast("Q").tolist()
        return self._words.pop()

    def below(self, bound: int) -> int:
        """One of 0 .. bound - 1, all alike probable; bound at least 1."""
        bits = (bound - 1).bit_length()
        while True:
            value = 0
            for _ in range(0, bits, 64):
                value = value << 64 | self.word()
            value >>= -bits % 64
            if value < bound:
                return value

    def happens(self, p: int, q: int) -> bool:
        """True with probability p / q; 0 <= p <= q, q at least 1.

        Compares a random real number, written out word by word, with p / q until the two differ: the first
        word nearly always decides, however long p and q are.
        """
        while True:
            digit, p = divmod(p << 64, q)
            word = self.word()
            if word != digit:
                return word < digit

    def decays(self, p: int, q: int) -> bool:
        """True with probability e^(-p/q); p at least 0, q at least 1 (Canonne et al. 2020, Algorithm 1)."""
        while p > q:
            if not self.decays(1, 1):
                return False
            p -= q
        trials = 1
        while self.happens(p, q * trials):
            trials += 1
        return trials % 2 == 1
