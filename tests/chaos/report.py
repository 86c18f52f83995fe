"""The table of a campaign, and chaos.json."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.chaos.campaign import Campaign, again
from tests.chaos.checks import Facts

COLUMNS = (
    *("fault", "runs", "struck", "reports", "lost", "twice", "equal", "whole"),
    *("resumed p50", "p95", "max", "restarted p50", "p95", "max", "re-sent"),
)
"""whole: runs in which no round was given up or went on without a device. Times in seconds. re-sent: the most
that one device sent beyond its results in a run."""


def table(campaign: Campaign) -> str:
    groups: dict[str, list[Facts]] = {}
    for facts in campaign.trials:
        groups.setdefault(facts.kind.partition(":")[0], []).append(facts)
    rows = [
        COLUMNS,
        *(_row(kind, found) for kind, found in sorted(groups.items())),
        _row("all", campaign.trials),
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join([cells[0].ljust(widths[0]), *map(str.rjust, cells[1:], widths[1:])]) for cells in rows]
    lines += [f"{kind}: it never struck" for kind in _never_struck(campaign.trials)]
    lines += [f"{kind}: not tried: {why}" for kind, why in campaign.skipped.items()]
    return "\n".join(lines)


def write(path: Path, campaign: Campaign, seconds: float) -> None:
    """Everything that was seen, for machines."""
    trials = campaign.trials
    found: dict[str, Any] = {
        "seed": campaign.seed,
        "seconds": round(seconds, 1),
        "secure": campaign.secure,
        "good": campaign.good,
        **_sums(trials),
        "by_kind": {kind: sum(f.kind == kind for f in trials) for kind in sorted({f.kind for f in trials})},
        "never_struck": _never_struck(trials),
        "resent_bytes": _resent(trials),
        "resumed": _spread(_resumed(trials)),
        "restart_to_first_call": _spread(_restarted(trials)),
        "skipped": campaign.skipped,
        "fleets": campaign.fleets,
        "failed": [again(facts) for facts in trials if not facts.good],
        "trials": [asdict(facts) for facts in trials],
    }
    path.write_text(json.dumps(found, indent=1) + "\n")


def _row(kind: str, trials: Sequence[Facts]) -> tuple[str, ...]:
    resent = max((most for facts in trials for most in facts.resent.values()), default=0)
    times = [*_spread(_resumed(trials)).values(), *_spread(_restarted(trials)).values()]
    seconds = ["" if time is None else f"{time:.1f}" for time in times]
    return (kind, *map(str, _sums(trials).values()), *seconds, f"{resent / 1024:.0f} KiB")


def _sums(trials: Sequence[Facts]) -> dict[str, int]:
    return {
        "runs": len(trials),
        "faults": sum(len(facts.strikes) for facts in trials),
        "acknowledged": sum(facts.acknowledged for facts in trials),
        "lost": sum(facts.lost for facts in trials),
        "counted_twice": sum(facts.twice for facts in trials),
        "bit_equal": sum(facts.equal for facts in trials),
        "undisturbed": sum(facts.undisturbed for facts in trials),
    }


def _never_struck(trials: Sequence[Facts]) -> list[str]:
    """Kinds of faults that found nothing to strike in any of their trials."""
    struck = {facts.kind for facts in trials if facts.strikes}
    return sorted({facts.kind for facts in trials} - struck - {"control"})


def _resent(trials: Sequence[Facts]) -> dict[str, Any]:
    """Bytes that devices sent beyond their results, with framing. cuts: where only connections were cut."""
    cut = [(f.resent[name], number) for f in trials for name, number in f.cut.items() if name in f.resent]
    return {
        "all": sum(sum(facts.resent.values()) for facts in trials),
        "most_of_a_device": max((most for facts in trials for most in facts.resent.values()), default=0),
        "cuts": {
            "connections": sum(number for _, number in cut),
            "bytes": sum(size for size, _ in cut),
            "most_per_connection": max((size // max(1, number) for size, number in cut), default=0),
        },
    }


def _resumed(trials: Iterable[Facts]) -> list[float]:
    return sorted(seconds for facts in trials for seconds in facts.resumed)


def _restarted(trials: Iterable[Facts]) -> list[float]:
    return sorted(seconds for facts in trials for seconds in facts.restarted)


def _spread(ordered: Sequence[float]) -> dict[str, float | None]:
    """Median, 95th percentile and maximum of ordered values; None where there are none."""
    shares = {"p50": 0.5, "p95": 0.95, "max": 1.0}
    last = len(ordered) - 1
    return {
        name: ordered[min(last, int(share * len(ordered)))] if ordered else None
        for name, share in shares.items()
    }
