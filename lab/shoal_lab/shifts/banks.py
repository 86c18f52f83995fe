"""The distributions that drifting devices move between: for each shift a bank of them, at three levels.

| shift | a distribution is                                  | low   | medium | high   |
|-------|----------------------------------------------------|-------|--------|--------|
| `px`  | a rotation and a color of all images               | 4 x 1 | 2 x 3  | 4 x 3  |
| `py`  | a pair of classes, all that there is               | 4     | 6      | 8      |
| `pyx` | a permutation of the names of some classes: all m! | m = 3 | m = 4  | m = 5  |
| `pxy` | a rotation and a color of the images of 8 classes  | 4     | 6      | 8      |

With 100 classes or more, as of CIFAR-100, `py` keeps a fifth of them and `pxy` turns four fifths, and `pyx`
permutes 2, 3 or 4 fifths, in 100 ways that are drawn: there are too many to list.

Source: FEROMA, Table 12 and appendix I.2; how many permutations of CIFAR-100 there are, it does not say. Two
entries of a random bank may be alike, as there under `py`; under `pxy` the authors never draw the same
classes twice. `py` keeps a device's images of its classes as they are; everything else changes images or
names and keeps how many there are.
"""

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from shoal.core.data.dataset import Dataset
from shoal.simulation.images import rotate, unit
from shoal_lab.datasets.pixels import color
from shoal_lab.shifts.base import MANY, known, labels, of_ten

LEVELS = ("low", "medium", "high")
CLASSES_OF_PY, CLASSES_OF_PXY = 2, 8
PERMUTED = 100
"""Permutations of the names, where there are `MANY` classes."""
COLOURS = ("red", "blue", "green")
ANGLES = (0.0, 90.0, 180.0, 270.0)

Names = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Distribution:
    """What is done to images, as `shoal_lab.shifts.base.check` takes them, and to their classes.

    number: its place in the bank. kept: only these classes, if any are named. degrees, tint: of the images of
    `turned` classes, of all where None. names: (classes,) what each class is called. gray: images get three
    channels, so that a tint can show.
    """

    number: int
    kept: tuple[int, ...] = ()
    degrees: float = 0.0
    tint: str = "gray"
    turned: tuple[int, ...] | None = None
    names: Names | None = None
    gray: bool = False

    def rows(self, data: Dataset) -> npt.NDArray[np.int64]:
        """Which samples there are under it."""
        if not self.kept:
            return np.arange(len(data))
        return np.flatnonzero(np.isin(labels(data), self.kept))

    def of(self, data: Dataset) -> Dataset:
        """The samples as they look and are called under it; float32 images in [0, 1]."""
        if self.names is not None:
            return Dataset(unit(data.x), self.names[labels(data)])
        if not self.gray:
            return Dataset(unit(data.x), data.y)
        if self.turned is None:
            return Dataset(color(rotate(data.x, self.degrees), self.tint), data.y)
        chosen = np.isin(labels(data), self.turned)
        images = color(data.x, "gray")
        images[chosen] = color(rotate(data.x[chosen], self.degrees), self.tint)
        return Dataset(images, data.y)


def bank(shift: str, level: str, classes: int, chance: np.random.Generator) -> list[Distribution]:
    """The distributions of a shift at a level; `chance` draws those that are random. Raises ValueError.

    Order of draws: `py`, each set in turn; `pyx`, the classes once, and of many then each permutation; `pxy`,
    for each entry its classes, its angle, its color.
    """
    known("shift", shift, SHIFTS)
    known("level of drifting devices", level, LEVELS)
    return _BANKS[shift](LEVELS.index(level), classes, chance)


def _px(step: int, classes: int, chance: np.random.Generator) -> list[Distribution]:
    angles, tints = ((ANGLES, ("gray",)), (ANGLES[::2], COLOURS), (ANGLES, COLOURS))[step]
    patterns = itertools.product(angles, tints)
    return [
        Distribution(number, degrees=degrees, tint=tint, gray=True)
        for number, (degrees, tint) in enumerate(patterns)
    ]


def _py(step: int, classes: int, chance: np.random.Generator) -> list[Distribution]:
    _need(classes, CLASSES_OF_PY)
    count = of_ten(CLASSES_OF_PY, classes)
    return [Distribution(number, kept=_some(chance, classes, count)) for number in range((4, 6, 8)[step])]


def _pyx(step: int, classes: int, chance: np.random.Generator) -> list[Distribution]:
    pool = (3, 4, 5)[step] if classes < MANY else (2 + step) * classes // 5
    _need(classes, pool)
    exchanged = list(_some(chance, classes, pool))
    orders: Iterable[Sequence[int]] = itertools.permutations(exchanged)
    if classes >= MANY:
        orders = [chance.permutation(exchanged).tolist() for _ in range(PERMUTED)]
    found = []
    for number, order in enumerate(orders):
        names = np.arange(classes)
        names[exchanged] = order
        found.append(Distribution(number, names=names))
    return found


def _pxy(step: int, classes: int, chance: np.random.Generator) -> list[Distribution]:
    _need(classes, CLASSES_OF_PXY)
    count = of_ten(CLASSES_OF_PXY, classes)
    found = []
    for number in range((4, 6, 8)[step]):
        turned = _some(chance, classes, count)
        degrees, tint = float(chance.choice(ANGLES)), str(chance.choice(COLOURS))
        found.append(Distribution(number, degrees=degrees, tint=tint, turned=turned, gray=True))
    return found


def _some(chance: np.random.Generator, classes: int, count: int) -> tuple[int, ...]:
    return tuple(np.sort(chance.choice(classes, count, replace=False)).tolist())


def _need(classes: int, count: int) -> None:
    if classes < count:
        raise ValueError(f"this shift needs {count} classes and the data have {classes}: choose another")


_BANKS: Mapping[str, Callable[[int, int, np.random.Generator], list[Distribution]]] = {
    "px": _px,
    "py": _py,
    "pyx": _pyx,
    "pxy": _pxy,
}
SHIFTS = tuple(_BANKS)
