"""Which profiles keep their models: those of the devices, and of distributions that were seen once (C).

A row is gone when its device is, or when its data became unlike what they were. Its model is then kept, as
nobody's, unless some device's row is of the same distribution. Of those kept that are alike the newest stays,
and there are never more than `keep`: of the two most alike, the older one goes.
"""

from collections.abc import Mapping

import numpy as np

from shoal.core.algorithms.feroma.state import Row
from shoal.core.server_kit import two_sample
from shoal.core.types import DeviceId, ModelKey

Rows = Mapping[ModelKey, Row]


def absent(rows: Rows, progress: int, absence: int) -> set[ModelKey]:
    """The rows of devices that took no part for more than `absence` rounds."""
    return {key for key, row in rows.items() if row.device and progress - row.round > absence}


def remembered(lost: Rows, living: Rows, keep: int) -> dict[ModelKey, Row]:
    """Which of the rows that nobody has any more stay. living: those of the devices."""
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
    """Devices whose row is gone are given the most alike one that is there."""
    left, keys = sorted(device for device, key in assignments.items() if key in gone), sorted(rows)
    found = dict(assignments)
    if left and keys:
        unlike = two_sample.between(
            [gone[assignments[device]].profile for device in left], [rows[key].profile for key in keys]
        )
        found |= {device: keys[int(np.argmin(row))] for device, row in zip(left, unlike, strict=True)}
    return found
