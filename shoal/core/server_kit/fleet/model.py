"""The scales of a fleet, and the score of a partition of its devices.

Let x be a number of a device, with the error variance v, and tau the variance of the devices' own effects.
Within a group of mean m, x ~ N(m, v + tau). In each block, the means of a group equal the common mean of the
fleet with probability `EQUAL`, and are otherwise drawn from N(common mean, T) in each number: most groups
differ from the rest in some classes, and what they have in common must not count as evidence for it. The
groups of a partition have the Chinese restaurant process as their prior.

Numbers of a block are correlated, so a difference that they have in common is counted by each of them.
The log-likelihood of a block is therefore multiplied by its effective rank over its width. And no data are
quite normal, which a large fleet would be divided to explain: the log-likelihood is also multiplied by
c / (c + devices), as if the model were known to hold only to about one part in c (Miller and Dunson, Robust
Bayesian inference via coarsening, JASA 2019).
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import gammaln

from shoal.core.exchange.parts import FloatArray
from shoal.core.server_kit.clustering.cluster import Labels
from shoal.core.server_kit.fleet.evidence import (
    HEAVIEST,
    KINDS,
    MEAN,
    SHARE,
    SPREAD,
    Evidence,
    median,
)

EQUAL = 0.5
"""The probability that a group has the common mean of the fleet in a block."""
NEW_GROUP = 1.0
"""The concentration of the Chinese restaurant process: how likely a device is to begin a group of its own."""
ONE_GROUP = 3.0
"""How much more likely, as a logarithm, one group is than the process makes it: most fleets are alike, and
there are many ways to find one odd device in each of them."""
LARGEST_EFFECT = {MEAN: 0.02, SPREAD: np.inf, SHARE: np.inf}
"""The largest variance of devices' own effects within a group. For means, in units of the variance of one
sample: two groups whose means differ by less have more to gain from sharing a model than from two. Shares and
spreads by themselves are evidence, but no reason for a model of one's own."""
SCALES = {MEAN: (0.25, 4.0), SPREAD: (0.04, 1.0), SHARE: (0.02, 0.25)}
"""The smallest and the largest T, in the same units."""
SKEW = 0.5
"""The weight of spreads. Latents are seldom symmetric, so that their spread says in part what their mean has
said already."""
COARSE = 100.0
"""c: how many devices the evidence of a large fleet counts for."""
USUAL_RANK = 0.5
"""The effective rank of residuals over their width where it cannot be estimated."""
ROWS = 4
"""A block with fewer degrees of freedom has no rank of its own."""
DIFFERENCE = 4.0
"""Residuals are clipped to this many standard deviations where a scale is estimated from them."""


@dataclass(eq=False)
class Model:
    """The scales with which partitions are scored; `fitted` estimates them.

    effects: (kinds,), tau; for SPREAD a factor by which the error variance is larger than for normal samples.
    scales: (numbers,), T. ranks: (blocks,), the factors of the blocks' log-likelihoods. common: (numbers,),
    the common mean.
    precision: (devices, numbers), 1 / (v + tau), 0 where a number is unknown. moved: values minus the common
    mean, times the precision.
    """

    evidence: Evidence
    effects: FloatArray
    scales: FloatArray
    ranks: FloatArray
    common: FloatArray
    precision: FloatArray
    moved: FloatArray

    def sums(self, labels: Labels) -> tuple[FloatArray, FloatArray]:
        """(groups, numbers) each: the sums of `precision` and `moved` over each group."""
        return _sum(self.precision, labels), _sum(self.moved, labels)

    def score(self, precision: FloatArray, moved: FloatArray) -> FloatArray:
        """(...,): how much more likely groups with these sums make their devices' numbers than the common
        mean does, as a logarithm. precision, moved: (..., numbers)."""
        blocks = self.blocks(precision, moved) * self.ranks
        found: FloatArray = np.logaddexp(np.log(EQUAL), np.log1p(-EQUAL) + blocks).sum(axis=-1)
        return found

    def blocks(self, precision: FloatArray, moved: FloatArray) -> FloatArray:
        """(..., blocks): `score` of each block, if its mean is drawn from N(common, T)."""
        gain = moved**2 / (precision + 1.0 / self.scales) - np.log1p(precision * self.scales)
        return 0.5 * np.add.reduceat(gain, self.evidence.starts, axis=-1)

    def total(self, labels: Labels) -> float:
        """The score of a partition: the logarithm of its probability, up to a constant of the evidence."""
        where = self.precision > 0.0
        fit = (
            np.log(np.where(where, self.precision, 1.0))
            - self.precision * (self.evidence.values - self.common) ** 2
        )
        base = 0.5 * (fit * self.evidence.of_blocks(self.ranks)).sum()
        one = 0.0 if labels.any() else ONE_GROUP
        return float(base + one + self.score(*self.sums(labels)).sum() + prior(np.bincount(labels)).sum())


