"""Do new samples look like those that a model was chosen for? A two-sample test that assumes no distribution.

    E = 2 mean |r - x| - mean |r - r'| - mean |x - x'|        (Szekely and Rizzo, Energy statistics, JSPI
    2013)

of reference samples r and new ones x, by what the model says of them and by its latents, each coordinate in
standard deviations of both together. How large E is by chance is found by exchanging samples between the two
groups: where both come from one source, every exchange is as probable as what was found, so that a test at
level a is wrong in at most a of such cases, whatever the data are.

Neighbors in time are alike in most recordings, so whole blocks of samples are exchanged, in their order.
Where they are much alike, as prices are, or what one person does, that is not enough. Then both groups in
their order are taken as a ring, which is cut in two at every other place as well: what has moved is cut best
between the groups, and what differs from stretch to stretch by itself is cut as well elsewhere, so that a
test at level a is wrong in about a of such cases, if the ring is many times as long as what samples remember.
"""

from collections.abc import Mapping

import numpy as np

from shoal.core.data.seeds import generator
from shoal.core.exchange.parts import FloatArray
from shoal.core.types import Array

LEVEL = 0.01
"""How often samples like those of the reference are taken for others. Where a stretch as long as either group
is not like the next one, as with prices, that is more often; `moved.TOLERATED` allows for it."""
MAX_BLOCKS, MIN_BLOCKS = 12, 6
"""Blocks of the smaller group: fewer than 6 make no difference that is rarer than `LEVEL`."""
APART = 3.0
"""A block is as long as this many times the samples that one tells about. Chosen on synthetic series, with
seeds 38 to 42; where samples remember more than a sixth of their group, no length helps."""
REMEMBERED = 0.2
"""What neighbors have in common above which the ring is cut, too. That takes 100 samples in all, and finds
less where data move in the midst of the new samples. Chosen as `APART` was; elec2 had been looked at."""
MIN_SAMPLES = 16
"""Samples of a group below which nothing is compared."""
EXCHANGES = 999


def chance(reference: Mapping[str, Array], present: Mapping[str, Array]) -> float:
    """How probable a difference as large as this one is by chance: a p-value of at least 1 / 1,000.

    reference, present: views of the same names, (n, d) and (m, d) each, in the order of time. The view in
    which they differ most decides, and that it was chosen so is counted. 1 where there are too few samples.

    Example:
        >>> rng = np.random.default_rng(1)
        >>> one, same, other = rng.normal(0, 1, (60, 2)), rng.normal(0, 1, (60, 2)), rng.normal(1, 1, (60, 2))
        >>> chance({"latents": one}, {"latents": other})
        0.001
        >>> chance({"latents": one}, {"latents": same}) > LEVEL
        True
    """
    n, m = (min(len(each) for each in views.values()) for views in (reference, present))
    if min(n, m) < MIN_SAMPLES:
        return 1.0
    common = _common(reference, present)
    length = _length(common, min(n, m))
    ones, others = n // length, m // length
    between = [
        _distances(reference[name][-ones * length :], present[name][-others * length :]) for name in reference
    ]
    groups = _groups(ones, others)
    exchanged = _rank([_energies(_of_blocks(each, length), groups) for each in between])
    if common <= REMEMBERED:
        return exchanged
    return max(exchanged, _rank([_cuts(each, ones * length) for each in between]))


def _rank(energies: list[FloatArray]) -> float:
    """Of each view, what was found and what chance made of it: the share that is at least as far apart."""
    found = np.stack(energies)
    # Of each view, how many have an energy at least as large: the same figure for all of them.
    above = np.stack([len(each) - np.searchsorted(np.sort(each), each, "left") for each in found])
    fewest = above.min(axis=0)
    return float((fewest <= fewest[0]).mean())


