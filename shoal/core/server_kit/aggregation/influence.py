"""How far a device can move a model, whatever it sends and claims: the rules, on blocks of numbers.

Four rules, each of which a device cannot get around by what it says of itself:

- `believed`: a device counts for no more samples than others have, and never for much more than its share;
- `bearings`, `opposed`: where most devices agree on a direction, a minority of less than a third that moves
  the other way is left out. Honest devices with other labels move aside, and hardly ever back;
- `settled`: each update pulls the model away from the middle of all, no farther than the middle device does.
  Direction and length are bounded together, and in each tensor by itself: a liar that puts all of its length
  into one small tensor gains nothing.

With n devices of which k < n / 4 lie in agreement, and s the share of these k (k / n, or up to 2 k / n where
the honest differ in size and the liars claim to be large): the model is at most 2 s r from the one that the
others make around the same middle, r: the reach, and that is the distance of an honest device from an honest
middle, since neither can leave the range of the honest. It is that far only if all honest devices stand at
one point. Over fleets like real ones, and liars that know the rule, it is at most 2 s times the length of
the middle honest update, middle and reach included (`tests/core/server_kit/test_influence.py`): near a
quarter, liars on one side carry the middle itself by 1.7 to 2 k / n of how far the honest scatter.
Whom the second rule leaves out can depend on liars, too: with that it was 3.5 k / n at most.

Sources: centered clipping: Karimireddy et al., Learning from History for Byzantine Robust Optimization,
ICML 2021. The median of coordinates as the middle: Yin et al., Byzantine-Robust Distributed Learning,
ICML 2018.
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from shoal.core.exchange.parts import FloatArray
from shoal.core.exchange.tensors import blocks
from shoal.core.server_kit.aggregation.trimmed_mean import half, trimmed_mean, width_of
from shoal.core.server_kit.clustering.distances import LONGEST
from shoal.core.types import Array, DeviceId

MIN_UPDATES = 3
"""Updates that have a middle. Two devices cannot tell which of them to believe."""
MAX_WEIGHT = 2.0
"""The largest weight, in equal shares. With 1.5, fleets of 20 to 300 samples lost one point."""
MAX_SHARE = 0.4
"""The same of few updates: less than half, whatever a device claims."""
MINORITY = 4
"""Liars who are fewer than one of this many cannot carry a median far: the contract is for them."""
FEW = 3
"""Fewer than one of this many may be left out together. With a quarter, two liars stayed in a group of seven
or eight, and took it to chance. Honest minorities of three or four of ten, with a fifth of the others'
classes, did not move back (seed 41)."""
AGREED = 0.25
"""The median cosine from which on devices agree, times the root of their number."""
BACK = 0.5
"""An update moves back if its cosine is below minus this part of the median one. With ten devices at seeds 41
and 42, those of liars were at -0.7 to -1.6 of it, on digits and on HAPT, and those of honest devices above
0.3, with few of the others' classes or rotated labels; with none of them, at -0.1 to -0.7."""
EQUAL = 1e-12
"""Relative: single weights that differ by less are equal."""


# -- numbers of samples -------------------------------------------------------------------------------------


