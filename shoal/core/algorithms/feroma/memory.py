"""Which profiles keep their models: those of the devices, and those of distributions that were seen once (C).

A row ends when its device is gone, or when its data are no longer like they were. Its model is then kept
without an owner, unless a device's row is of the same distribution. Among kept rows that are alike the newest
one stays. There are never more than `keep`: of the two most alike, the older one is dropped.
"""

from collections.abc import Mapping

import numpy as np

from shoal.core.algorithms.feroma import two_sample
from shoal.core.algorithms.feroma.state import Row
from shoal.core.types import DeviceId, ModelKey

Rows = Mapping[ModelKey, Row]
ABSENCE = 5
"""Rounds after which a device that is absent counts as gone."""


def absent(rows: Rows, progress: int) -> set[ModelKey]:
    """The rows of devices that took no part for more than `ABSENCE` rounds."""
    return {key for key, row in rows.items() if row.device and progress - row.round > ABSENCE}


def remembered(lost: Rows, living: Rows, keep: int) -> dict[ModelKey, Row]:
    """The rows without an owner that stay. living: the rows of the devices."""
    if not lost or not keep:
        return {}
    keys = sorted(lost, key=lambda key: (-lost[key].round, key))  # the newest first
    unlike = two_sample.unlikeness(
        [*(lost[key].profile for key in keys), *(row.profile for row in living.values())]
    )
    covered = (unlike[: len(keys), len(keys) :] <= 1.0).any(axis=1)
    stay: list[int] = []
    for index in np.flatnonzero(~covered).tolist():
        if all(unlike[index, other] > 1.0 for other in stay):
            stay.append(index)
    while len(stay) > keep:
        between = unlike[np.ix_(stay, stay)]
        np.fill_diagonal(between, np.inf)
        stay.pop(max(divmod(int(np.argmin(between)), len(stay))))
    return {keys[index]: lost[keys[index]] for index in stay}


def reassigned(assignments: Mapping[DeviceId, ModelKey], gone: Rows, rows: Rows) -> dict[DeviceId, ModelKey]:
    """Assignments in which each device whose row is gone gets the most similar row that is left."""
    left, keys = sorted(device for device, key in assignments.items() if key in gone), sorted(rows)
    found = dict(assignments)
    if left and keys:
        unlike = two_sample.between(
            [gone[assignments[device]].profile for device in left], [rows[key].profile for key in keys]
        )
        found |= {device: keys[int(np.argmin(row))] for device, row in zip(left, unlike, strict=True)}
    return found
