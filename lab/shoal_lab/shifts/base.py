"""What the generators share: the checks, the random streams and the even split.

The recipes draw permutations from torch and everything else from numpy's legacy generator. The two streams do
not touch, so the order within each is all that has to be kept.

Torch stream, the same in every generator (ANDA, `split_basic`):
1. a permutation of the train set; 2. a permutation of the test set.
"""

from __future__ import annotations

import difflib
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from shoal.core.data.dataset import Dataset

LEVELS = range(1, 9)
MANY = 100
"""Classes from which on levels mean shares of them, see `of_ten`."""


@dataclass(frozen=True, eq=False)
class DeviceData:
    """What one device holds, and the truth about it.

    `concept`: number of the device's distribution: two devices have the same number when and only when their
    data were made alike. It is there to compare found clusters with; an algorithm must not see it.
    """

    train: Dataset
    test: Dataset
    concept: int


def check_level(level: int, levels: range) -> None:
    """Raise a ValueError where a shift lacks that level."""
    if level not in levels:
        raise ValueError(f"level {level} is unknown: this shift has the levels {levels[0]} to {levels[-1]}")


def check(clients: int, seed: int, train: Dataset, test: Dataset, images: bool = True) -> None:
    """Raise a ValueError that says which argument no generator can work with, and what to give instead.

    images: whether the generator works on pictures; others take samples of any shape.
    """
    if not 0 <= seed < 2**32:
        raise ValueError(f"seed {seed} is out of range: give one from 0 to 2**32 - 1")
    for name, data in (("train", train), ("test", test)):
        if not 1 <= clients <= len(data):
            raise ValueError(
                f"{clients} clients cannot share {len(data)} {name} images: ask for 1 to {len(data)}"
            )
        if not images:
            continue
        shape, kind = data.x.shape, data.x.dtype
        if len(shape) not in (3, 4) or (len(shape) == 4 and shape[1] not in (1, 3)):
            raise ValueError(
                f"{name} images have shape {shape}: give (n, h, w), or (n, c, h, w) with c 1 or 3"
            )
        if kind != np.uint8 and not (data.x.min() >= 0 and data.x.max() <= 1):
            raise ValueError(f"{name} images are {kind} outside 0 to 1: give uint8, or scale them to 0..1")
    if train.x.shape[1:] != test.x.shape[1:]:
        raise ValueError(
            f"train images are {train.x.shape[1:]} but test images {test.x.shape[1:]}: make them alike"
        )


def known(what: str, word: str, words: Sequence[str]) -> None:
    """Raise a ValueError, naming the nearest one, unless `word` is one of `words`."""
    if word not in words:
        close = difflib.get_close_matches(word, words, n=1)
        hint = f"did you mean {close[0]!r}? " if close else ""
        raise ValueError(f"unknown {what} {word!r}: {hint}known are {', '.join(words)}")


def labels(data: Dataset) -> npt.NDArray[np.int64]:
    """The classes of `data`. Raises ValueError when it is unlabeled."""
    if data.y is None:
        raise ValueError("the data set is unlabeled: generators need the classes")
    return data.y


def class_count(train: Dataset, test: Dataset, needed: int) -> int:
    """How many classes there are, numbered from 0. Raises ValueError when the level needs more."""
    count = 1 + max(int(labels(train).max()), int(labels(test).max()))
    if needed > count:
        raise ValueError(f"this level needs {needed} classes and the data have {count}: choose another level")
    return count


def of_ten(count: int, classes: int) -> int:
    """How many classes those are that a level names of 10: ten times as many of CIFAR-100's.

    FLUX's Table 9 is for 10 classes, and its Tables 42 to 49 show what 100 are: under P(Y|X) FedAvg falls
    from 40 to 5 %, where other names for 8 classes of 100 could cost 8 points. FEROMA's appendix I.2 says it.
    """
    return count if classes < MANY else count * classes // 10


def split_basic(train: Dataset, test: Dataset, clients: int, seed: int) -> Iterator[tuple[Dataset, Dataset]]:
    """Each device's train and test part: shuffled, disjoint, equal, the last with the remainder on top."""
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(train), generator=generator).numpy()
    test_order = torch.randperm(len(test), generator=generator).numpy()
    for device in range(clients):
        yield train.subset(_share(order, device, clients)), test.subset(_share(test_order, device, clients))


def _share(order: npt.NDArray[np.int64], device: int, clients: int) -> npt.NDArray[np.int64]:
    size = len(order) // clients
    end = len(order) if device == clients - 1 else (device + 1) * size
    return order[device * size : end]


def first_seen(keys: Sequence[Hashable]) -> list[int]:
    """Keys numbered 0, 1, ... in the order in which each first occurs: a b a c -> 0 1 0 2."""
    numbers: dict[Hashable, int] = {}
    return [numbers.setdefault(key, len(numbers)) for key in keys]
