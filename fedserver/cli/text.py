"""Runs and devices in words and tables for a terminal, and as plain data for programs."""

import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from fedserver.coordinator.status_types import ClusterVersions, RunStatus, RunSummary, ServerStatus
from fedserver.store.records import LogLine
from shoal.core.privacy.report import CentralNoise, Statement, of_weights
from shoal.core.types import DeviceId


def data(status: RunStatus) -> dict[str, Any]:
    """Everything about a run, for programs."""
    models = {
        key: {"sha256": weights.blob.sha256, "size": weights.blob.size, "tensors": len(weights.manifest)}
        for key, weights in status.models.items()
    }
    return {
        **asdict(status.summary),
        "clusters": status.clusters,
        "devices": [asdict(figures) for figures in status.devices],
        "abandoned": status.abandoned,
        "missing": status.missing,
        "models": models,
        **private_data(status.released, status.central),
    }


def private_data(
    released: Mapping[DeviceId, Statement], central: CentralNoise | None = None
) -> dict[str, Any]:
    """What devices have released, for programs. central: what noise of the server promises; None: none."""
    return {
        "released": {device: found.facts() for device, found in released.items()},
        "weights": of_weights(released.values()),
        "central": None if central is None else {**asdict(central), "summary": str(central)},
    }


def step(found: RunSummary) -> str:
    """What a run does, without what changes from second to second. The engine's number of the round is in the
    data alone: it counts rounds without training too, and the title has the one that people know."""
    return f"{found.run}: {found.stage}{', ' if found.title else ''}{found.title}"


def summary(found: RunSummary) -> str:
    """A run in one line."""
    whom = "without" if found.stage == "waiting" else "from"
    devices = f", {whom} {_some(found.waiting_devices)}" if found.waiting_devices else ""
    left = "" if found.time_left is None else f", for at most {found.time_left:.0f} s"
    waiting = f": {found.waiting_for}{devices}{left}" if found.waiting_for else ""
    return step(found) + waiting


def runs(found: Sequence[RunSummary]) -> str:
    if not found:
        return "no run was started yet; start one with: fedserver run start NAME --algorithm flux"
    rows = [(each.run, each.algorithm, each.stage, each.title or "-", each.waiting_for) for each in found]
    return table(("run", "algorithm", "stage", "does", "waits for"), rows)


def status(found: RunStatus) -> str:
    """Everything about a run, for people."""
    parts = [summary(found.summary)]
    if found.devices:
        rows = [
            (
                each.device,
                each.cluster or "-",
                "-" if each.accuracy is None else f"{100 * each.accuracy:.1f} %",
                "-" if each.loss is None else f"{each.loss:.4f}",
                str(each.examples or "-"),
                _bytes(each.bytes_up),
                _bytes(each.bytes_down),
            )
            for each in found.devices
        ]
        heads = ("device", "cluster", "accuracy", "loss", "samples", "sent", "fetched")
        parts.append(table(heads, rows))
    if any(found.clusters.values()):
        parts += [f"cluster {key}: {_many(len(own), 'device')}" for key, own in found.clusters.items()]
    if found.devices:
        parts += [f"privacy in this run: {each}" for each in privacy(found.released, found.central)]
    parts += [f"model {key}: {_bytes(weights.blob.size)}" for key, weights in found.models.items()]
    parts += [f"missing in the last round: {device}: {why}" for device, why in found.missing.items()]
    for why, count in Counter(found.abandoned.values()).items():
        parts.append(f"{_many(count, 'round')} gave no result: {why}")
    return "\n".join(parts)


def clusters(found: Sequence[ClusterVersions]) -> str:
    if not found:
        return "the run has no model yet"
    rows = [
        (
            each.key,
            str(len(each.members)),
            list(each.versions.values())[-1].sha256[:12],
            ", ".join(f"{number}: {blob.sha256[:8]}" for number, blob in each.versions.items()),
        )
        for each in found
    ]
    return table(("cluster", "devices", "model", "as round N opened"), rows)


def server(found: ServerStatus) -> str:
    """The daemon, for people."""
    here = sum(device.presence != "absent" for device in found.devices)
    parts = [f"fedserver {found.version}: {here} of {len(found.devices)} known devices are here"]
    parts += [f"attention: {notice}" for notice in found.notices]
    parts += [summary(run) for run in found.runs] or ["no run goes on"]
    if found.devices:
        rows = [
            (
                each.device,
                each.presence,
                "-" if each.last_seen is None else f"{each.last_seen:.0f} s ago",
                each.lease[0] if each.lease else "-",
                each.software or "-",
            )
            for each in found.devices
        ]
        parts.append(table(("device", "state", "seen", "works on", "software"), rows))
        parts += [f"privacy over all runs: {each}" for each in privacy(found.released)]
    return "\n".join(parts)


def privacy(released: Mapping[DeviceId, Statement], central: CentralNoise | None = None) -> list[str]:
    """How many devices have released what, each of them; and what their weights have, or that they have
    nothing."""
    counts = Counter(str(each) for each in released.values())
    of_models = [str(central)] if central is not None else []
    devices = [
        f"{f'each of {count} devices' if count > 1 else '1 device'}: {what}" for what, count in counts.items()
    ]
    return [*devices, *of_models, of_weights(released.values())]


def line(found: LogLine) -> str:
    return f"{clock(found.at)} {found.device + ': ' if found.device else ''}{found.text}"


def clock(at: float) -> str:
    """A clock time, in this machine's zone."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))


def ago(at: float | None) -> str:
    """How long ago a clock time was; "-" if it never was."""
    seconds = None if at is None else max(0.0, time.time() - at)
    if seconds is None:
        return "-"
    for unit, size in (("d", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit} ago"
    return f"{seconds:.0f} s ago"


def _many(count: int, what: str) -> str:
    return f"{count} {what if count == 1 else what + 's'}"


def _some(names: Sequence[str], most: int = 5) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def _bytes(size: int) -> str:
    value, unit = float(size), "B"
    for larger in ("kB", "MB", "GB"):
        if value < 1000.0:
            break
        value, unit = value / 1000.0, larger
    return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Columns as wide as their widest cell."""
    lines = [heads, *rows]
    widths = [max(len(row[column]) for row in lines) for column in range(len(heads))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in lines
    )
