"""A fleet: named devices, and the data that each of them holds."""

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from shoal.core.data import arrays, brought, labels
from shoal.core.data.dataset import Dataset
from shoal.core.data.layouts import AS_THEY_ARE, Layout, are_images
from shoal.core.data.seeds import generator
from shoal.core.data.views import HELD_OUT, Views
from shoal.core.errors import DataFault, brief
from shoal.core.types import Array

HINT = 'give shoal.Fleet({"ward-a": (x, y), "ward-b": (x, y)})'
PARTS = ("x", "y", "x_test", "y_test")
MAX_RARE = 20
"""Classes that may have less than two samples each, as in small examples."""
FEW_EACH = 10
"""Samples of a class below which numbers may rather be meant to be predicted."""


@dataclass(frozen=True, eq=False)
class Holding:
    """What one device holds. stage: its data to train and measure on, stage by stage, made when asked for.

    begins: after how many of its own training tasks each stage begins. test: the data that its accuracy is
    measured on. concept: number of the distribution of its test part, where the truth is known; algorithms
    never see it.
    """

    stage: Callable[[int], Dataset]
    begins: Sequence[int]
    test: Dataset
    concept: int | None = None

    @classmethod
    def steady(cls, train: Dataset, test: Dataset, concept: int | None = None) -> "Holding":
        """A device whose data stay as they are."""
        return cls(lambda stage: train, (0,), test, concept)

    def arranged(self, layout: Layout) -> "Holding":
        """The same device with its samples in another layout."""

        def turned(data: Dataset) -> Dataset:
            return Dataset(layout.apply(data.x), data.y)

        return Holding(lambda stage: turned(self.stage(stage)), self.begins, turned(self.test), self.concept)


