"""The account of a run: what devices were sent, against what the server's database holds."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fedserver.store.runs import VERSIONS
from shoal.core.server_kit.history.records import RoundHistory

COUNTED = ("accepted", "duplicate")
"""Receipts that say that a report counts."""


@dataclass
class Account:
    """acknowledged: reports that a device has a receipt for. lost: those of them that did not count, though
    their round came to something. twice: reports that were accepted more than once.
    """

    acknowledged: int = 0
    lost: int = 0
    twice: int = 0
    problems: list[str] = field(default_factory=list)


def account(
    receipts: Mapping[str, Sequence[Mapping[str, Any]]],
    rounds: Mapping[int, RoundHistory],
    reports: Mapping[tuple[str, int], str],
) -> Account:
    """receipts: of each device. rounds: by number. reports: their blobs, by device and round.

    The database keeps only the reports of the last rounds; of earlier ones it says who was missing.
    """
    found = Account()
    oldest = max(rounds, default=0) + 2 - VERSIONS
    for device, said in receipts.items():
        counted = [each for each in said if each["outcome"] in COUNTED and not each["failed"]]
        for number in sorted({each["round"] for each in counted}):
            own = [each for each in counted if each["round"] == number]
            found.acknowledged += 1
            if sum(each["outcome"] == "accepted" for each in own) > 1:
                found.twice += 1
                found.problems.append(f"counted twice: the report of {device} in round {number}")
            if not _counts(device, rounds.get(number), own, reports.get((device, number)), number < oldest):
                found.lost += 1
                found.problems.append(f"lost: the report of {device} in round {number}")
    for number, row in rounds.items():
        kept = sum(of == number for _, of in reports)
        if row.reported + len(row.missing) != row.asked:
            found.problems.append(f"round {number} asked {row.asked} and counted {row.reported}")
        elif number >= oldest and not row.abandoned and kept != row.reported:
            found.problems.append(f"round {number} counted {row.reported} reports, and {kept} are stored")
    return found


def _counts(
    device: str,
    row: RoundHistory | None,
    receipts: Sequence[Mapping[str, Any]],
    stored: str | None,
    gone: bool,
) -> bool:
    """Whether a report that was acknowledged counted, or its round says that it came to nothing.

    gone: the database does not keep the reports of that round any more.
    """
    if row is None:
        return False
    if row.abandoned:
        return True
    if device in row.missing:
        return False
    blobs = {blob for receipt in receipts for blob in receipt["blobs"]}
    return gone or (stored is not None and all(blob in stored for blob in blobs))