def prior(sizes: npt.ArrayLike) -> FloatArray:
    """The part of each group in the logarithm of the Chinese restaurant process, up to a constant."""
    found: FloatArray = np.log(NEW_GROUP) + gammaln(np.asarray(sizes, np.float64))
    return found


def fitted(
    evidence: Evidence, labels: Labels, ranks: FloatArray | None = None, own_effects: bool = True
) -> Model:
    """The model with the scales that fit this partition.

    ranks: None to estimate them from the residuals within the groups, which takes a partition that is fine
    enough. own_effects: False if the devices of a group are to be alike but for sampling and noise.
    """
    common = _common(evidence)
    effects = np.array([0.0, 1.0, 0.0])
    if own_effects:
        for kind in range(KINDS):
            effects[kind] = _effect(evidence, labels, common, kind)
    precision = _precision(evidence, effects)
    moved = precision * (evidence.values - common)
    if ranks is None:
        ranks = _ranks(evidence, labels, precision, moved)
    kinds = evidence.of_number
    floors = np.array([SCALES[kind][0] for kind in range(KINDS)])
    model = Model(evidence, effects, floors[kinds] * evidence.unit, ranks, common, precision, moved)
    model.scales = _scales(model, labels)
    return model


def _sum(rows: FloatArray, labels: Labels) -> FloatArray:
    order = np.argsort(labels, kind="stable")
    starts = np.searchsorted(labels[order], np.arange(labels.max() + 1))
    found: FloatArray = np.add.reduceat(rows[order], starts, axis=0)
    return found


def _precision(evidence: Evidence, effects: FloatArray) -> FloatArray:
    kinds = evidence.of_number
    spread = kinds == SPREAD
    errors = evidence.errors * np.where(spread, effects[SPREAD], 1.0)
    errors = errors + np.where(spread, 0.0, effects[kinds]) * evidence.unit
    found: FloatArray = np.where(np.isfinite(errors), 1.0 / errors, 0.0)
    return found


def _common(evidence: Evidence) -> FloatArray:
    """(numbers,): the mean of the fleet, in which no device's value counts beyond three standard deviations
    of the devices, and none has more than the weight that the median device allows."""
    known, values = np.isfinite(evidence.errors), evidence.values
    middle = median(values, known)
    reach = 3.0 * 1.4826 * median(np.abs(values - middle), known)
    weights = np.where(known, 1.0 / np.where(known, evidence.errors, 1.0), 0.0)
    weights = np.minimum(weights, HEAVIEST * median(weights, known))
    held = np.clip(values, middle - reach, middle + reach)
    found: FloatArray = (weights * held).sum(axis=0) / np.maximum(weights.sum(axis=0), 1e-300)
    return found


def _effect(evidence: Evidence, labels: Labels, common: FloatArray, kind: int) -> float:
    """The own effect with which the median device's squared residuals, from the mean of its group, are what
    is to be expected."""
    columns = evidence.of_number == kind
    shared = np.bincount(labels)[labels] > 1
    least = 1.0 if kind == SPREAD else 0.0
    if not columns.any() or not shared.any():
        return least
    part = Evidence(
        evidence.values[:, columns],
        evidence.errors[:, columns],
        evidence.unit[columns],
        np.zeros(1, np.int64),
        np.full(1, kind, np.int64),
        evidence.width,
    )

    def excess(effect: float) -> float:
        effects = np.array([0.0, 1.0, 0.0])
        effects[kind] = effect
        precision = _precision(part, effects)
        residuals, free = _residuals(labels, precision, precision * (part.values - common[columns]))
        squares, expected = (residuals**2).sum(axis=1)[shared], free.sum(axis=1)[shared]
        squares, expected = squares[expected > 1e-6], expected[expected > 1e-6]
        if not len(squares):
            return 0.0
        found = squares / expected
        return float(np.median(found) if len(found) > 6 else found.mean())

    if excess(least) <= 1.0:
        return least
    low, high = (1.0, 100.0) if kind == SPREAD else (1e-7, min(LARGEST_EFFECT[kind], 100.0))
    while high / low > 1.1:
        middle = float(np.sqrt(low * high))
        low, high = (middle, high) if excess(middle) > 1.0 else (low, middle)
    return high if kind == SPREAD or high > 2e-7 else 0.0