class Fleet(Mapping[str, Holding]):
    """Named devices with labeled data, for `shoal.simulate`. The names are yours.

    A device's data are a pair (x, y) of arrays, tensors or pandas objects, a dictionary with "x" and "y", a
    data set of torch that has a length, such as a TensorDataset, a Subset or a list of pairs (x, y), or a
    `shoal.Dataset`. One DataFrame of all devices becomes a fleet by `Fleet.from_frame`.

    x is (n, ...): bytes are taken for pixels and scaled to 0..1, other numbers become float32 (a `Dataset` is
    used as it is); of a DataFrame, columns of numbers and booleans are features. y is (n,): classes, the same
    on all devices. They may be whole numbers, text, categories or booleans. Where they are not 0 to C-1
    already, the names of all devices' classes are sorted and numbered from 0, and `class_names` has them.

    test: the share of each device's samples on which its accuracy is measured and nothing is trained; it is
    drawn at random by `seed`. A device that brings a test part of its own, as (x, y, x_test, y_test) or under
    "x_test" and "y_test" of its dictionary, keeps all of (x, y) to train on.

    regression: whether y are numbers to predict and not classes, see `evaluation.regression`.

    held_out: the share of what remains that a device measures on during a run and does not train on; some
    algorithms, such as flux, need one.

    shape: of a sample. classes: how many there are; 1 where numbers are predicted. class_names: of class 0, 1
    and so on; None where the labels were these numbers. columns: the names of the features, where x are
    DataFrames, all of which have them in one order; else None.

    Raises DataFault, which names the device, for data that cannot be trained on.

    Example:
        >>> import numpy as np, shoal
        >>> chance = np.random.default_rng(0)
        >>> ward = lambda: (chance.normal(size=(50, 4)), chance.choice(["ill", "well"], size=50))
        >>> fleet = shoal.Fleet({"ward-a": ward(), "ward-b": ward()}, test=0.2)
        >>> fleet
        Fleet of 2 devices: 80 samples to train on, 20 to test on, shape (4,), 2 classes: ill, well
        >>> fleet.class_names
        ('ill', 'well')
    """

    columns: tuple[str, ...] | None = None

    @brief
    def __init__(
        self,
        devices: Mapping[str, Any],
        *,
        test: float = 0.2,
        held_out: float = HELD_OUT,
        seed: int = 42,
        regression: bool = False,
    ) -> None:
        if not isinstance(devices, Mapping):
            hint = (
                "use shoal.Fleet.from_frame(frame, device=..., label=...)"
                if brought.is_frame(devices)
                else HINT
            )
            raise DataFault(f"a fleet is a mapping of names to data, not a {type(devices).__name__}", hint)
        for name, share in (("test", test), ("held_out", held_out)):
            if not 0.0 <= share < 1.0:
                raise DataFault(f"{name} is {share}", "give a share from 0 to below 1, such as 0.2")
        if not test + held_out:
            raise DataFault(
                "test and held_out are both 0, so nothing is left to measure on", "set one of them"
            )
        given: dict[str, _Given] = {}
        for name, data in devices.items():
            if not isinstance(name, str) or not name:
                raise DataFault(f"a device is named {name!r}", f"names are texts: {HINT}")
            given[name] = _read(name, data, regression)
            for part in filter(None, (given[name].train, given[name].own)):
                self.columns = self.columns or part.columns
                _check_columns(name, part.columns, self.columns)
        arrays.check_scales(
            (f"{name}, test part" if part is one.own else name, part.x)
            for name, one in given.items()
            for part in (one.train, one.own)
            if part is not None
        )
        names = None
        if not regression:
            known = {name: one.labels for name, one in given.items()}
            names = labels.names_of(known) if known else None
            _check_classes(names or (), sum(len(y) for parts in known.values() for y in parts))
        holdings = {name: _holding(name, one, names, test, held_out, seed) for name, one in given.items()}
        self._take(holdings, len(names or ()), held_out, names, regression)

    @classmethod
    @brief
    def from_frame(
        cls,
        frame: Any,
        device: str,
        label: str,
        *,
        test: float = 0.2,
        held_out: float = HELD_OUT,
        seed: int = 42,
        regression: bool = False,
    ) -> "Fleet":
        """A fleet of one DataFrame: a row for each sample, and a column that says which device has it.

        device: the column of devices, each of which becomes one. label: the column of classes, or of numbers
        to predict. All other columns are features: numbers, or booleans. test, held_out, seed, regression: as
        for a fleet.

        Raises DataFault for a column that is not there, for one of text or times, and for missing values. It
        names the column, and the row and its device.

        Example:
            fleet = shoal.Fleet.from_frame(frame, device="ward", label="ill")
            fleet = shoal.Fleet.from_frame(frame.drop(columns="name"), device="ward", label="ill", test=0.3)
        """
        if not brought.is_frame(frame):
            raise DataFault(f"a frame is a pandas.DataFrame, not a {type(frame).__name__}", HINT)
        if device == label:
            raise DataFault(f"{device!r} is the column of devices and of labels", "name two columns")
        column = brought.column_named(frame, device, "which should name the devices")
        owners = np.array([str(name) for name in _complete(column, device, lambda row: "")], np.str_)
        column = brought.column_named(frame, label, "which should have the labels")
        y = _complete(column, label, lambda row: f", of {owners[row]}").to_numpy()
        others = frame.loc[:, [str(name) not in (device, label) for name in frame.columns]]
        x = brought.features("the frame", others, lambda row: f"in row {row} (from 0), of {owners[row]}")
        rows = {name: np.flatnonzero(owners == name) for name in dict.fromkeys(owners.tolist())}
        fleet = cls(
            {name: (x[own], y[own]) for name, own in rows.items()},
            test=test,
            held_out=held_out,
            seed=seed,
            regression=regression,
        )
        fleet.columns = tuple(map(str, others.columns))
        return fleet

    @classmethod
    def of(
        cls,
        holdings: Mapping[str, Holding],
        classes: int = 0,
        held_out: float = HELD_OUT,
        class_names: tuple[str, ...] | None = None,
        regression: bool = False,
    ) -> "Fleet":
        """A fleet of ready-made devices, whose data may change stage by stage. classes: 0 counts them."""
        fleet = cls.__new__(cls)
        fleet._take(holdings, classes, held_out, class_names, regression)
        return fleet

    def _take(
        self,
        holdings: Mapping[str, Holding],
        classes: int,
        held_out: float,
        class_names: tuple[str, ...] | None,
        regression: bool,
    ) -> None:
        if not holdings:
            raise DataFault("the fleet has no devices", HINT)
        self._holdings = dict(holdings)
        self.held_out, self.class_names, self.regression = held_out, class_names, regression
        shapes = {name: one.test.x.shape[1:] for name, one in holdings.items()}
        first = next(iter(shapes))
        for name, shape in shapes.items():
            if shape != shapes[first]:
                raise DataFault(
                    f"a sample of {name} has shape {shape}, and one of {first} has {shapes[first]}",
                    "bring all devices' samples into one shape",
                )
        self.shape: tuple[int, ...] = shapes[first]
        self.classes = classes or max(
            1 if part.y.dtype.kind == "f" else 1 + int(part.y.max(initial=0))
            for one in holdings.values()
            for part in (one.stage(0), one.test)
            if part.y is not None
        )

    def arranged(self, layout: Layout) -> "Fleet":
        """The same fleet with its samples in another layout."""
        if layout is AS_THEY_ARE:
            return self
        found = {name: one.arranged(layout) for name, one in self.items()}
        return self.like(found)

    def like(self, holdings: Mapping[str, Holding]) -> "Fleet":
        """A fleet of other devices with the same classes."""
        return Fleet.of(holdings, self.classes, self.held_out, self.class_names, self.regression)

    def read(self, device: str, x: Any, y: Any = None) -> Dataset:
        """The data of a device that is not in the fleet, read as those of its own devices are: y has the
        fleet's labels, or x is a data set of torch with both. Raises DataFault, which names the device."""
        if y is None and (pair := brought.pair(device, x)) is not None:
            x, y = pair
        part = _part(device, x, y, self.regression)
        _check_columns(device, part.columns, self.columns)
        arrays.check_scales([(device, part.x), *(("the fleet", x) for x in self._samples())])
        return _numbered(device, part, self.class_names)

    def __getitem__(self, name: str) -> Holding:
        return self._holdings[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._holdings)

    def __len__(self) -> int:
        return len(self._holdings)

    @property
    def are_images(self) -> bool:
        """Whether samples of shape (h, w) are taken for gray images, and not for windows of readings, where
        no network says it: see `shoal.core.data.layouts.are_images`."""
        if len(self.shape) != 2:
            return False
        parts = self._samples()
        low, high = min(float(x.min()) for x in parts), max(float(x.max()) for x in parts)
        return are_images(self.shape, parts[0].dtype, low, high)

    @property
    def has_whole_numbers(self) -> bool:
        """Whether no sample has a fraction."""
        return all(bool((x == np.floor(x)).all()) for x in self._samples())

    @property
    def perhaps_numbers(self) -> str:
        """A sentence where the classes look like numbers to predict; else ""."""
        samples = sum(len(part) for one in self.values() for part in (one.stage(0), one.test))
        names = self.class_names or ()
        if self.classes <= MAX_RARE or samples >= FEW_EACH * self.classes or not labels.are_numbers(names):
            return ""
        return (
            f"the {self.classes} classes have about {samples // self.classes} samples each: if they are "
            "numbers to predict, give the fleet regression=True (--regression)"
        )

    def _samples(self) -> list[Array]:
        return [part.x for one in self.values() for part in (one.stage(0), one.test)]

    @property
    def concepts(self) -> list[int] | None:
        """The true group of each device, in order; None where it is unknown."""
        found = [one.concept for one in self.values()]
        return None if None in found else [each for each in found if each is not None]

    def __repr__(self) -> str:
        devices = f"{len(self)} device{'s' if len(self) > 1 else ''}"
        train = sum(len(one.stage(0)) for one in self.values())
        tested = sum(len(one.test) for one in self.values())
        return (
            f"Fleet of {devices}: {train} samples to train on, {tested} to test on, "
            f"shape {self.shape}, {self._classes_text()}"
        )

    def _classes_text(self) -> str:
        test = next(iter(self.values())).test
        if test.y is not None and test.y.dtype.kind == "f":
            return "numbers to predict"
        count = f"{self.classes} class{'' if self.classes == 1 else 'es'}"
        if self.class_names is None:
            return count
        if labels.are_numbers(self.class_names):
            return f"{count}; {labels.sentence(self.class_names)}"
        return f"{count}: {labels.listed(self.class_names)}"


