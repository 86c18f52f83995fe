"""The next models of a run from a round's reports. All averaging of trained models happens here.

The order of the reports never changes a model: updates are sorted by device id before they are combined, and
all sums are taken in float64, whatever the type of the model's tensors.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from heapq import nsmallest
from types import MappingProxyType

from shoal.core.algorithm import Report
from shoal.core.exchange.tensors import weighted_mean
from shoal.core.server_kit.aggregation.divergence import LossHistory
from shoal.core.server_kit.aggregation.guard import Guard
from shoal.core.server_kit.aggregation.influence import opposed
from shoal.core.server_kit.aggregation.noised import Noise, loudness, noised
from shoal.core.server_kit.aggregation.robust import (
    BOUND,
    Combined,
    Update,
    combine,
    reference,
)
from shoal.core.server_kit.aggregation.update_geometry import geometry_of, norm
from shoal.core.server_kit.standard import trained
from shoal.core.texts import listed
from shoal.core.types import DeviceId, ModelKey, Tensors

ALL = ""
"""The key under which a guard stores what concerns all models together."""
TOGETHER = 1 << 28
"""Bytes of updates that are in memory at a time where devices' models are compared."""
NOWHERE_ELSE: Mapping[DeviceId, Tensors] = MappingProxyType({})


def _judged(
    strikes: Mapping[DeviceId, int], took_part: Iterable[DeviceId], left_out: Iterable[DeviceId]
) -> dict[DeviceId, int]:
    """A model's strikes after a round: one more for each update that was left out, none for one that
    counted."""
    absent = {device: count for device, count in strikes.items() if device not in set(took_part)}
    return absent | {device: strikes.get(device, 0) + 1 for device in left_out}


def next_models(
    models: Mapping[ModelKey, Tensors],
    reports: Sequence[Report],
    rule: str | Noise,
    guard: Guard,
    shares: Mapping[DeviceId, Mapping[ModelKey, float]] | None = None,
    origins: Mapping[DeviceId, Tensors] = NOWHERE_ELSE,
) -> tuple[dict[ModelKey, Tensors], Guard]:
    """Each of `models` after this round's reports of training; a model without updates is unchanged.

    shares: of each device in the models that it has a part in, 0 to 1; None: every device has all of each.
    rule: see `aggregation.robust`; "mean" is FedAvg, Algorithm 1, and FLUX, Algorithm 1, "weighted
    aggregation". An update's weight is the number of its samples times the device's share in the model. If
    the server adds noise, the weight is the share only, and the shares of a device sum to at most 1.
    origins: the model that a device trained from, if it is not the model that its update now counts in.
    """
    everything = dict.fromkeys(models, 1.0)
    updates: dict[ModelKey, dict[DeviceId, Update]] = {key: {} for key in models}
    for device, update in trained(reports).items():
        examples = 1 if isinstance(rule, Noise) else update.examples
        loss = None if update.private else update.loss
        own = everything if shares is None else shares.get(device, {})
        for key in own.keys() & models.keys():
            updates[key][device] = Update(update.model, examples * own[key], origins.get(device), loss)
    return combined_models(models, updates, rule, guard)


def steadied(
    before: Mapping[ModelKey, Tensors],
    after: Mapping[ModelKey, Tensors],
    devices: Mapping[ModelKey, int],
    enough: int,
) -> dict[ModelKey, Tensors]:
    """The models of a round, those with few devices moved only a part of the way from what they were before.

    devices: how many trained each model in this round; a model without any is left as it is in `after`. With
    m devices, fewer than `enough`, a model goes (m + 1) / (enough + 1) of the way.

    The mean of many devices' updates is steady, and that of one or two scatters as their last batches do. A
    shorter step is a mean over rounds instead of one over devices (for one device, the Lookahead of
    Zhang et al., NeurIPS 2019).
    """
    found = dict(after)
    for key in after.keys() & before.keys():
        if 0 < devices.get(key, 0) < enough:
            step = (devices[key] + 1) / (enough + 1)
            found[key] = weighted_mean([(after[key], step), (before[key], 1.0 - step)])
    return found


