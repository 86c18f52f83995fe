"""One scale for the inputs of all devices: each feature less the fleet's mean, in units of its deviation.

    each device: summary_of(x) --> the server: merged(...) --> a scale in every model --> scaled samples

A device says nothing where its network needs no scale (`shoal.core.device_kit.scaling.weighs_evenly`), and
the server makes none unless most devices say something. A feature is a column of a table; of images and
series, a channel, which is the first axis of a sample. It is the fleet's scale and not each device's own,
which would hide what distinguishes groups of devices.

Far values are heard and do not shout. A device leaves out its most extreme hundredth on either side when it
measures, so an outlier does not press everything else together. With z a value's distance from the mean in
deviations, and L = `LINEAR`, the network gets z up to L, and sign(z) (L + log(1 + |z| - L)) beyond. The
server takes trimmed means, so fewer than a quarter of the devices cannot move a feature out of what the
others have, and a claim of many samples is worth nothing.

Where groups have their features in other units, the fleet's scale leaves the groups of small numbers hardly
any differences. So a group has scales of its own for the features that vary or lie quite otherwise in it
(`of_group`), once it is known that it is a group.

A model carries its scale with it, as two or three tensors of reserved names beside the network's own,
wherever it goes: to devices, to newcomers, into files.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from shoal.core.data.trimmed import trimmed_mean
from shoal.core.errors import BadPayload
from shoal.core.types import Array, Tensors

MEAN, DEVIATION, TARGET = "shoal_input_mean", "shoal_input_deviation", "shoal_target_scale"
RESERVED = (MEAN, DEVIATION, TARGET)
"""The names of the tensors, which a network may not have itself. In a model they come last, in this order."""

EXTREME = 0.01
"""The share of the values at either end that a device replaces by the value where they begin."""
MIN_SAMPLES = 8
"""Samples of a device that says anything."""
LINEAR = 3.0
"""Up to this many deviations from the mean a value is what it is, and beyond it grows like its logarithm."""
MAX_VALUES = 1 << 22
"""Values of a device's inputs that are looked at. More would cost memory and move no number by much."""
UNLIKE = 2.0
"""A group has a scale of its own for a feature whose deviation is this many times smaller or larger in it, or
whose mean is this many deviations away."""
EDGES = (-0.6745, 0.0, 0.6745)
"""Between the levels of numbers to predict, in deviations from the mean: the quarters of a normal one."""
LEVELS = len(EDGES) + 1
FEW = 4
"""In a group of up to this many devices none may be left out as extreme, so all have to agree: their
deviations by a factor of at most `ALIKE`, and their means by at most as many deviations."""
ALIKE = 4.0
RESOLUTION = 1e-7
"""Of float32. A deviation below this share of the mean is none."""
LARGEST = float(np.finfo(np.float32).max) / 4
NO_SCALE: Tensors = {}
Values = tuple[float, ...]


@dataclass(frozen=True)
class Summary:
    """What a device says of its inputs.

    means, deviations: one for each feature, in its own units; none where inputs need no scale, or have none,
    as tokens. target: mean and deviation of the numbers to predict; () where labels are classes. Raises
    BadPayload for what cannot be.
    """

    means: Values
    deviations: Values
    target: Values = ()

    def __post_init__(self) -> None:
        spreads = (*self.deviations, *self.target[1:])
        sane = len(self.means) == len(self.deviations) and len(self.target) in (0, 2)
        # `not <=` also catches NaN.
        far = any(not abs(each) <= LARGEST for each in (*self.means, *self.deviations, *self.target))
        if not sane or far or any(each < 0.0 for each in spreads):
            raise BadPayload("the scale of a device's inputs cannot be", "look at the device's data")