def stage_at(begins: Sequence[int], trained: int) -> int:
    """The stage of a device that has done `trained` training tasks. begins: see `Holding`."""
    return bisect_right(begins, trained) - 1


def name(number: int) -> str:
    """The name of a device that has only a number; names sort as their numbers do."""
    return f"device-{number:03}"


def numbered(holdings: Sequence[Holding], classes: int = 0, held_out: float = HELD_OUT) -> Fleet:
    """A fleet of devices that have no names of their own."""
    return Fleet.of({name(number): one for number, one in enumerate(holdings)}, classes, held_out)


@dataclass(frozen=True, eq=False)
class _Part:
    """x, and y as the labels that a device brings: as `labels.read` gives them, or float32 to predict.
    columns: the names of the features, where x was a DataFrame."""

    x: Array
    y: Array | None
    columns: tuple[str, ...] | None = None


@dataclass(frozen=True, eq=False)
class _Given:
    """What a device was given. own: its test part, if it brings one."""

    train: _Part
    own: _Part | None

    @property
    def labels(self) -> list[Array]:
        return [part.y for part in (self.train, self.own) if part is not None and part.y is not None]


def _read(device: str, data: Any, regression: bool) -> _Given:
    """What a device was given, checked. Raises DataFault, also where labels are missing."""
    found = _parts(device, data, regression)
    if found.train.y is None or (found.own is not None and found.own.y is None):
        raise DataFault(f"{device} has no labels", "training needs y; unlabeled data go to result.place(x)")
    if found.own is not None and found.own.x.shape[1:] != found.train.x.shape[1:]:
        shapes = f"{found.own.x.shape[1:]}, and {found.train.x.shape[1:]} for training"
        raise DataFault(f"{device}: a test sample has shape {shapes}", "bring them into one shape")
    return found


