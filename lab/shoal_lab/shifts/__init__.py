"""Non-IID generators: one data set in, one data set per device out, disagreeing in one chosen way.

| name  | what differs between devices                | module            | channels of the images |
|-------|---------------------------------------------|-------------------|------------------------|
| `px`  | P(X): how the images look                   | `feature`         | 3                      |
| `py`  | P(Y): which classes there are               | `label`           | as given, 1 for MNIST  |
| `pyx` | P(Y|X): what an image is called             | `concept_label`   | as given, 1 for MNIST  |
| `pxy` | P(X|Y): how the images of some classes look | `concept_feature` | 3                      |
| `dirichlet` | P(Y): how much there is of each class | `dirichlet`       | as given, 1 for MNIST  |
| `fedrc` | all at once, three concepts among them    | `three_concepts`  | as given, 1 for MNIST  |
| `px+py`, `pxy+py`, `pyx+py` | two of these at once    | `mixed`           | 3, 3, as given         |
| `qs-features`, `qs-labels`, `qs-skew` | a concept, and how many samples | `quantity` | as given |

Levels 1..8 of the first four are those of FLUX (Table 9), made by the recipes of ANDA, the generator its
authors used. Random numbers are drawn in the same order from the same legacy generators, here local to the
call and seeded alike, so a seed gives the devices that the authors' code gives. Each module writes down its
order, and what its levels are where they are others.

`drifting` makes devices whose data change while they train, at three levels of their own: see `drift`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from shoal.core.data.dataset import Dataset
from shoal_lab.shifts import (
    concept_feature,
    concept_label,
    dirichlet,
    feature,
    label,
    mixed,
    quantity,
    three_concepts,
)
from shoal_lab.shifts.base import LEVELS, DeviceData, check, check_level, known
from shoal_lab.shifts.drift import DriftingDevice, drifting

__all__ = ["SHIFTS", "DeviceData", "DriftingDevice", "drifting", "make", "newcomers"]

_GENERATORS: dict[str, tuple[range, Callable[[int, int, int, Dataset, Dataset], list[DeviceData]]]] = {
    "px": (LEVELS, feature.make),
    "py": (LEVELS, label.make),
    "pyx": (LEVELS, concept_label.make),
    "pxy": (LEVELS, concept_feature.make),
    "dirichlet": (LEVELS, dirichlet.make),
    "fedrc": (three_concepts.LEVELS, three_concepts.make),
    **{f"{other}+py": (LEVELS, partial(mixed.make, other)) for other in ("px", "pxy", "pyx")},
    **{f"qs-{kind}": (quantity.LEVELS, partial(quantity.make, kind)) for kind in quantity.KINDS},
}
SHIFTS = tuple(_GENERATORS)
OF_ANY_SAMPLES = ("py", "pyx", "dirichlet", "qs-labels")
"""Shifts of labels only: they take samples of any shape, such as rows of a table."""


def make(shift: str, level: int, clients: int, seed: int, train: Dataset, test: Dataset) -> list[DeviceData]:
    """The data of devices 0 .. `clients`-1 under `shift` (one of `SHIFTS`), the same for the same arguments.

    `level`: 1 (mild) to 8 (hard), FLUX Table 9; 0 to 2 for quantity skew, 1 to 3 for `fedrc`.
    `seed`: 0 to 2**32 - 1.
    `train`, `test`: labeled images, x (n, h, w) or (n, c, h, w) with c 1 or 3, uint8 or float in [0, 1];
    samples of any shape for `OF_ANY_SAMPLES`. They are not changed. `px` takes unlabeled ones too.

    The devices' images are float32 in [0, 1], (n, channels, h, w), channels as in the table above.

    Raises ValueError for an unknown shift or level, for data that are not as above, and for too little data
    to go round.
    """
    known("shift", shift, SHIFTS)
    levels, generator = _GENERATORS[shift]
    check_level(level, levels)
    check(clients, seed, train, test, images=shift not in OF_ANY_SAMPLES)
    return generator(level, clients, seed, train, test)


def newcomers(shift: str, seed: int, train: Dataset, test: Dataset) -> list[DeviceData]:
    """Labeled devices that take no part in training, one for each concept, where the shift has them.

    What they are placed by is their `train`, what their models are measured on their `test`.
    """
    return three_concepts.newcomers(seed, train, test) if shift == "fedrc" else []
