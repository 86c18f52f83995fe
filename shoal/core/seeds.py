"""Chance as an input: every sampling and shuffling seed comes from the run's seed and a label.

Noise for privacy never does: a seed that the server knows would let it take the noise off again.
"""

import hashlib

import numpy as np


def derive(seed: int, *labels: str | int) -> int:
    """A 63-bit seed for one purpose: the same labels give the same seed on every machine and version."""
    text = "\x1f".join([str(seed), *map(str, labels)])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> 1


def generator(seed: int, *labels: str | int) -> np.random.Generator:
    """A numpy generator of its own for one purpose."""
    return np.random.Generator(np.random.PCG64(derive(seed, *labels)))