def _parts(device: str, data: Any, regression: bool) -> _Given:
    if isinstance(data, Dataset):
        return _Given(_ready(device, data, regression), None)
    if isinstance(data, Views):
        own = None if data.test is None else _ready(f"{device}, test part", data.test, regression)
        return _Given(_ready(device, data.train, regression), own)
    if isinstance(data, Mapping):
        unknown = sorted(set(map(str, data)) - set(PARTS))
        half = ("x_test" in data) != ("y_test" in data)
        if unknown or half or "x" not in data or "y" not in data:
            found = ", ".join(map(repr, data)) or "nothing"
            raise DataFault(f"{device} has {found}", 'give "x" and "y", and perhaps "x_test" and "y_test"')
        data = tuple(data[part] for part in PARTS if part in data)
    elif (pair := brought.pair(device, data)) is not None:
        data = pair
    if not isinstance(data, tuple | list) or len(data) not in (2, 4):
        raise DataFault(f"{device} is given {brought.named(data)}", brought.cure(data))
    x, y, *test = data
    apart = _part(f"{device}, test part", test[0], test[1], regression) if test else None
    return _Given(_part(device, x, y, regression), apart)


def _ready(device: str, data: Dataset, regression: bool) -> _Part:
    """A data set, whose samples stay as they are."""
    return _Part(data.x, None if data.y is None else _targets(device, data.y, regression))