def believed(weights: Mapping[DeviceId, float]) -> dict[DeviceId, float]:
    """The weights that count: none above what enough others claim, and none above `MAX_WEIGHT` equal shares.

    A claim counts up to the largest one but a quarter of the devices, and at least one. So k liars, fewer
    than a quarter, weigh no more than the k largest honest devices, and gain nothing where all are alike.
    """
    count = len(weights)
    if count < MIN_UPDATES:
        return dict(weights)
    above = max(1, -(-count // MINORITY) - 1)
    most = sorted(weights.values(), reverse=True)[above]
    share = max(1.0 / count, min(MAX_WEIGHT / count, MAX_SHARE))
    return capped({device: min(weight, most) for device, weight in weights.items()}, share)


def capped(weights: Mapping[DeviceId, float], share: float) -> dict[DeviceId, float]:
    """The weights, none above a share of their sum after capping. share: at least 1 / n.

    If the k heaviest are capped at a share s each, the cap is s / (1 - k s) times the sum of the others.
    """
    heaviest = sorted(weights.values(), reverse=True)
    above = 0
    while True:
        limit = share / (1.0 - above * share) * math.fsum(heaviest[above:])
        if heaviest[above] <= limit or (above + 1) * share >= 1.0:
            # A rounding error above the limit does not count: equal weights stay as they are, to the bit.
            limit = max(limit, *(weight for weight in heaviest if weight <= limit * (1.0 + EQUAL)), 0.0)
            return {device: min(weight, limit) for device, weight in weights.items()}
        above += 1


# -- directions ---------------------------------------------------------------------------------------------


def bearings(models: Sequence[Array], origin: Array) -> FloatArray:
    """(4, n): how n models lie to their middle in some coordinates, in sums that add up over coordinates.

    models: n times (width,). origin: (width,), with which all of them began. The rows: the squared lengths of
    the updates; their products with the middle one; its squared length; and the squared distances of the
    models from their middle.
    """
    found, width = np.zeros((4, len(models))), width_of(len(models))
    spare = np.empty((4, min(width, origin.size)))
    for block in blocks(origin.size, width):
        rows = [model[block] for model in models]
        old, middle, step, products = spare[:, : rows[0].size]
        np.copyto(old, origin[block])
        center = _step(trimmed_mean(rows, half(len(rows))), old, middle)
        found[2] += _product(center, center, products)
        for sums, row in zip(found.T, rows, strict=True):
            _step(row, old, step)
            sums[0] += _product(step, step, products)
            sums[1] += _product(step, center, products)
    # Of a model so near to the middle that rounding decides, the pull is as short.
    np.maximum(found[0] - 2.0 * found[1] + found[2], 0.0, out=found[3])
    return found


def bearing(squares: FloatArray, products: FloatArray, middle: FloatArray) -> FloatArray:
    """(n,): the cosine of each update with the middle of all without its own part in it; NaN where one of
    them is zero.

    From the first three rows of `bearings`. An update has a part of 1 / n in the middle, of its length up to
    the median one. With that, those of ten devices that have nothing in common seem to agree, with cosines
    of 0.25, and one that moves back a little seems to move aside.
    """
    lengths, count = np.sqrt(squares), len(squares)
    moved = lengths[lengths > 0.0]
    parts = np.minimum(lengths, float(np.median(moved)) if len(moved) else 0.0) / count
    along = np.divide(products, lengths, out=np.zeros(count), where=lengths > 0.0)
    others = np.sqrt(np.maximum(middle - 2.0 * parts * along + np.square(parts), 0.0))
    known = (lengths > 0.0) & (middle > 0.0) & (others > 0.0)
    found: FloatArray = np.divide(along - parts, others, out=np.full(count, np.nan), where=known)
    return np.clip(found, -1.0, 1.0, out=found)


def _step(values: Array, old: FloatArray, out: FloatArray) -> FloatArray:
    """The values, less the old ones, and no longer than what can be squared."""
    np.copyto(out, values)
    with np.errstate(over="ignore"):
        out -= old
    return np.clip(out, -LONGEST, LONGEST, out=out) if values.dtype == np.float64 else out


def _product(one: FloatArray, other: FloatArray, spare: FloatArray) -> float:
    """The inner product. The last bits of one that BLAS makes may depend on where the arrays lie in memory,
    and on the number of threads. spare: is overwritten."""
    return float(np.multiply(one, other, out=spare).sum())


def opposed(cosines: Mapping[DeviceId, float]) -> dict[DeviceId, float]:
    """The devices whose updates move back while the others agree, and their cosines; at most a minority.

    cosines: see `bearing`, of the devices that moved.
    """
    if len(cosines) < MIN_UPDATES:
        return {}
    usual = float(np.median(list(cosines.values())))
    if usual < AGREED / math.sqrt(len(cosines)):
        return {}
    back = {device: cosine for device, cosine in cosines.items() if cosine < -BACK * usual}
    return back if len(back) <= max(1, (len(cosines) - 1) // FEW) else {}


# -- pulls --------------------------------------------------------------------------------------------------


def pulls(apart: FloatArray, shares: FloatArray) -> tuple[FloatArray, FloatArray]:
    """How much of its distance from the middle each of n models counts with: (n,), shares included; and (n,),
    the squared distances that are left.

    apart: (n,), the squared distances in one tensor. shares: (n,), of the weight; they sum to 1.
    """
    lengths = np.sqrt(apart)
    reach = float(np.median(lengths))
    factors = np.divide(reach, lengths, out=np.ones(len(lengths)), where=lengths > reach)
    return shares * factors, np.square(lengths * factors)


def settled(
    models: Sequence[Array], scales: FloatArray, dtype: "np.dtype[np.generic]"
) -> tuple[Array, float]:
    """Some coordinates of n models, combined: their middle, moved by the pull of each one; and the squared
    length of that move.

    models: n times (width,). scales: (n,), see `pulls`.
    """
    found, square = np.empty(models[0].size, dtype), 0.0
    width = width_of(len(models))
    spare = np.empty((2, min(width, found.size)))
    for block in blocks(found.size, width):
        rows = [model[block] for model in models]
        move, pull = spare[:, : rows[0].size]
        center = trimmed_mean(rows, half(len(rows)))
        move[:] = 0.0
        for row, scale in zip(rows, scales, strict=True):
            _step(row, center, pull)
            pull *= scale
            move += pull
        square += _product(move, move, pull)
        move += center
        found[block] = move
    return found, square
