"""Data sets that come from many places or times, and their own partition into devices: nothing is made up.

| name    | file in `data_dir`          | a device                     | x               | classes |
|---------|-----------------------------|------------------------------|-----------------|---------|
| `elec2` | `elec.csv`                  | some half-hours of the day   | (6,)            | 2       |
| `hapt`  | `hapt-windows-128x6.npz`    | a person with a smartphone   | (6, 128), g and | 12      |
|         |                             |                              | rad/s           |         |

`elec2`: New South Wales electricity prices, 45,312 half-hours from May 1996 to December 1998 in time order;
up or down, against the mean of the last day (Harries 1999). What moves prices differs from night to morning
to evening, and changed over the years: from May 1997 on there was trade with Victoria. A device's stages and
its test part are equal stretches of time, one after the other, so that it is tested on what comes next.
Columns are standardized by all that comes before the test parts: most prices are near 0 of their range.

`hapt`: windows of 128 readings at 50 Hz of acceleration and rotation, half-overlapping, of 30 people in 12
activities (Reyes-Ortiz et al. 2015). A person's last fifth of each activity, in time order, is its test part,
and a window that shares readings with a window of the test part is in neither part.
"""

import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from shoal.core.data.dataset import Dataset
from shoal.core.types import Array

NAMES = ("elec2", "hapt")
NOT_FOR = ("label", "shift", "level", "mode", "samples", "copies", "unseen", "public", "model")
"""The settings of an experiment that say how to make devices of one data set: here they are there already."""
HALF_HOURS, PEOPLE, TEST, WINDOW = 48, 30, 5, 128
COLUMNS = "period,nswprice,nswdemand,vicprice,vicdemand,transfer,class"


@dataclass(frozen=True, eq=False)
class NaturalDevice:
    """stages: what it has to train and measure on, one stretch of time after the other. concept: a number of
    its own, since it is unknown which devices are alike."""

    stages: tuple[Dataset, ...]
    test: Dataset
    concept: int


def load(name: str, data_dir: Path | str | None, devices: int, stages: int = 1) -> list[NaturalDevice]:
    """The devices of `elec2` or `hapt`, of which the second stays as it is: it has one stage.

    Raises ValueError for what cannot be made or read, FileNotFoundError for a missing file.
    """
    if data_dir is None:
        raise ValueError(f"{name} is read from a file: give the folder that has it (--data-dir)")
    if name == "elec2":
        return _elec2(_find(Path(data_dir), name, "elec.csv"), devices, stages)
    if stages > 1:
        raise ValueError("the people of hapt do not drift: leave out --drifts")
    return _hapt(_find(Path(data_dir), name, "hapt-windows-128x6.npz"), devices)


def _find(folder: Path, name: str, file: str) -> Path:
    for path in (folder / file, folder / name / file):
        if path.is_file():
            return path
    raise FileNotFoundError(f"{folder} lacks {file}: point data_dir at the folder that has it")


def _elec2(path: Path, devices: int, stages: int) -> list[NaturalDevice]:
    if not 1 <= devices <= HALF_HOURS:
        raise ValueError(f"{devices} devices cannot share the {HALF_HOURS} half-hours of a day: 1 to 48 can")
    with path.open() as file:
        if (header := file.readline().strip()) != COLUMNS:
            raise ValueError(f"{path}: the columns are {header[:80]!r}, not {COLUMNS}")
        try:
            table = np.loadtxt(file, delimiter=",")
        except ValueError as error:
            raise ValueError(f"{path} is not a whole table: {error}; fetch it again") from None
    if len(table) < HALF_HOURS * (stages + 1):
        raise ValueError(f"{path}: {len(table)} half-hours are too few for {stages} stages and a test part")
    before = table[: len(table) * stages // (stages + 1), :6]
    scaled = (table[:, :6] - before.mean(axis=0)) / before.std(axis=0)
    data = Dataset(scaled.astype(np.float32), table[:, 6].astype(np.int64))
    slot = np.rint(table[:, 0] * (HALF_HOURS - 1)).astype(np.int64) * devices // HALF_HOURS
    found = []
    for number in range(devices):
        parts = np.array_split(np.flatnonzero(slot == number), stages + 1)
        *own, test = (data.subset(rows) for rows in parts)
        found.append(NaturalDevice(tuple(own), test, number))
    return found


def _hapt(path: Path, devices: int) -> list[NaturalDevice]:
    if not 1 <= devices <= PEOPLE:
        raise ValueError(f"{devices} devices: hapt has {PEOPLE} people")
    columns = ("X", "y", "subject", "exp", "start")
    try:
        with np.load(path, allow_pickle=False) as file:
            if missing := sorted({f"{c}_{p}" for c in columns for p in ("train", "test")} - set(file)):
                raise ValueError(f"{path} lacks the array {missing[0]}")
            x, y, person, trial, start = (
                np.concatenate([file[f"{column}_train"], file[f"{column}_test"]]) for column in columns
            )
    except (EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise ValueError(f"{path} is not a whole npz file: {error}; fetch it again") from None
    data = Dataset(np.ascontiguousarray(x.transpose(0, 2, 1)), y.astype(np.int64) - 1)
    when = np.lexsort((start, trial))
    # One clock for all recordings: windows of two of them are never at the same time.
    clock = trial.astype(np.int64) * (int(start.max(initial=0)) + 2 * WINDOW) + start
    return [_person(data, clock, when[person[when] == 1 + number], number) for number in range(devices)]


def _person(data: Dataset, clock: Array, rows: Array, number: int) -> NaturalDevice:
    """clock: the first reading of each window. rows: of one person, in time order."""
    assert data.y is not None
    late = np.zeros(len(rows), np.bool_)
    for activity in np.unique(data.y[rows]):
        own = np.flatnonzero(data.y[rows] == activity)
        late[own[len(own) - len(own) // TEST :]] = True
    begins = clock[rows]
    apart = np.abs(begins[:, None] - begins[late][None]).min(axis=1, initial=WINDOW) >= WINDOW
    return NaturalDevice((data.subset(rows[apart]),), data.subset(rows[late]), number)