def combined_models(
    models: Mapping[ModelKey, Tensors],
    updates: Mapping[ModelKey, Mapping[DeviceId, Update]],
    rule: str | Noise,
    guard: Guard,
) -> tuple[dict[ModelKey, Tensors], Guard]:
    """Each of `models` after its own `updates`: for reports that contain several models, for example.

    An update of weight 0 does not count. A model none of whose updates counts is unchanged.
    """
    found = dict(models)
    references, of_round = dict(guard.references), dict(guard.of_round)
    strikes, histories, spreads = dict(guard.strikes), dict(guard.histories), {}
    if isinstance(rule, Noise) and rule.by_devices:
        rule = "mean"
    learning = nsmallest(2, ((each.best, key) for key, each in guard.histories.items() if each.learns))
    for key, base in models.items():
        # Sorted by device id: sums of floating-point numbers depend on the order of their terms.
        known = sorted(updates.get(key, {}).items())
        own = {device: update for device, update in known if update.weight > 0.0}
        if rule != "mean" and not isinstance(rule, Noise):
            held = guard.held(key)
            own = {device: update for device, update in own.items() if device not in held}
        if not own:
            continue
        if isinstance(rule, Noise):
            found[key] = noised(base, own, rule)
            of_round[key] = (loudness(key, base, own, rule),)
            continue
        before = histories.get(key, LossHistory())
        if rule != "mean":
            losses = [update.loss for update in own.values() if update.loss is not None]
            elsewhere = min((loss for loss, other in learning if other != key), default=math.inf)
            histories[key] = before.after(losses, base, elsewhere)
            if (fallback := histories[key].model(before, base)) is not None:
                found[key], of_round[key] = fallback, ()
                continue
        combined = combine(rule, base, own, references.get(key, 0.0))
        found[key] = combined.model
        if rule != "mean":
            judged = _judged(strikes.pop(key, {}), own, combined.left_out)
            strikes |= {key: judged} if judged else {}
            references[key], of_round[key] = combined.reference, _remarks(key, combined)
        if combined.spread is not None:
            spreads[key] = combined.spread
    histories = {
        key: history
        for key, history in histories.items()
        if (history.rounds or history.knows) and key in models
    }
    return found, Guard(references, of_round, strikes, histories, spreads)


def held_back(
    bases: Mapping[DeviceId, Tensors],
    reports: Sequence[Report],
    rule: str,
    guard: Guard,
    alike: Sequence[Sequence[DeviceId]] = (),
) -> tuple[set[DeviceId], Guard]:
    """The devices whose trained models should not be mixed into others' models: their updates are more than
    `BOUND` times as long as usual, or move back while those of devices with like data agree
    (`influence.opposed`). Under the rule "mean" there are none.

    bases: the model that each device trained from. alike: groups of devices with like data. This is for
    algorithms that keep a model for each device: there a mixture of other devices' models is made for each
    device, so no single shared update could be clipped or left out.
    """
    updates = trained(reports)
    if rule == "mean":
        return set(), guard
    norms = {device: norm(update.model, bases[device]) for device, update in updates.items()}
    usual = reference(norms, max(guard.references.values(), default=0.0))
    long = {device: size / usual for device, size in norms.items() if 0.0 < BOUND * usual < size}
    away = _opposed({device: update.model for device, update in updates.items()}, bases, alike)
    lengths = [f"{device} ({times:.3g} times)" for device, times in sorted(long.items())]
    cosines = [f"{device} (cosine {cosine:.2f})" for device, cosine in sorted(away.items())]
    kept = "were kept out of others' models"
    remarks = []
    if long:
        remarks.append(f"updates longer than {BOUND:g} times the usual one {kept}: {listed(lengths)}")
    if away:
        remarks.append(
            f"updates that point away from those of most devices with like data {kept}: {listed(cosines)}"
        )
    of_round = {ALL: tuple(remarks)} if remarks else {}
    return {*long, *away}, replace(guard, references={ALL: usual}, of_round=of_round)


def _opposed(
    models: Mapping[DeviceId, Tensors],
    bases: Mapping[DeviceId, Tensors],
    alike: Sequence[Sequence[DeviceId]],
) -> dict[DeviceId, float]:
    """The devices of each group that move back, and their cosines with the middle of the group."""
    found: dict[DeviceId, float] = {}
    for group in alike:
        own = {device: models[device] for device in group if device in models}
        if own:
            found |= opposed(geometry_of(own, {device: bases[device] for device in own}, TOGETHER).cosines)
    return found


def _remarks(key: ModelKey, combined: Combined) -> tuple[str, ...]:
    found = []
    for device, cosine in combined.left_out.items():
        found.append(
            f"model {key}: the update of {device} was left out, because it points away from those of most "
            f"others (cosine {cosine:.2f})"
        )
    if combined.long:
        lengths = [
            f"{device} ({times:.3g} times the usual length)" for device, times in combined.long.items()
        ]
        found.append(f"model {key}: updates too long to count in full: {listed(lengths)}")
    if combined.capped:
        heavy = listed(combined.capped)
        found.append(f"model {key}: not all of the samples of {heavy} count, as most devices have fewer")
    return tuple(found)
