"""`python -m tests.audit`: see the package."""

import argparse
import asyncio
import itertools
import json
import time
from pathlib import Path

import numpy as np

from shoal.core.exchange.parts import FloatArray
from tests.audit.cases import CASES, Case, collect, proved

BLOCK = 40
"""Durations that are measured of one side before it is the turn of the other."""


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.audit",
        description="Lower bounds on what releases of the real client give away.",
    )
    parser.add_argument("--releases", type=int, default=10000, help="of each data set  [default: 10000]")
    parser.add_argument("--seconds", type=float, default=280.0, help="stop then; call again to go on")
    parser.add_argument("--case", action="append", choices=list(CASES), help="run only this case; repeatable")
    parser.add_argument("--out", type=Path, default=Path("runs/audit"), help="folder of what comes out")
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    report, until = asked.out / "audit.json", time.monotonic() + asked.seconds
    rows = json.loads(report.read_text()) if report.exists() else {}
    for name in asked.case or CASES:
        file = asked.out / f"{name.replace(', ', '-').replace(' ', '-')}.npz"
        sides = asyncio.run(completed(CASES[name], read(file), asked.releases, until))
        np.savez(file, absent=sides[0], present=sides[1])
        if min(map(len, sides)) < 2:
            print(f"{name:28} not begun: call again")
            continue
        rows[name] = row = proved(CASES[name], *sides)
        shaped = "-" if row["gaussian"] is None else f"{row['gaussian']:.3f}"
        print(
            f"{name:28} claimed {row['claimed']:g}  at least {row['at_least']:.3f}  if Gaussian {shaped}  "
            f"({row['releases']} releases)",
            flush=True,
        )
    report.write_text(json.dumps(rows, indent=2))


def read(file: Path) -> tuple[FloatArray, FloatArray]:
    """What earlier calls have found."""
    if not file.exists():
        return np.zeros(0), np.zeros(0)
    with np.load(file, allow_pickle=False) as found:
        return found["absent"], found["present"]


async def completed(
    case: Case, sides: tuple[FloatArray, FloatArray], releases: int, until: float
) -> tuple[FloatArray, FloatArray]:
    """Both sides with what is missing, as far as the time reaches.

    Durations are measured in turns, first of one side and then of the other: what else the machine does must
    not look like a difference between them.
    """
    due = round(releases * case.share)
    if case.timed:
        order = (0, 1, 1, 0)
        for turn in itertools.count():
            present = order[turn % len(order)]
            missing = min(BLOCK, due - len(sides[present]))
            if time.monotonic() > until or min(map(len, sides)) >= due:
                return sides
            more = await collect(case, bool(present), max(0, missing), until)
            both = [np.concatenate([side, more]) if at == present else side for at, side in enumerate(sides)]
            sides = both[0], both[1]
    found = []
    for present, before in enumerate(sides):
        left = until - time.monotonic()
        half = until - (left / 2 if not present else 0.0)  # the other side gets as much
        more = await collect(case, bool(present), max(0, due - len(before)), half) if left > 10.0 else []
        found.append(np.concatenate([before, more]))
    return found[0], found[1]


if __name__ == "__main__":
    main()
