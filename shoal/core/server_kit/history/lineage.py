"""In which models of a run the reports of one device are, by the history of the run.

A report is in every model that was made from it, and in every model that was made from such a model. Before
there are clusters, and in a run whose clusters share anything (steps, a mixture, what one learns about
another), that is all of them: the scale of the inputs and the common model are in each. Where clusters share
nothing (`shoal.core.algorithm.independent`), a device that joined later is only in the model of its own
cluster, and in whatever was grouped with its description known: clusters that formed again, and the clusters
of devices that joined after it.

What the history does not say, counts as if the device had been there. Only data are followed, not time: a
round that waited for the device ended later, and may have had other devices.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from shoal.core.engine.bootstrap import TITLE
from shoal.core.server_kit.history.packed import EVENTS
from shoal.core.server_kit.history.records import (
    GROUPED,
    JOINED,
    MERGED,
    MOVED,
    ROLLED_BACK,
    SPLIT,
    TEST,
    DeviceRound,
    RoundHistory,
)
from shoal.core.types import DeviceId, ModelKey


@dataclass(frozen=True)
class Lineage:
    """Where a device is in a run.

    with_it, without_it: the present models that contain it, and those that lack it. grouped: whether its
    description was among those by which the clusters' devices, or newcomers, are told apart. first: the first
    round with a report of it that counts still, 0 for none. trained: the rounds of training in which its
    reports count, as rollbacks count them. blobs: SHA-256 of every model that has ever contained it. known:
    whether the history has all that this depends on; if it has not, what is not known counts as a report.
    """

    with_it: frozenset[ModelKey] = frozenset()
    without_it: frozenset[ModelKey] = frozenset()
    grouped: bool = False
    first: int = 0
    trained: tuple[int, ...] = ()
    blobs: frozenset[str] = frozenset()
    known: bool = True

    def __bool__(self) -> bool:
        return bool(self.first)


@dataclass(frozen=True)
class _Point:
    """What a round opened with. models: SHA-256 by key."""

    lineage: Lineage = field(default_factory=Lineage)
    models: Mapping[ModelKey, str] = field(default_factory=dict)


def lineage(rounds: Iterable[RoundHistory], device: DeviceId, independent: bool) -> Lineage:
    """Where the device is after these rounds, which are all of a run, oldest first, with their devices.

    independent: whether clusters that have formed share nothing any more.
    """
    now, opened = _Point(), dict[int, _Point]()
    expected = 1
    for each in rounds:
        if each.round != expected:  # the oldest rounds of a long history go
            now = replace(now, lineage=replace(now.lineage, known=False, first=now.lineage.first or 1))
        opened[each.round], expected = now, each.round + 1
        now = _back(now, opened, each) if each.abandoned else _after(now, each, device, independent)
    return now.lineage


def _back(now: _Point, opened: Mapping[int, _Point], each: RoundHistory) -> _Point:
    """After a round without a result, which may be a roll back."""
    then, models = opened.get(each.back_to), {cluster.key: cluster.model for cluster in each.clusters}
    if then is None:
        return now
    clusters = {key for event in each.events if event.kind == ROLLED_BACK for key in event.clusters}
    if not clusters:
        return replace(then, lineage=replace(then.lineage, blobs=now.lineage.blobs))
    # Only one cluster went back: its model is the earlier one, all else stays.
    found = (now.lineage.with_it - clusters) | (then.lineage.with_it & clusters)
    return _Point(_split(now.lineage, frozenset(found), models), models)


def _after(now: _Point, each: RoundHistory, device: DeviceId, independent: bool) -> _Point:
    before, models = now.lineage, {cluster.key: cluster.model for cluster in each.clusters}
    own, known = _own(each, device)
    if each.title == TITLE and before.known and not now.models:
        own = None  # initial weights have nothing of its data
    if own is not None:
        before = replace(
            before,
            first=before.first or each.round,
            trained=tuple(dict.fromkeys((*before.trained, each.progress))),
            known=before.known and known,
        )
    if not before:
        return _Point(_split(before, frozenset(), models), models)
    if own is not None and each.measured_on == TEST and models == now.models:
        return _Point(before, models)  # it has measured what nothing is made from
    kinds = {event.kind for event in each.events}
    grouped = before.grouped or own is not None
    shared = not independent or len(now.models) < 2 or len(each.events) >= EVENTS
    formed = grouped and bool(kinds & {GROUPED, SPLIT, MERGED, MOVED})
    if not before.known or ((own is not None or before.with_it) and (shared or formed)):
        return _Point(_split(replace(before, grouped=grouped), frozenset(models), models), models)
    found = {
        cluster.key
        for cluster in each.clusters
        if before.with_it & {*cluster.parents} or (before.with_it and not cluster.parents)
    }
    if grouped:
        found |= {key for event in each.events if event.kind == JOINED for key in event.clusters[-1:]}
    if own is not None:
        found |= {own.cluster} if own.cluster in models else {*models}
    return _Point(_split(replace(before, grouped=grouped), frozenset(found), models), models)


def _own(each: RoundHistory, device: DeviceId) -> tuple[DeviceRound | None, bool]:
    """The report of the device that counts in a round, None for none; and whether the history says so."""
    for found in each.devices:
        if found.device == device:
            return (None if found.missing else found), True
    if each.left_out or (each.reported and not each.devices):
        return DeviceRound(device), False
    return None, True


def _split(before: Lineage, found: frozenset[ModelKey], models: Mapping[ModelKey, str]) -> Lineage:
    names = frozenset(models)
    blobs = before.blobs | {models[key] for key in found & names}
    return replace(before, with_it=found & names, without_it=names - found, blobs=blobs)