def summary_of(x: Array, targets: Array | None = None) -> Summary:
    """Of samples (n, ...) as a network takes them; nothing of fewer than `MIN_SAMPLES`, as a mean of so few
    tells of each. targets: (n,), the numbers to predict.

    Example:
        >>> summary_of(np.array([[1.0, 500.0], [3.0, 700.0]] * 4, np.float32)).means
        (2.0, 600.0)
    """
    if len(x) < MIN_SAMPLES:
        return Summary((), ())
    target = () if targets is None else tuple(each.item() for each in _spread(targets[:, None]))
    if x.dtype.kind != "f" or x.ndim < 2:
        return Summary((), (), target)
    every = -(-x.size // MAX_VALUES)
    features = np.moveaxis(x[::every], 1, -1).reshape(-1, x.shape[1])
    means, deviations = _spread(features)
    return Summary(tuple(means.tolist()), tuple(deviations.tolist()), target)


def _spread(rows: Array) -> tuple[Array, Array]:
    """Mean and deviation of each column, without its extremes; with them, where nothing else varies, as in a
    column that is nearly always 0."""
    rows = rows.astype(np.float64)
    ordered = np.sort(rows, axis=0)
    cut = int(EXTREME * len(rows))
    usual = np.clip(rows, ordered[cut], ordered[len(rows) - 1 - cut])
    rare = usual.std(axis=0) == 0.0
    usual[:, rare] = rows[:, rare]
    return usual.mean(axis=0), usual.std(axis=0)


def merged(found: Sequence[Summary]) -> dict[str, Array]:
    """The fleet's scale, as tensors; empty where there is nothing to scale.

    Each device counts once. With n devices of which fewer than n / 4 lie, and agree, each number stays within
    those of the others.

    Example:
        >>> merged([Summary((0.0,), (3.0,)), Summary((8.0,), (3.0,))])[DEVIATION]
        array([5.], dtype=float32)
    """
    widths = Counter(len(each.means) for each in found if each.means)
    width = widths.most_common(1)[0][0] if widths else 0
    of_inputs = [each for each in found if each.means and len(each.means) == width]
    if 2 * len(of_inputs) <= len(found):
        of_inputs = []
    of_targets = [each.target for each in found if each.target]
    if 2 * len(of_targets) <= len(found):
        of_targets = []
    tensors: dict[str, Array] = {}
    if of_inputs:
        means, deviations = (
            np.array([getattr(each, name) for each in of_inputs]) for name in ("means", "deviations")
        )
        tensors[MEAN], tensors[DEVIATION] = _pooled(means, deviations)
    if of_targets:
        pairs = np.array(of_targets)
        tensors[TARGET] = np.concatenate(_pooled(pairs[:, :1], pairs[:, 1:]))
    return tensors


def of_group(fleet: Tensors, group: Sequence[Summary]) -> Tensors:
    """The scale for a group of devices: the fleet's, but for the features that are quite other ones in it.

    Example:
        >>> fleet = merged([Summary((1.0, 5.0), (0.1, 1.0))] * 4 + [Summary((100.0, 5.0), (10.0, 1.0))] * 4)
        >>> of_group(fleet, [Summary((1.0, 5.0), (0.1, 1.0))] * 4)[DEVIATION].tolist() == [
        ...     np.float32(0.1), fleet[DEVIATION][1]]
        True
    """
    if MEAN not in fleet:
        return fleet
    mean, deviation = (fleet[name].astype(np.float64) for name in (MEAN, DEVIATION))
    known = [each for each in group if len(each.means) == len(mean)]
    if not known or 2 * len(known) <= len(group):
        return fleet
    means, deviations = (
        np.array([getattr(each, name) for each in known]) for name in ("means", "deviations")
    )
    own_mean, own = (each.astype(np.float64) for each in _pooled(means, deviations))
    varies = np.median(deviations, axis=0) > RESOLUTION * np.abs(np.median(means, axis=0))
    ratio = own / deviation
    unlike = (ratio < 1 / UNLIKE) | (ratio > UNLIKE) | (np.abs(own_mean - mean) > UNLIKE * deviation)
    agreed = np.ones(len(mean), bool)
    if len(known) <= FEW:
        least, most = deviations.min(axis=0), deviations.max(axis=0)
        agreed = (most <= ALIKE * least) & (np.ptp(means, axis=0) <= ALIKE * least)
    chosen = varies & unlike & agreed
    if not chosen.any():
        return fleet
    pairs = {MEAN: (own_mean, mean), DEVIATION: (own, deviation)}
    return {
        **fleet,
        **{name: np.where(chosen, *pair).astype(np.float32) for name, pair in pairs.items()},
    }


def _pooled(means: Array, deviations: Array) -> tuple[Array, Array]:
    """(devices, features) twice -> the mean and the deviation of all devices together, (features,)."""
    mean = trimmed_mean(means)
    deviation = np.sqrt(trimmed_mean(np.square(deviations) + np.square(means - mean)))
    return mean.astype(np.float32), usable(mean, deviation)


def usable(mean: Array, deviation: Array) -> Array:
    """Deviations that can be divided by, float32: a constant stays one."""
    varies = deviation > np.maximum(RESOLUTION * np.abs(mean), np.finfo(np.float32).tiny)
    found: Array = np.where(varies, np.minimum(deviation, LARGEST), 1.0).astype(np.float32)
    return found


def scale_of(tensors: Tensors) -> dict[str, Array]:
    """The scale that a model carries; empty if it has none. Raises BadPayload for one that cannot be used."""
    found = {name: tensors[name] for name in RESERVED if name in tensors}
    if not found:
        return found
    mean, deviation, target = (found.get(name) for name in RESERVED)
    pair = mean is not None and deviation is not None and mean.ndim == 1 and mean.shape == deviation.shape
    sane = (pair or (mean is None and deviation is None)) and (target is None or target.shape == (2,))
    spreads = [each for each in (deviation, None if target is None else target[1:]) if each is not None]
    floats = all(each.dtype == np.float32 and np.isfinite(each).all() for each in found.values())
    if not (sane and floats and all((each > 0.0).all() for each in spreads)):
        raise BadPayload("the scale of the model's inputs cannot be used", "use the run's own model")
    return found


def levels(targets: Array, scale: Tensors) -> Array:
    """(n,) on which of the `LEVELS`, 0 to 3, each number to predict lies; all on 0 without their scale.

    So what describes the samples of each class describes those of each level, too.

    Example:
        >>> levels(np.array([-9.0, 0.9, 1.1, 30.0]), {TARGET: np.array([1.0, 2.0], np.float32)}).tolist()
        [0, 1, 2, 3]
    """
    mean, deviation = scale[TARGET].tolist() if TARGET in scale else (np.inf, 1.0)
    found: Array = np.searchsorted(EDGES, (targets - mean) / deviation)
    return found


def with_scale(model: Tensors, scale: Tensors) -> Tensors:
    """The same model with this scale, and no other; the same object if it has it already."""
    if all(name in model and np.array_equal(model[name], scale[name]) for name in scale):
        return model
    return {**without_scale(model), **scale}


def same(one: Tensors, other: Tensors) -> bool:
    """Whether two scales are equal."""
    return one is other or (
        one.keys() == other.keys() and all(np.array_equal(one[name], other[name]) for name in one)
    )


def without_scale(model: Tensors) -> Tensors:
    """The network's own tensors."""
    return {name: array for name, array in model.items() if name not in RESERVED}


def of_features(shape: tuple[int, ...], kind: str, numbers: Array) -> Array:
    """One number for each feature, in a form that goes together with samples of this shape and kind of type.
    Raises BadPayload where they have other features."""
    if kind != "f" or len(shape) < 2 or shape[1] != len(numbers):
        features = shape[1] if len(shape) > 1 else 0
        raise BadPayload(
            f"the run's inputs have {len(numbers)} features, and this device's have {features}",
            "give the device the same columns, or the same shape, as the others have",
        )
    return numbers.reshape(-1, *(1,) * (len(shape) - 2))
