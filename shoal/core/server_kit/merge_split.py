"""Clusters come to be, become one, and keep their names: what is done with whole groups of devices."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from scipy.optimize import linear_sum_assignment

from shoal.core.exchange.tensors import weighted_mean
from shoal.core.server_kit.cluster import Labels
from shoal.core.server_kit.clustered import GLOBAL, S, named
from shoal.core.types import DeviceId, ModelKey, Tensors


def formed(state: S, groups: Mapping[DeviceId, int], phase: str) -> S:
    """Clusters before any training: devices by group 0, 1, ...; each begins with the model of all."""
    names = named(1 + max(groups.values()))
    return replace(
        state,
        models=dict.fromkeys(names, state.models[GLOBAL]),
        guard=state.guard.split(GLOBAL, names),
        assignments={device: names[group] for device, group in groups.items()},
        phase=phase,
    )


def merged(state: S, into: Mapping[ModelKey, ModelKey]) -> S:
    """Clusters become one. into: the name under which each goes on.

    A merged model is the mean of those it is made of, each by its number of devices (equally, where none has
    any). A cluster that is not merged keeps its model.
    """
    devices = Counter(state.assignments.values())
    models: dict[ModelKey, Tensors] = {}
    for key in dict.fromkeys(into.values()):
        parts = [name for name in into if into[name] == key]
        counted = [name for name in parts if devices[name]]
        whole = {name: float(max(devices[name], 1)) for name in counted or parts}
        alone = len(parts) == 1
        models[key] = (
            state.models[key]
            if alone
            else weighted_mean((state.models[name], n) for name, n in whole.items())
        )
    guard = replace(
        state.guard,
        references={key: norm for key, norm in state.guard.references.items() if key in models},
        of_round={key: texts for key, texts in state.guard.of_round.items() if key in models},
    )
    assignments = {device: into[key] for device, key in state.assignments.items()}
    return replace(state, models=models, guard=guard, assignments=assignments)


def matched(
    devices: Sequence[DeviceId],
    labels: Labels,
    before: Mapping[DeviceId, ModelKey],
    names: Sequence[ModelKey],
) -> dict[DeviceId, ModelKey]:
    """Groups of devices under the names that most of their devices had before, each name once.

    labels: (n,) 0, 1, ...; at most as many groups as `names`. A group without such a name gets a free one.
    """
    overlap = np.zeros((int(labels.max()) + 1, len(names)))
    for device, label in zip(devices, labels, strict=True):
        if before.get(device) in names:
            overlap[label, names.index(before[device])] += 1.0
    # Of names that suit as well, the first: so that the result does not hang on how the solver breaks ties.
    rows, columns = linear_sum_assignment(-overlap + 1e-9 * np.arange(len(names)))
    name = {int(row): names[int(column)] for row, column in zip(rows, columns, strict=True)}
    return {device: name[int(label)] for device, label in zip(devices, labels, strict=True)}
