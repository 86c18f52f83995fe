"""Devices whose data change while they train: stage after stage, each of one distribution out of a bank.

Time is the device's own: it advances with the number of its own training tasks
(`shoal.simulation.fleet.stage_at`), so a run drifts alike in the simulator, with the coordinator called
directly, and over gRPC.

| mode        | what a device trains on                    | what it is tested on                       |
|-------------|--------------------------------------------|--------------------------------------------|
| `trDR_teND` | each stage is drawn from the bank          | a distribution that some stage had         |
| `trDR_teDR` | each stage is drawn from the bank, less .. | .. one that no stage of this device had    |
| `trDA`      | a stage adds to the ones before it         | a distribution that some stage had         |
| `trND_teDR` | all stages are of one distribution         | another one                                |
| `last`      | as `trDR_teND`                             | the last stage's of some device, at random |

FEROMA's tables have `last`: its authors' generator calls it `trDR_teND`, too, with `DA_seen_last`. A
distribution that more devices have last is drawn more often, and each has been trained on in the last round.

Under `pyx` a device of the modes `trDR_teND`, `last` and `trDA` is tested on its last stage's names: images
by themselves do not show what they are called, so its own model is the measure (FEROMA, appendix I.2).

A device's images are its even share, drawn with replacement into max(1, drifts x devices / 30) times as many,
shuffled, and dealt out to the stages. Under `py` a stage is all of these images that are of its two classes
in the mode `last`, and all of its share in the other modes. The authors keep each image once, and draw the
rest. Two stages may be of one distribution: then nothing drifts in between.

Draws come from generators of our own: the recipe's own are seeded for it globally, and one of them never.
Stream "bank": see `shoal_lab.shifts.banks`. Stream "device", number: 1. which of the bank the device may
have; 2. the test's distribution, in the modes `*_teDR`; 3. that of each stage; 4. the test's, in the other
modes; 5. the rows of all stages; 6. their order. Stream "last": whose last stage each device is tested on, in
the mode `last`. The even split is `shoal_lab.shifts.base`'s.

Source: FEROMA, section 4.1, appendices I.1 and I.2; ANDA, its generators of drifting data.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from shoal.core.data.dataset import Dataset
from shoal.core.data.seeds import generator
from shoal_lab.shifts.banks import Distribution, bank
from shoal_lab.shifts.base import check, class_count, known, labels, split_basic

LAST = "last"
"""The mode of FEROMA's tables: devices are tested on what some device trained on in the last round."""
MODES = ("trDR_teND", "trDR_teDR", "trDA", "trND_teDR", LAST)
UNSEEN = "trDR_teDR"
"""The mode in which devices are tested on what they did not train on, while their training drifts."""
SCALE = 30.0
ALL = 100
"""Distributions that one device may have, at most; as many as there are in the bank where that is fewer."""

Rows = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class DriftingDevice:
    """What one device holds over time, and the truth about it. Nothing is made before it is asked for.

    stages: of each stage the pieces that it consists of, a distribution and rows of `images` each.
    test_of: the distribution of the test part.
    """

    images: Dataset
    test_images: Dataset
    stages: tuple[tuple[tuple[Distribution, Rows], ...], ...]
    test_of: Distribution

    def stage(self, number: int) -> Dataset:
        """What it trains on in that stage, counted from 0."""
        pieces = [part.of(self.images.subset(rows)) for part, rows in self.stages[number]]
        y = np.concatenate([piece.y for piece in pieces if piece.y is not None])
        return Dataset(np.concatenate([piece.x for piece in pieces]), y)

    @property
    def test(self) -> Dataset:
        return self.test_of.of(self.test_images.subset(self.test_of.rows(self.test_images)))

    @property
    def concepts(self) -> list[int]:
        """The number in the bank of each stage's distribution; of its newest piece, where data add up."""
        return [pieces[-1][0].number for pieces in self.stages]


def changes(rounds: int, drifts: int) -> list[int]:
    """After how many training tasks each stage begins, the first at 0: evenly over `rounds`."""
    return [int(rounds * number / drifts) for number in range(drifts)]


def drifting(
    shift: str,
    level: str,
    drifts: int,
    clients: int,
    seed: int,
    train: Dataset,
    test: Dataset,
    mode: str = "trDR_teND",
    most: int = ALL,
) -> list[DriftingDevice]:
    """Devices 0 .. `clients`-1 with `drifts` stages each, the same for the same arguments.

    shift, train, test: as for `shoal_lab.shifts.make`. level: "low", "medium" or "high". most: see `ALL`.

    Raises ValueError for what is unknown, and for too little data to go round.
    """
    check(clients, seed, train, test)
    known("mode", mode, MODES)
    if drifts < 1 or most < 1:
        raise ValueError(f"{drifts} stages of {most} distributions: a device has at least one of each")
    found = bank(shift, level, class_count(train, test, needed=1), generator(seed, "bank"))
    parts = split_basic(train, test, clients, seed)
    made = [
        _device(found, shift, drifts, clients, mode, most, generator(seed, "device", number), *part)
        for number, part in enumerate(parts)
    ]
    if mode == LAST and shift != "pyx":
        whose = generator(seed, "last").integers(clients, size=clients)
        made = [replace(each, test_of=made[other].test_of) for each, other in zip(made, whose, strict=True)]
    if any(not len(each.test_of.rows(each.test_images)) for each in made):
        raise ValueError("a device is left without images to be tested on: ask for fewer clients")
    return made


def _device(
    found: Sequence[Distribution],
    shift: str,
    drifts: int,
    clients: int,
    mode: str,
    most: int,
    chance: np.random.Generator,
    images: Dataset,
    test_images: Dataset,
) -> DriftingDevice:
    own = [found[i] for i in chance.choice(len(found), min(most, len(found)), replace=False)]
    test_of = None
    if mode.endswith("teDR"):
        if len(own) < 2:
            raise ValueError(f"mode {mode} needs two distributions for a device: set most to 2 or more")
        test_of = own.pop(int(chance.integers(len(own))))
    first = own[int(chance.integers(len(own)))] if mode == "trND_teDR" else None
    drawn = [first or own[int(chance.integers(len(own)))] for _ in range(drifts)]
    if test_of is None:
        last = mode == LAST or shift == "pyx"
        test_of = drawn[-1] if last else drawn[int(chance.integers(drifts))]
    if shift == "py" and mode != LAST:
        dealt = [each.rows(images) for each in drawn]
    else:
        dealt = _dealt(drawn, images, drifts * clients / SCALE, shift, chance)
    pieces = tuple(zip(drawn, dealt, strict=True))
    stages = tuple(pieces[: 1 + i] if mode == "trDA" else (pieces[i],) for i in range(drifts))
    if any(not len(rows) for rows in dealt):
        raise ValueError("a device is left without images in some stage: ask for fewer clients or drifts")
    return DriftingDevice(images, test_images, stages, test_of)


def _dealt(
    drawn: Sequence[Distribution], images: Dataset, times: float, shift: str, chance: np.random.Generator
) -> list[Rows]:
    """The rows of each stage, of images that are drawn into `times` as many, if that is more."""
    rows = chance.integers(len(images), size=int(len(images) * max(1.0, times)))
    chance.shuffle(rows)
    if shift != "py":
        return np.array_split(rows, len(drawn))
    return [rows[np.isin(labels(images)[rows], each.kept)] for each in drawn]
