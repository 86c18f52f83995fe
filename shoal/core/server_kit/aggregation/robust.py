"""One model from many updates, some of which may be hostile. This module knows nothing of rounds and reports.

An update is the model that a device reported minus the model that its round began with. Before every rule but
`mean`,

- its L2 norm is clipped to a multiple of a reference (`longest`): the median norm of the round, which is
  itself at most `BOUND` times the reference of the previous round, so that even a cluster with one device has
  a bound;
- its weight is capped at a share of the cluster's (`largest_share`), because a device reports the number of
  its samples itself.

In that median a device counts by its samples, because more samples mean more steps and longer updates: if
each device counted once, many tiny devices would restrain the few that have the data. But no device counts
more than twice its equal share, nor more than a third. So one device of three or more, or any group of less
than a quarter of the devices, cannot move the reference out of the range of the others' norms, whatever it
claims.

Then the rule applies. `clipped` leaves out the one update of a cluster that points away from all others
(`aggregation.lone`) and takes the weighted mean of the rest; `trimmed` is the mean of each
coordinate without its highest and lowest tenth; `median` is the median of each coordinate. The last two count
every device once, whatever it claims. `auto` chooses among the three by the number of updates. If the norms
of updates are at most B, the guarantees are:

    clipped   the model is at most a (B + |h|) away from h, the mean of the honest updates; a: the hostile
              share of the weight. One update that was left out has no effect at all
    trimmed   each coordinate is within the range of the honest values, as long as at most as many devices
              are hostile as are left out at one end
    median    each coordinate is within the range of the honest values, as long as fewer than half are hostile

Whole numbers (the counter of a batch norm) have no norm that could be clipped: every rule but `mean` takes
their median.

Norm bound: Sun et al., Can You Really Backdoor Federated Learning?, 2019. Trimmed mean and median: Yin et
al., Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates, ICML 2018.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import get_args

from shoal.core.algorithm import Rule
from shoal.core.server_kit.aggregation.coordinates import Clipped, half, mean, middle, tenth
from shoal.core.server_kit.aggregation.lone import FEWEST, MOST, lone_opponent
from shoal.core.server_kit.aggregation.survey import Survey, survey
from shoal.core.types import DeviceId, Tensors

RULES = get_args(Rule)
BOUND = 3.0
"""In units of the reference: the longest norm that counts, and the largest growth of the reference in a
round."""
CLOSE = 1.5
"""The same bound where 3 to 9 updates count: there, three times the usual length is most of the model."""
SHARE = 0.2
"""The largest share of the total weight for one update of eight or more."""
MOST_SHARE = 0.4
"""The same of three updates: less than half, whatever a device claims."""
ROUNDING = 1e-9
"""Relative: sums of weights that differ by less are equal."""
EQUAL = 1e-12
"""Relative: single weights that differ by less are equal."""
FEW, MANY = 5, 10
"""`auto`: the clipped mean below FEW updates, the median below MANY, and the trimmed mean otherwise."""


@dataclass(frozen=True, eq=False)
class Update:
    """What a device reported; it is read several times. weight: above 0, in any unit.

    origin: the model that it trained from, if it differs from that of the others. loss: its mean training
    loss, if the device released it; no rule looks at it.
    """

    model: Tensors
    weight: float
    origin: Tensors | None = None
    loss: float | None = None


@dataclass(frozen=True)
class Spread:
    """Of the updates whose mean a model has moved by. square: their mean squared length. concentration: the
    sum of the squares of their shares in the mean; 1 / n for n equal ones."""

    square: float
    concentration: float


@dataclass(frozen=True, eq=False)
class Combined:
    """reference: the norm with which updates were compared; 0 if there was none.

    clipped: for each update that was clipped, its length in units of the reference. capped: the devices whose
    weight was capped. left_out: for each update that was left out, its cosine with the others. spread: of the
    updates as they counted; None under the rule "mean", which compares nothing.
    """

    model: Tensors
    reference: float = 0.0
    clipped: Mapping[DeviceId, float] = field(default_factory=dict)
    capped: tuple[DeviceId, ...] = ()
    left_out: Mapping[DeviceId, float] = field(default_factory=dict)
    spread: Spread | None = None


def combine(
    rule: str,
    base: Tensors,
    updates: Mapping[DeviceId, Update],
    before: float = 0.0,
) -> Combined:
    """The next model, from at least one update; it has the same bits whatever the order of the updates.

    base: the model that the round began with, for all updates without an origin of their own.
    before: the reference of the previous round; 0 if there was none.
    Memory: one model, one tensor and `MATRIX` bytes, however many updates there are.
    """
    devices = sorted(updates)
    weights = {device: updates[device].weight for device in devices}
    if rule == "mean":
        return Combined(mean([(updates[device].model, weights[device]) for device in devices], base))
    origins = {device: base if (one := updates[device].origin) is None else one for device in devices}
    models = {device: updates[device].model for device in devices}
    rule = chosen(rule, len(devices))
    clips, allowed = rule == "clipped", capped(weights, largest_share(len(devices)))
    compared = clips and FEWEST <= len(devices) <= MOST
    seen = survey(models, origins, base, allowed if clips else None, compared)
    left_out = _left_out(devices, seen)
    devices = [device for device in devices if device not in left_out]
    weights = {device: weights[device] for device in devices}
    norms = {device: seen.norms[device] for device in devices}
    usual = reference(norms, weights, before)
    # A long update keeps its direction and is shortened, rather than dropped: the honest device with unusual
    # data still counts, and a hostile one gains nothing by a larger norm.
    bound = longest(len(devices))
    clipped = {device: size / usual for device, size in norms.items() if 0.0 < bound * usual < size}
    parts: dict[DeviceId, Tensors] = {device: models[device] for device in devices}
    parts |= {
        device: Clipped(models[device], origins[device], bound / times) for device, times in clipped.items()
    }
    if not clips:
        cut = tenth(len(devices)) if rule == "trimmed" else half(len(devices))
        spread = _spread(norms, dict.fromkeys(devices, 1.0), bound * usual)
        return Combined(middle(list(parts.values()), base, cut), usual, clipped, spread=spread)
    model = None if left_out or clipped else seen.mean
    allowed = capped(weights, largest_share(len(devices)))
    del seen  # a mean that is not used is a model's worth of memory
    if model is None:  # something had to be corrected, or workers help
        model = mean([(parts[device], allowed[device]) for device in devices], base)
    whole = {name: array for name, array in base.items() if array.dtype.kind != "f"}
    found = {**model, **middle(list(parts.values()), whole, half(len(devices)))}
    heavy = tuple(device for device in devices if allowed[device] < weights[device])
    spread = _spread(norms, allowed, bound * usual)
    return Combined({name: found[name] for name in base}, usual, clipped, heavy, left_out, spread)


def chosen(rule: str, updates: int) -> str:
    """The rule for this many updates: `auto` resolved."""
    if rule != "auto":
        return rule
    return "clipped" if updates < FEW else "median" if updates < MANY else "trimmed"


# -- before the rule ----------------------------------------------------------------------------------------


def longest(updates: int) -> float:
    """The longest norm that counts among this many updates, in units of the reference."""
    return CLOSE if FEWEST <= updates < MANY else BOUND


def largest_share(updates: int) -> float:
    """The largest share of the total weight that one of this many updates may have.

    One and a half equal shares, but no more than `MOST_SHARE`, and `SHARE` of eight or more. Two devices
    cannot tell which of them to believe, so there the claims stand.
    """
    return max(SHARE, min(1.5 / updates, MOST_SHARE)) if updates >= FEWEST else 1.0


def _left_out(devices: Sequence[DeviceId], seen: Survey) -> dict[DeviceId, float]:
    """The update that points away from all others, if there is one, and its cosine with them."""
    found = None if seen.products is None else lone_opponent(seen.products)
    return {devices[found[0]]: found[1]} if found else {}


def _spread(norms: Mapping[DeviceId, float], weights: Mapping[DeviceId, float], bound: float) -> Spread:
    """bound: the longest norm that counts; 0 if no model moved."""
    total = math.fsum(weights.values())
    shares = {device: weight / total for device, weight in weights.items()}
    square = math.fsum(share * min(norms[device], bound) ** 2 for device, share in shares.items())
    return Spread(square, math.fsum(share**2 for share in shares.values()))


def reference(norms: Mapping[DeviceId, float], weights: Mapping[DeviceId, float], before: float) -> float:
    """The median of the norms, at most `BOUND` times `before` if there was a reference before; 0 if no model
    moved.

    Devices that did not move their model say nothing about how far training goes.
    """
    moved = sorted(device for device, size in norms.items() if size > 0.0)
    if not moved:
        return 0.0
    share = max(1.0 / len(moved), min(2.0 / len(moved), 1.0 / 3.0))
    counted = capped({device: weights[device] for device in moved}, share)
    usual = _median([(norms[device], counted[device]) for device in moved])
    return min(usual, BOUND * before) if before > 0.0 else usual


def _median(values: Iterable[tuple[float, float]]) -> float:
    """The weighted median; the mean of two values if the weight divides evenly between them."""
    ordered = sorted(values)
    half = math.fsum(weight for _, weight in ordered) / 2.0
    reached = 0.0
    for (value, weight), (following, _) in pairwise([*ordered, ordered[-1]]):
        reached += weight
        if reached >= half * (1.0 - ROUNDING):
            return (value + following) / 2.0 if reached <= half * (1.0 + ROUNDING) else value
    return ordered[-1][0]


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