def _common(reference: Mapping[str, Array], present: Mapping[str, Array]) -> float:
    """The share of a sample that the one before it tells, in the view where that is most: 0 to 0.99."""
    longest = 0.0
    for name in reference:
        common, spread = 0.0, 1e-12
        for each in (reference[name], present[name]):
            points = np.nan_to_num(each.astype(np.float64), posinf=0.0, neginf=0.0)
            points = points - points.mean(axis=0)
            common += float((points[1:] * points[:-1]).sum())
            spread += float((points**2).sum())
        longest = max(longest, common / spread)
    return min(longest, 0.99)


def _length(common: float, fewest: int) -> int:
    """Samples of a block: more, the more neighbors in time have in common."""
    longest = APART * (1.0 + common) / (1.0 - common)
    usual, most = max(fewest // MAX_BLOCKS, 1), max(fewest // MIN_BLOCKS, 1)
    return min(max(usual, int(longest) if longest > 2.0 * APART else 1), most)


def _groups(ones: int, others: int) -> FloatArray:
    """(blocks, 1 + EXCHANGES): which blocks are in the first group; the first column is what was found."""
    rng, blocks = generator(0, "drift"), ones + others
    found = np.zeros((1 + EXCHANGES, blocks))
    found[:, :ones] = 1.0
    found[1:] = rng.permuted(found[1:], axis=1)
    return found.T


def _distances(reference: Array, present: Array) -> FloatArray:
    """(n + m, n + m), of samples whose coordinates have a deviation of 1."""
    points = np.nan_to_num(np.concatenate([reference, present]).astype(np.float64), posinf=0.0, neginf=0.0)
    spread = points.std(axis=0)
    points = (points - points.mean(axis=0)) / np.where(spread > 0.0, spread, 1.0)
    squares = (points**2).sum(axis=1)
    apart = squares[:, None] + squares[None] - 2.0 * points @ points.T
    found: FloatArray = np.sqrt(np.maximum(apart, 0.0))
    return found


def _of_blocks(between: FloatArray, length: int) -> FloatArray:
    """(blocks, blocks): the sums of the distances of their samples."""
    blocks = len(between) // length
    found: FloatArray = between.reshape(blocks, length, blocks, length).sum((1, 3))
    return found


def _cuts(between: FloatArray, ones: int) -> FloatArray:
    """(n + m,): the energies of all cuts of the ring into n and m neighbors, that found first. ones: n."""
    everyone = len(between)
    others = everyone - ones
    first = (ones + np.arange(everyone)) % everyone  # of the m
    upto = np.concatenate([np.zeros((everyone, 1)), np.cumsum(between, axis=1)], axis=1)

    def to_next(row: Array) -> FloatArray:
        """The distances of these samples to m neighbors, of which the first is `first`."""
        end = first + others
        around = upto[row, np.maximum(end - everyone, 0)]
        found: FloatArray = upto[row, np.minimum(end, everyone)] - upto[row, first] + around
        return found

    # From cut to cut, the first of the m leaves them and the one behind the last comes.
    comes = (first + others) % everyone
    change = 2.0 * (to_next(comes) - between[comes, first] - to_next(first))
    own = between[ones:, ones:].sum() + np.concatenate([[0.0], np.cumsum(change)[:-1]])
    to_all = np.concatenate([[0.0], np.cumsum(np.tile(upto[:, -1], 2))])
    across = to_all[first + others] - to_all[first] - own
    rest = between.sum() - own - 2.0 * across
    return _rounded(2.0 * across / (ones * others) - rest / ones**2 - own / others**2)


def _energies(sums: FloatArray, groups: FloatArray) -> FloatArray:
    """(1 + EXCHANGES,): the energy of each division into two groups."""
    to_first = sums @ groups
    own = (groups * to_first).sum(axis=0)
    across = to_first.sum(axis=0) - own
    others = sums.sum() - own - 2.0 * across
    ones = groups.sum(axis=0)
    rest = len(groups) - ones
    return _rounded(2.0 * across / (ones * rest) - own / ones**2 - others / rest**2)


def _rounded(found: FloatArray) -> FloatArray:
    """So that equal ones are equal."""
    return np.asarray(np.round(found / (np.abs(found).max() or 1.0), 9), np.float64)
