"""A fleet: named devices, and the data that each of them holds."""

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from shoal.core.data import arrays
from shoal.core.data.dataset import Dataset
from shoal.core.data.seeds import generator
from shoal.core.data.views import HELD_OUT, Views
from shoal.core.errors import DataFault

HINT = 'give shoal.Fleet({"ward-a": (x, y), "ward-b": (x, y)})'
PARTS = ("x", "y", "x_test", "y_test")


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


class Fleet(Mapping[str, Holding]):
    """Named devices with labeled data, for `shoal.simulate`. The names are yours.

    A device's data are a pair (x, y) of arrays, a dictionary with "x" and "y", a `shoal.Dataset`, or a
    `pandas` or `torch` object that numpy can read in their place. x is (n, ...): bytes are taken for pixels
    and scaled to 0..1, other numbers become float32 (a `Dataset` is used as it is). y is (n,): classes
    numbered from 0, the same on all devices.

    test: the share of each device's samples on which its accuracy is measured and nothing is trained; it is
    drawn at random by `seed`. A device that brings a test part of its own, as (x, y, x_test, y_test) or under
    "x_test" and "y_test" of its dictionary, keeps all of (x, y) to train on.

    regression: whether y are numbers to predict and not classes, see `evaluation.regression`.

    held_out: the share of what remains that a device measures on during a run and does not train on; some
    algorithms, such as flux, need one.

    Raises DataFault, which names the device, for data that cannot be trained on.

    Example:
        >>> import numpy as np, shoal
        >>> chance = np.random.default_rng(0)
        >>> ward = lambda: (chance.normal(size=(50, 4)), chance.integers(0, 2, size=50))
        >>> shoal.Fleet({"ward-a": ward(), "ward-b": ward()}, test=0.2)
        Fleet of 2 devices: 80 samples to train on, 20 to test on, shape (4,), 2 classes
    """

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
            raise DataFault(f"a fleet is a mapping of names to data, not a {type(devices).__name__}", HINT)
        for name, share in (("test", test), ("held_out", held_out)):
            if not 0.0 <= share < 1.0:
                raise DataFault(f"{name} is {share}", "give a share from 0 to below 1, such as 0.2")
        if not test + held_out:
            raise DataFault(
                "test and held_out are both 0, so nothing is left to measure on", "set one of them"
            )
        holdings: dict[str, Holding] = {}
        for name, data in devices.items():
            if not isinstance(name, str) or not name:
                raise DataFault(f"a device is named {name!r}", f"names are texts: {HINT}")
            holdings[name] = _holding(name, data, test, held_out, seed, regression)
        self._take(holdings, held_out=held_out)

    @classmethod
    def of(cls, holdings: Mapping[str, Holding], classes: int = 0, held_out: float = HELD_OUT) -> "Fleet":
        """A fleet of ready-made devices, whose data may change stage by stage. classes: 0 counts them."""
        fleet = cls.__new__(cls)
        fleet._take(holdings, classes, held_out)
        return fleet

    def _take(self, holdings: Mapping[str, Holding], classes: int = 0, held_out: float = HELD_OUT) -> None:
        if not holdings:
            raise DataFault("the fleet has no devices", HINT)
        self._holdings = dict(holdings)
        self.held_out = held_out
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

    def __getitem__(self, name: str) -> Holding:
        return self._holdings[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._holdings)

    def __len__(self) -> int:
        return len(self._holdings)

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
            f"shape {self.shape}, {self.classes} classes"
        )


def stage_at(begins: Sequence[int], trained: int) -> int:
    """The stage of a device that has done `trained` training tasks. begins: see `Holding`."""
    return bisect_right(begins, trained) - 1


def name(number: int) -> str:
    """The name of a device that has only a number; names sort as their numbers do."""
    return f"device-{number:03}"


def numbered(holdings: Sequence[Holding], classes: int = 0, held_out: float = HELD_OUT) -> Fleet:
    """A fleet of devices that have no names of their own."""
    return Fleet.of({name(number): one for number, one in enumerate(holdings)}, classes, held_out)


def dataset(device: str, x: Any, y: Any = None, regression: bool = False) -> Dataset:
    """Arrays, checked, as a data set; y: classes, or numbers to predict. Raises DataFault, which names the
    device."""
    x = _array(device, "x", x)
    if x.ndim == 0 or len(x) == 0:
        raise DataFault(f"{device} has no samples", "x is an array with one sample in each row")
    if x.ndim == 1:
        raise DataFault(
            f"{device}: x has shape {x.shape}, so a sample has no features",
            "give one sample in each row: x.reshape(-1, 1) for single numbers, x[None] for one sample",
        )
    if x.size == 0:
        raise DataFault(f"{device}: x has shape {x.shape}, so its samples are empty", "give their features")
    read = arrays.targets if regression else arrays.classes
    labels = None if y is None else read(device, _array(device, "y", y))
    return arrays.paired(device, arrays.samples(device, x), labels)


def _array(device: str, part: str, values: Any) -> Any:
    try:
        found = np.asarray(values)
    except ValueError:
        raise DataFault(f"{device}: {part} is ragged: its rows differ in length", "pad them") from None
    if part == "y" and found.ndim == 2 and found.shape[1] == 1:
        found = found[:, 0]  # a column, as data frames have it
    return found


def _holding(device: str, data: Any, test: float, held_out: float, seed: int, regression: bool) -> Holding:
    given, own = _read(device, data, regression)
    if given.y is None or (own is not None and own.y is None):
        raise DataFault(f"{device} has no labels", "training needs y; unlabeled data go to result.place(x)")
    if own is not None:
        if len(own) == 0:
            raise DataFault(f"{device} has an empty test part", "leave it out, and test=0.2 holds some apart")
        _enough(device, given, 2)
        return Holding.steady(given, own)
    if not test:
        _enough(device, given, 2)
        return Holding.steady(given, Views.of(given, share=held_out).held_out)
    _enough(device, given, 3)
    # Two samples at least stay: Views holds one out of the training part.
    count = min(max(1, round(test * len(given))), len(given) - 2)
    order = generator(seed, "test part", device).permutation(len(given))
    return Holding.steady(given.subset(order[count:]), given.subset(order[:count]))


def _enough(device: str, data: Dataset, least: int) -> None:
    if len(data) < least:
        parts = (
            "one each to train, to hold out and to test on" if least == 3 else "to train and to measure on"
        )
        samples = "1 sample" if len(data) == 1 else f"{len(data)} samples"
        raise DataFault(f"{device} has {samples}", f"a device needs at least {least}: {parts}")


def _read(device: str, data: Any, regression: bool) -> tuple[Dataset, Dataset | None]:
    """What a device was given, and its own test part, if any."""
    if isinstance(data, Dataset):
        return data, None
    if isinstance(data, Views):
        return data.train, data.test
    if isinstance(data, Mapping):
        unknown = sorted(set(data) - set(PARTS))
        if unknown or "x" not in data or "y" not in data:
            found = ", ".join(map(repr, data)) or "nothing"
            raise DataFault(f"{device} has {found}", 'give "x" and "y", and perhaps "x_test" and "y_test"')
        data = tuple(data[part] for part in PARTS if part in data)
    if not isinstance(data, tuple | list) or len(data) not in (2, 4):
        kind = f"{len(data)} things" if isinstance(data, tuple | list) else f"a {type(data).__name__}"
        raise DataFault(f"{device} is given {kind}", "give a pair of arrays (x, y), or a shoal.Dataset")
    x, y, *test = data
    apart = dataset(f"{device}, test part", test[0], test[1], regression) if test else None
    return dataset(device, x, y, regression), apart
