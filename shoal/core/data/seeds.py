"""Randomness as an input: every seed for sampling and shuffling derives from the run's seed and labels.

Noise for privacy never does: with a seed that it knows, the server could subtract the noise again.
"""

import hashlib

import numpy as np


def derive(seed: int, *labels: str | int) -> int:
    """A 63-bit seed for one purpose: the same labels give the same seed on every machine and version.

    Example:
        >>> derive(42, "sample", 1) == derive(42, "sample", 1) != derive(42, "sample", 2)
        True
    """
    text = "\x1f".join([str(seed), *map(str, labels)])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> 1


def generator(seed: int, *labels: str | int) -> np.random.Generator:
    """An independent numpy generator for one purpose, seeded by `derive`."""
    return np.random.Generator(np.random.PCG64(derive(seed, *labels)))
