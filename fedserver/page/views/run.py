"""One run: its clusters and devices now, and its rounds."""

from collections.abc import Sequence
from typing import Any

from fedserver.coordinator.status_types import RunStatus, RunSummary
from fedserver.page.views.records import number, shown
from fedserver.page.views.texts import name, words


def document(status: RunStatus) -> dict[str, Any]:
    """The run as it is now."""
    summary, spec = status.summary, status.spec
    return {
        "run": name(summary.run),
        "algorithm": name(summary.algorithm),
        "preset": name(summary.preset),
        "seed": spec.seed if spec else None,
        "verdict": words(str(status.verdict)) if status.verdict else "",
        "settings": _settings(status),
        "clusters": [
            {"key": name(key), "members": [name(device) for device in members]}
            for key, members in status.clusters.items()
        ],
        "devices": shown(status.devices),
        "missing": [
            {"device": name(device), "reason": words(reason)}
            for device, reason in sorted(status.missing.items())
        ],
        "abandoned": [{"round": n, "reason": words(reason)} for n, reason in status.abandoned.items()],
        "privacy": privacy(status),
        "central": str(status.central) if status.central else "",
    }


def _settings(status: RunStatus) -> list[list[str]]:
    if (spec := status.spec) is None:
        return []
    found = {**spec.parameters, **({"learner": spec.learner} if spec.learner else {})}
    return [[name(key), words(str(value))] for key, value in sorted(found.items())]


def privacy(status: RunStatus) -> list[dict[str, Any]]:
    """What each device has released. epsilon: of what has a guarantee, null if nothing has one."""
    return [
        {
            "device": name(device),
            "epsilon": number(found.protected) if found.cost else None,
            "replaced": number(found.if_replaced) if found.cost else None,
            "delta": found.delta,
            "samples": found.group_size,
            "open": [words(what) for what in found.unprotected],
        }
        for device, found in sorted(status.released.items())
    ]


def beside(summary: RunSummary, status: RunStatus) -> dict[str, Any]:
    """Another run that trains one model for all devices, to compare with. words: what it is."""
    return {
        "words": f"the one model of run {name(summary.run)}",
        "devices": {name(each.device): number(each.accuracy) for each in status.devices},
    }


def single(run: RunSummary, runs: Sequence[RunSummary]) -> RunSummary | None:
    """The run with one model to compare a run with: the one that was started nearest to it in time."""
    others = [each for each in runs if each.run != run.run]
    found = [each for each in others if each.cluster_count <= 1 and each.accuracy is not None]
    return min(found, key=lambda each: abs((each.created or 0.0) - (run.created or 0.0)), default=None)
