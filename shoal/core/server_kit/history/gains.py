"""Whether groups paid: what the devices of each cluster gained over another run of the same devices."""

import math
from collections.abc import Mapping
from statistics import fmean, stdev
from typing import Any

from shoal.core.types import DeviceId, ModelKey


def gains(
    clusters: Mapping[DeviceId, ModelKey], own: Mapping[DeviceId, float], other: Mapping[DeviceId, float]
) -> list[dict[str, Any]]:
    """One row for each cluster. own, other: accuracies, 0 to 1; a device that one of them lacks is left out.

    gain: the mean difference. error: its standard error, by how much the devices differ; None for a single
    device, which does not show that.

    Example:
        >>> gains({"a": "c0", "b": "c1"}, {"a": 0.75, "b": 0.5}, {"a": 0.5})
        [{'cluster': 'c0', 'devices': 1, 'gain': 0.25, 'error': None}]
    """
    found = dict[ModelKey, list[float]]()
    for device, cluster in sorted(clusters.items()):
        if device in own and device in other:
            found.setdefault(cluster, []).append(own[device] - other[device])
    return [
        {
            "cluster": cluster,
            "devices": len(each),
            "gain": fmean(each),
            "error": stdev(each) / math.sqrt(len(each)) if len(each) > 1 else None,
        }
        for cluster, each in sorted(found.items(), key=lambda item: (len(item[0]), item[0]))
    ]
