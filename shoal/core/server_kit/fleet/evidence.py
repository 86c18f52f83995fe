"""Descriptors as numbers that can be compared, each with the variance of its error.

The numbers of a device are in blocks. A block belongs to one class and one kind:

    mean      the mean of each latent
    spread    the logarithm of the deviation of each latent
    share     one block for all classes: the arcsine square root of each class's share of the samples, whose
              error is 1 / (4 n) whatever the share

Where no class is known, and in addition where there is privacy noise, the moments of all samples together
form one more block of each kind: a shift of all samples can be too faint in the single classes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import digamma, gammainc, gammaincc, gammaincinv, polygamma

from shoal.core.exchange.parts import Descriptor, FloatArray
from shoal.core.server_kit.descriptors import Table, aligned

MEAN, SPREAD, SHARE = 0, 1, 2
KINDS = 3
PRIOR_SAMPLES = 30.0
"""The variance of a class within a device is an estimate, and with long tails not independent of the mean.
That of all devices counts as this many samples of it."""
HEAVIEST = 2.0
"""Where a scale of the fleet is estimated, no device counts for more than this multiple of the median one."""
SEEN = 8.0
"""The network was trained by these samples: a device's update moves the latents of all of its samples the
same way, and the model has a share of 1 / devices of it. So the variance of a mean is larger than that of
fresh samples by this over the square of the number of devices. Chosen of 4, 6, 8, 10 and 12 with three to ten
devices of 40 to 150 samples, on digits (seeds 30 to 35) and MNIST (30 to 33). In fleets of eight to fourteen
(seeds 40 to 42) there are no false groups without it, and 2 / devices joined true ones."""
MIN_FREE = 4.0
"""A variance with fewer degrees of freedom is no evidence: its logarithm is far from normal."""
FARTHEST = 100.0
"""Standard deviations of a sample, and typical distances between devices, beyond which all is equally far."""
MIN_VARIANCE = 1e-9
"""A coordinate whose variance is below this share of the largest one never varies (a dead unit)."""


@dataclass(frozen=True, eq=False)
class Evidence:
    """values, errors: (devices, numbers), errors as variances, infinite where a number is unknown.

    unit: (numbers,), the variance of one sample in each number. starts: (blocks,), the first number of each
    block. kinds: (blocks,), MEAN, SPREAD or SHARE. width: the numbers of a block of latents.
    """

    values: FloatArray
    errors: FloatArray
    unit: FloatArray
    starts: npt.NDArray[np.int64]
    kinds: npt.NDArray[np.int64]
    width: int

    @property
    def devices(self) -> int:
        return len(self.values)

    @property
    def of_number(self) -> npt.NDArray[np.int64]:
        """(numbers,): the kind of each number."""
        return self.of_blocks(self.kinds)

    def of_blocks(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """(numbers,): for each number, the value of its block."""
        return np.repeat(values, np.diff(np.append(self.starts, self.values.shape[1])))


def evidence(described: Sequence[Descriptor], shares: bool = True) -> Evidence:
    """The evidence in the descriptors of a fleet.

    shares: False leaves out how often the classes occur, and means over all classes, which depend on that.
    Raises ValueError if `described` is empty.
    """
    table = aligned(described)
    rows = _rows(table, shares)
    unit = _within(table)
    columns = [*_means(table, rows, unit), *_spreads(table, rows, unit)]
    if shares and table.counts.shape[1] > 2:
        columns.append(_shares(table))
    columns = [_centered(column) for column in columns if np.isfinite(column[1]).any()]
    if not columns:  # devices with a single sample each, say: one block that is unknown everywhere
        unknown = np.full((len(described), table.means.shape[2]), np.inf)
        columns = [(np.zeros_like(unknown), unknown, np.ones(table.means.shape[2]), MEAN)]
    widths = np.array([column[0].shape[1] for column in columns], np.int64)
    values, errors = (np.hstack([column[part] for column in columns]) for part in (0, 1))
    return Evidence(
        values,
        errors,
        np.concatenate([column[2] for column in columns]),
        np.cumsum(widths) - widths,
        np.array([column[3] for column in columns], np.int64),
        table.means.shape[2],
    )


def _centered(column: "_Column") -> "_Column":
    """The block relative to the median device. Numbers that are farther from it than could matter are brought
    nearer: sums with them would lose the others' digits."""
    values, errors, unit, kind = column
    known = np.isfinite(errors)
    moved = np.where(known, values - median(values, known), 0.0)
    scatter = 1.4826 * median(np.abs(moved), known)
    # One sample far out multiplies a deviation, but two groups of devices hardly differ by that much.
    reach = 3.0 * scatter + MIN_VARIANCE if kind == SPREAD else FARTHEST * (np.sqrt(unit) + scatter)
    return np.clip(moved, -reach, reach), errors, unit, kind


_Column = tuple[FloatArray, FloatArray, FloatArray, int]
"""Values, errors, unit and kind of a block."""


def _rows(table: Table, shares: bool) -> npt.NDArray[np.bool_]:
    """(devices, 1 + classes): which rows of a descriptor are evidence."""
    rows = table.known & (table.counts > 1.0)
    rows[:, 0] &= ~rows[:, 1:].any(axis=1) | (table.noisy & shares)
    return rows


