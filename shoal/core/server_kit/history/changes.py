"""How the clusters of a run change from one round to the next: their lineage, and the events to tell."""

from collections import Counter
from collections.abc import Mapping, Sequence

from shoal.core.algorithm import State
from shoal.core.server_kit.history.records import GROUPED, JOINED, MERGED, MOVED, SPLIT, RunEvent
from shoal.core.server_kit.learned import groups_of
from shoal.core.texts import listed
from shoal.core.types import DeviceId, ModelKey

MAX_NAMED = 10
"""How many devices and clusters an event names."""


Parents = Mapping[ModelKey, tuple[ModelKey, ...]]


def parents_of(before: State, after: State) -> dict[ModelKey, tuple[ModelKey, ...]]:
    """For each cluster after a round, the clusters that it comes from, the largest part first.

    A cluster that goes on has itself as a parent, and those that ended and whose devices it took. A new
    cluster has all clusters that its devices came from; if they are late devices, the one whose model it
    continues.
    """
    # Devices that had no cluster are left out.
    flows = Counter(
        (key, before.assignments[device])
        for device, key in sorted(after.assignments.items())
        if before.assignments.get(device) in before.models
    )
    sources: dict[ModelKey, list[ModelKey]] = {key: [] for key in after.models}
    for (key, old), _ in flows.most_common():
        if key in sources and old != key and (key not in before.models or old not in after.models):
            sources[key].append(old)
    only = list(before.models) if len(before.models) == 1 else []
    late = _begun(before, after)
    return {
        key: (key, *found) if key in before.models else tuple(found or late.get(key, only))
        for key, found in sources.items()
    }


def _begun(before: State, after: State) -> dict[ModelKey, tuple[ModelKey, ...]]:
    """For each cluster that only late devices have begun, the cluster whose model it continues."""
    found: Mapping[ModelKey, ModelKey] = getattr(after, "begun", {})
    old = {key for device, key in after.assignments.items() if device in before.assignments}
    return {
        key: (parent,)
        for key, parent in found.items()
        if key in after.models and key not in {*before.models, *old} and parent in before.models
    }


def changes(before: State, after: State) -> list[RunEvent]:
    """What became of the clusters and of the devices' membership in a round."""
    if before.models.keys() == after.models.keys() and before.assignments == after.assignments:
        return []
    parents, late = parents_of(before, after), _begun(before, after)
    others = {key: sources for key, sources in parents.items() if key not in late}
    if len(before.models) == 1 and len(after.models) > 1 and others.keys() - before.models.keys():
        return [_grouped(before, after)]
    return [*_splits(before, after, others), *_merges(after, others), *_moves(before, after, late)]


def _grouped(before: State, after: State) -> RunEvent:
    sizes = Counter(after.assignments.values())
    shown = listed([f"{key} ({sizes[key]})" for key in after.models], MAX_NAMED)
    text = f"{len(after.assignments)} devices form {len(after.models)} clusters: {shown}"
    if why := groups_of(after):
        text += f"; {why}"
    return RunEvent(GROUPED, text, (*before.models, *list(after.models)[:MAX_NAMED]))


def _splits(before: State, after: State, parents: Parents) -> list[RunEvent]:
    """Clusters whose devices, or some of them, form new ones; the old model may stay without devices."""
    children: dict[ModelKey, list[ModelKey]] = {}
    for key, sources in parents.items():
        for old in sources:
            children.setdefault(old, []).append(key)
    events, homes = [], {*after.assignments.values()}
    for old, found in children.items():
        if len(found) > 1 and any(key not in before.models for key in found):
            parts = [key for key in found if key != old or key in homes]
            text = f"{old} was split into {listed(parts, MAX_NAMED)}"
            if len(parts) == 1:
                text = f"{old} lost its devices to {parts[0]}"
            events.append(RunEvent(SPLIT, text, (old, *parts[:MAX_NAMED])))
    return events


def _merges(after: State, parents: Parents) -> list[RunEvent]:
    return [
        RunEvent(MERGED, f"{listed(sources, MAX_NAMED)} were merged into {key}", (*sources[:MAX_NAMED], key))
        for key, sources in parents.items()
        if len(sources) > 1 and any(old not in after.models for old in sources)
    ]


def _moves(before: State, after: State, late: Parents) -> list[RunEvent]:
    """Changes of membership that are neither a split nor a merge: between clusters that exist before and
    after, and of devices that had no cluster. late: the parents of clusters that these have begun."""
    lasting = before.models.keys() & after.models.keys()
    moved: dict[tuple[ModelKey, ModelKey], list[DeviceId]] = {}
    joined: dict[ModelKey, list[DeviceId]] = {}
    for device, key in sorted(after.assignments.items()):
        old = before.assignments.get(device)
        if old is None and len(after.models) > 1:
            joined.setdefault(key, []).append(device)
        elif old is not None and old != key and {old, key} <= lasting:
            moved.setdefault((old, key), []).append(device)
    have = {True: "has", False: "have"}
    return [
        *(
            RunEvent(
                MOVED,
                f"{listed(found, MAX_NAMED)} {have[len(found) == 1]} moved from {old} to {key}",
                (old, key),
            )
            for (old, key), found in sorted(moved.items())
        ),
        *(_joined(found, key, late.get(key, ())) for key, found in sorted(joined.items())),
    ]


def _joined(devices: Sequence[DeviceId], key: ModelKey, parents: tuple[ModelKey, ...]) -> RunEvent:
    if not parents:
        return RunEvent(JOINED, f"{listed(devices, MAX_NAMED)} joined {key}", (key,))
    text = (
        f"{listed(devices, MAX_NAMED)} began {key}, which continues the model of {listed(parents, MAX_NAMED)}"
    )
    return RunEvent(JOINED, text, (*parents, key))
