"""The parts of a device's data: one to train on, one held out, and an optional one for tests."""

import math
from dataclasses import dataclass

import numpy as np

from shoal.core.data.dataset import Dataset
from shoal.core.errors import DataFault
from shoal.core.types import Array

HELD_OUT = 0.2
"""The share that is held out unless a run's owner says otherwise."""
SEED = 42


@dataclass(frozen=True, eq=False)
class Views:
    """train: never empty. held_out: to measure on; empty if nothing can be measured. test: None if there is
    none. order: (n,), the row that each sample of `train` and then of `held_out` had where they came from;
    None: they are in that order."""

    train: Dataset
    held_out: Dataset
    test: Dataset | None = None
    order: Array | None = None

    @classmethod
    def of(cls, data: Dataset, test: Dataset | None = None, share: float = HELD_OUT) -> "Views":
        """Hold out a share of `data` at random, rounded up; it is the same part at every start.

        The rows and their order are exactly those of scikit-learn's `train_test_split(test_size=share,
        random_state=42)`, which is how FLUX and FEROMA held out their fifth (FLUX, appendix B.2: 20%). Other
        papers hold out nothing: with a share of 0 all samples are for training, and a run that measures on
        the held-out part says that it is empty.

        At least one sample stays to train on. Unlabeled data and a single sample all go to `train`, and
        `held_out` is empty. Raises DataFault when there are no samples.
        """
        if len(data) == 0:
            raise DataFault("the data set has no samples", "a device needs at least one")
        if data.y is None or len(data) == 1 or not share:
            return cls(data, data.subset(slice(0, 0)), test)
        order = np.random.RandomState(SEED).permutation(len(data))
        held_out = min(math.ceil(share * len(data)), len(data) - 1)
        train, measured = order[held_out:], order[:held_out]
        return cls(data.subset(train), data.subset(measured), test, np.concatenate([train, measured]))
