"""How runs stand, as an observer sees them."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from shoal.core.exchange.link import ObservedRun


def facts(runs: Sequence[ObservedRun]) -> dict[str, Any]:
    """For machines."""
    return {"runs": [asdict(run) for run in runs]}


def text(runs: Sequence[ObservedRun]) -> str:
    """For people: a line for each run, newest first."""
    return "\n".join(map(line, runs)) or "there is no run"


def line(run: ObservedRun) -> str:
    doing = f", {run.title}" if run.title else ""
    return f"{run.run} ({run.algorithm}): {run.stage}, round {run.round}{doing}"