def _within(table: Table) -> FloatArray:
    """(1 + classes, l): the variance of one sample within a device, a weighted mean over the devices in which
    no device counts for more than the others' median allows."""
    variances, free = _sampled(table)
    middle, usual = median(variances, free > 0.0), median(free, free > 0.0)
    weights = np.minimum(free, HEAVIEST * usual)
    # An honest variance with m degrees of freedom scatters by sqrt(2 / m).
    reach = 1.0 + 4.0 * np.sqrt(2.0 / np.maximum(free, 1.0))
    held = np.clip(variances, middle / reach, middle * reach)
    pooled: FloatArray = (weights * held).sum(axis=0) / np.maximum(weights.sum(axis=0), 1e-300)
    pooled = pooled / _kept(np.maximum(usual, 1.0))
    # Few samples of a class say little about its variance; other classes' variances are about as large.
    total = weights[:, 1:].sum(axis=0)
    others = (total * pooled[1:]).sum(axis=0) / np.maximum(total.sum(axis=0), 1e-300)
    pooled[1:] = (total * pooled[1:] + PRIOR_SAMPLES * others) / (total + PRIOR_SAMPLES)
    return np.maximum(pooled, MIN_VARIANCE * max(float(pooled.max()), 1e-30))


def _kept(free: FloatArray) -> FloatArray:
    """How much of a variance with this many degrees of freedom is left on average after the clipping."""
    shape = free / 2.0
    middle, reach = gammaincinv(shape, 0.5) / shape, 1.0 + 4.0 * np.sqrt(2.0 / free)
    low, high = middle / reach, middle * reach
    inside = gammainc(shape + 1.0, shape * high) - gammainc(shape + 1.0, shape * low)
    found: FloatArray = inside + low * gammainc(shape, shape * low) + high * gammaincc(shape, shape * high)
    return found


def median(values: FloatArray, known: npt.NDArray[np.bool_]) -> FloatArray:
    """The median over the first axis of the values that are known; 0 where none is."""
    known = np.broadcast_to(known, values.shape)
    some = known.any(axis=0)
    found: FloatArray = np.nanmedian(np.where(known | ~some, np.where(known, values, 0.0), np.nan), axis=0)
    return found


def _sampled(table: Table) -> tuple[FloatArray, FloatArray]:
    """(devices, 1 + classes, l) variances of one sample, and (devices, 1 + classes, 1) their degrees of
    freedom; 0 where they are unknown."""
    counts = table.counts[:, :, None]
    free = np.where(table.known[:, :, None], np.maximum(counts - 1.0, 0.0), 0.0)
    # Descriptors contain the deviation of the samples themselves, which is too small as an estimate.
    variances = np.where(free > 0.0, table.variances * counts / np.maximum(free, 1.0), 0.0)
    return variances, free


def _means(table: Table, rows: npt.NDArray[np.bool_], unit: FloatArray) -> list[_Column]:
    variances, free = _sampled(table)
    shrunk = (PRIOR_SAMPLES * unit + free * variances) / (PRIOR_SAMPLES + free)
    seen = 1.0 + SEEN / len(table.counts) ** 2
    errors = seen * shrunk / np.maximum(table.counts[:, :, None], 1.0) + table.mean_noise
    errors = np.where(rows[:, :, None], np.maximum(errors, MIN_VARIANCE * unit), np.inf)
    values = np.where(np.isfinite(errors), table.means, 0.0)
    return [(values[:, row], errors[:, row], unit[row], MEAN) for row in range(rows.shape[1])]


def _spreads(table: Table, rows: npt.NDArray[np.bool_], unit: FloatArray) -> list[_Column]:
    """The logarithm of an estimated variance with m degrees of freedom is, for normal samples, too low by
    psi(m / 2) - ln(m / 2), and its variance is psi'(m / 2)."""
    variances, free = _sampled(table)
    own = variances > 1e-3 * unit
    known = rows[:, :, None] & (free >= MIN_FREE) & own
    half = np.maximum(free, 2.0) / 2.0
    safe = np.where(known, variances, 1.0)
    values = np.where(known, (np.log(safe) - digamma(half) + np.log(half)) / 2.0, 0.0)
    errors = polygamma(1, half) / 4.0 + table.deviation_noise / safe
    errors = np.where(known, errors, np.inf)
    one = np.ones(unit.shape[1])
    return [(values[:, row], errors[:, row], one, SPREAD) for row in range(rows.shape[1])]


def _shares(table: Table) -> _Column:
    counts, noise = np.maximum(table.counts[:, 1:], 0.0), table.count_noise[:, 1:]
    total = np.maximum(counts.sum(axis=1, keepdims=True), 1.0)
    shares = np.clip(counts / total, 0.0, 1.0)
    errors = 0.25 / total + noise / (4.0 * total**2 * np.maximum(shares, 1.0 / total))
    known = np.isfinite(errors) & table.known[:, 1:].any(axis=1, keepdims=True)
    values = np.where(known, np.arcsin(np.sqrt(shares)), 0.0)
    return values, np.where(known, errors, np.inf), np.ones(shares.shape[1]), SHARE