def _targets(device: str, y: Array, regression: bool) -> Array:
    """Labels, or numbers to predict, checked. Raises DataFault, which names the device."""
    return arrays.targets(device, y) if regression else labels.read(device, y)


def _part(device: str, x: Any, y: Any, regression: bool) -> _Part:
    """Samples and labels, checked. Raises DataFault, which names the device."""
    columns = tuple(map(str, x.columns)) if brought.is_frame(x) else None
    x = brought.features(device, x)
    if x.ndim == 0 or len(x) == 0:
        raise DataFault(f"{device} has no samples", "x is an array with one sample in each row")
    if x.ndim == 1:
        raise DataFault(
            f"{device}: x has shape {x.shape}, so a sample has no features",
            "give one sample in each row: x.reshape(-1, 1) for single numbers, x[None] for one sample",
        )
    if x.size == 0:
        raise DataFault(f"{device}: x has shape {x.shape}, so its samples are empty", "give their features")
    x = arrays.samples(device, x)
    if y is None:
        return _Part(x, None, columns)
    y = arrays.column(brought.array(device, "y", y))
    return _Part(x, _targets(device, y, regression), columns)


def _check_columns(device: str, found: tuple[str, ...] | None, known: tuple[str, ...] | None) -> None:
    """Raises DataFault where a frame has the columns of the others in another order."""
    if found and known:
        cure = "bring the columns into one order: x[list(first.columns)], where first is the x of one device"
        arrays.check_order(device, found, "the fleet", known, cure)


def _check_classes(names: Sequence[str], samples: int) -> None:
    """Raises DataFault where labels differ as those of numbers to predict do, or names of samples."""
    if len(names) > MAX_RARE and samples < 2 * len(names):
        raise DataFault(
            f"the labels of {samples} samples have {len(names)} values, such as {labels.listed(names[:3])}",
            "for numbers to predict: shoal.Fleet(..., regression=True), or fedserver simulate --regression; "
            "a class needs samples from which it is learned",
        )


def _numbered(device: str, part: _Part, names: tuple[str, ...] | None) -> Dataset:
    """A data set with the numbers of the classes, or the numbers to predict."""
    y = part.y
    if y is not None and y.dtype.kind != "f":
        y = labels.placed(device, y, names)
    return arrays.paired(device, part.x, y)


def _complete(column: Any, name: str, whose: Callable[[int], str]) -> Any:
    """A column of a frame without missing values. Raises DataFault, which says in which row, and whose."""
    missing = column.isna().to_numpy()
    if missing.any():
        row = int(missing.argmax())
        raise DataFault(
            f"the frame: column {name!r} is missing in row {row} (from 0){whose(row)}",
            "fill or drop such rows",
        )
    return column


def _holding(
    device: str, given: _Given, names: tuple[str, ...] | None, test: float, held_out: float, seed: int
) -> Holding:
    data = _numbered(device, given.train, names)
    if given.own is not None:
        own = _numbered(f"{device}, test part", given.own, names)
        if len(own) == 0:
            raise DataFault(f"{device} has an empty test part", "leave it out, and test=0.2 holds some apart")
        _enough(device, data, 2)
        return Holding.steady(data, own)
    if not test:
        _enough(device, data, 2)
        return Holding.steady(data, Views.of(data, share=held_out).held_out)
    _enough(device, data, 3)
    # Two samples at least stay: Views holds one out of the training part.
    count = min(max(1, round(test * len(data))), len(data) - 2)
    order = generator(seed, "test part", device).permutation(len(data))
    return Holding.steady(data.subset(order[count:]), data.subset(order[:count]))


def _enough(device: str, data: Dataset, least: int) -> None:
    if len(data) < least:
        parts = (
            "one each to train, to hold out and to test on" if least == 3 else "to train and to measure on"
        )
        samples = "1 sample" if len(data) == 1 else f"{len(data)} samples"
        raise DataFault(f"{device} has {samples}", f"a device needs at least {least}: {parts}")
