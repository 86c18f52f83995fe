"""Which of scikit-learn's 1,797 digits are public, and which the devices share: never the same."""

import numpy as np
from sklearn.datasets import load_digits

PUBLIC = 500
KINDS = ((0, 1, 2), (3, 4), (5, 6, 7), (8, 9))
"""Of readers, by the digits that come to them."""
SEED = 0


def public() -> tuple[np.ndarray, np.ndarray]:
    """Images (500, 64) and their digits: to train the encoder on, and nothing else."""
    x, y, order = _digits()
    return x[order[:PUBLIC]], y[order[:PUBLIC]]


def private() -> tuple[np.ndarray, np.ndarray]:
    """The other 1,297: what devices and newcomers have."""
    x, y, order = _digits()
    return x[order[PUBLIC:]], y[order[PUBLIC:]]


def _digits() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    x, y = load_digits(return_X_y=True)
    return x, y, np.random.default_rng(SEED).permutation(len(y))