def _residuals(labels: Labels, precision: FloatArray, moved: FloatArray) -> tuple[FloatArray, FloatArray]:
    """(devices, numbers) each: residuals from the mean of the group in standard deviations, and the variance
    that they should have."""
    sums, means = _sum(precision, labels), _sum(moved, labels)
    means /= np.maximum(sums, 1e-300)
    root = np.sqrt(precision)
    residuals = moved / np.where(root > 0.0, root, 1.0) - root * means[labels]
    free = np.where(precision > 0.0, 1.0 - precision / np.maximum(sums[labels], 1e-300), 0.0)
    return residuals, free


def _ranks(evidence: Evidence, labels: Labels, precision: FloatArray, moved: FloatArray) -> FloatArray:
    """(blocks,): the effective rank of the residuals of a kind over its width, coarsened: (trace)^2 / |R|^2
    of their covariance R, of the median block, because groups that are not found make R of the blocks in
    which they differ look like one direction. Shares sum to one, so one of them is determined by the rest."""
    found = usual_ranks(evidence)
    for kind in (MEAN, SPREAD):
        columns, count = evidence.of_number == kind, int((evidence.kinds == kind).sum())
        residuals, free = _residuals(labels, precision[:, columns], moved[:, columns])
        shape = (len(labels), count, evidence.width)
        rows = np.clip(residuals / np.sqrt(np.maximum(free, 0.05)), -DIFFERENCE, DIFFERENCE).reshape(shape)
        known = np.asarray((free.reshape(shape) > 0.05).all(axis=2))
        counted = (free.reshape(shape).mean(axis=2) * known).sum(axis=0).tolist()
        inverse = [_inverse_rank(rows[known[:, block], block], each) for block, each in enumerate(counted)]
        inverse = [each for each in inverse if each]
        if known.sum() >= 2 * evidence.width and inverse:
            rank = 1.0 / max(float(np.median(inverse)) * evidence.width, 1.0)
            found[evidence.kinds == kind] *= rank / USUAL_RANK
    return found


def usual_ranks(evidence: Evidence) -> FloatArray:
    """(blocks,): the factors of the log-likelihoods where the ranks are not known yet."""
    width = int((evidence.of_number == SHARE).sum())
    of_kind = np.array([USUAL_RANK, SKEW * USUAL_RANK, (width - 1) / max(width, 2)])
    found: FloatArray = of_kind[evidence.kinds] * COARSE / (COARSE + evidence.devices)
    return found


def _inverse_rank(rows: FloatArray, free: float) -> float:
    """|R|^2 / (trace)^2 of (n, width) standardized residuals; 0 if there are too few of them. free: their
    degrees of freedom, as the residuals of two devices in a group of their own are one and its opposite. A
    few show that the rank is lower than usual, but not that it is higher."""
    covariance = rows.T @ rows
    trace = float(np.trace(covariance))
    if free < ROWS or trace <= 0.0:
        return 0.0
    width = rows.shape[1]
    highest = width * (USUAL_RANK if free < 2 * width else 1.0)
    # The square of an estimated correlation is too large by 1 / free on average.
    return float(max(np.square(covariance).sum() / trace**2 - 1.0 / free, 1.0 / highest))


def _scales(model: Model, labels: Labels) -> FloatArray:
    """(numbers,): T of each kind, the median over those blocks of groups that differ from the common mean."""
    evidence, sums = model.evidence, model.sums(labels)
    differ = model.blocks(*sums) > 0.0
    precision = np.maximum(sums[0], 1e-300)
    # A block that is hardly known at all may be as far away as can be: infinity is clipped below.
    with np.errstate(over="ignore"):
        squares = ((sums[1] / precision) ** 2 - 1.0 / precision) / evidence.unit
    squares = np.where(sums[0] > 0.0, squares, 0.0)
    known = np.maximum(np.add.reduceat((sums[0] > 0.0).astype(np.float64), evidence.starts, axis=1), 1.0)
    squares = np.add.reduceat(squares, evidence.starts, axis=1) / known
    found = np.empty(KINDS)
    for kind in range(KINDS):
        chosen = differ & (evidence.kinds == kind)
        lowest, highest = SCALES[kind]
        found[kind] = np.clip(np.median(squares[chosen]) if chosen.any() else lowest, lowest, highest)
    scales: FloatArray = found[evidence.of_number] * evidence.unit
    return scales
