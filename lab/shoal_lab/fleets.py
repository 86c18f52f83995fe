"""Fleets to try algorithms on: `fleets.px(data, level=5, devices=10)`. Each makes one data set differ.

data: what the devices share, as a pair of data sets (train, test), such as `datasets.digits()`, or as
one data set, of which a fifth is then kept for testing. The same arguments give the same fleet.
"""

from typing import Any

from shoal.core.data.dataset import Dataset
from shoal.core.data.seeds import generator
from shoal.core.errors import ConfigError
from shoal.simulation.fleet import Fleet, Holding, numbered
from shoal_lab.shifts import make


def px(data: Any, *, level: int = 5, devices: int = 10, seed: int = 42) -> Fleet:
    """P(X) differs: each device sees its images rotated and, from level 5 on, colored. Levels 1 to 8."""
    return _fleet("px", data, level, devices, seed)


def py(data: Any, *, level: int = 5, devices: int = 10, seed: int = 42) -> Fleet:
    """P(Y) differs: each device holds only 11 - level of the classes. Levels 1 to 8."""
    return _fleet("py", data, level, devices, seed)


def pyx(data: Any, *, level: int = 5, devices: int = 10, seed: int = 42) -> Fleet:
    """P(Y|X) differs: the same image has different labels on different devices. Levels 1 to 8."""
    return _fleet("pyx", data, level, devices, seed)


def pxy(data: Any, *, level: int = 5, devices: int = 10, seed: int = 42) -> Fleet:
    """P(X|Y) differs: devices see the images of some classes rotated and colored. Levels 1 to 8."""
    return _fleet("pxy", data, level, devices, seed)


def dirichlet(data: Any, *, level: int = 5, devices: int = 10, seed: int = 42) -> Fleet:
    """P(Y) differs by degrees: shares of classes are drawn from a Dirichlet distribution. Levels 1 to 8."""
    return _fleet("dirichlet", data, level, devices, seed)


def fedrc(data: Any, *, level: int = 1, devices: int = 10, seed: int = 42) -> Fleet:
    """Feature, label and concept shift at once, with three concepts. Levels 1 to 3."""
    return _fleet("fedrc", data, level, devices, seed)


def quantity(
    data: Any, kind: str = "features", *, level: int = 1, devices: int = 10, seed: int = 42
) -> Fleet:
    """Four concepts of one kind ("features", "labels" or "skew"), and numbers of samples. Levels 0 to 2."""
    return _fleet(f"qs-{kind}", data, level, devices, seed)


def _fleet(shift: str, data: Any, level: int, devices: int, seed: int) -> Fleet:
    if isinstance(data, Dataset):
        order = generator(seed, "test part").permutation(len(data))
        count = max(1, len(data) // 5)
        data = data.subset(order[count:]), data.subset(order[:count])
    pair = isinstance(data, tuple | list) and len(data) == 2
    if not pair or not all(isinstance(part, Dataset) for part in data):
        raise ConfigError(
            f"a shift is given a {type(data).__name__}", "give shoal.Dataset(x, y), or a pair (train, test)"
        )
    train, test = data
    try:
        made = make(shift, level, devices, seed, train, test)
    except ValueError as fault:
        raise ConfigError(str(fault)) from None
    labels = [part.y for part in (train, test) if part.y is not None]
    classes = 1 + max((int(part.max(initial=0)) for part in labels), default=0)
    return numbered([Holding.steady(one.train, one.test, one.concept) for one in made], classes)
