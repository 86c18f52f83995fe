"""Runs and devices as they are displayed to operators."""

import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any

from fedserver.coordinator.runs import Lease, Run
from fedserver.coordinator.status_types import DeviceFigures, DeviceStatus, RunSummary
from fedserver.coordinator.visits.visitor import Visitor
from fedserver.store.disk_space import wait_for
from fedserver.store.records import DeviceRecord, RunRecord, RunSpec, Standing, Traffic
from fedserver.store.store import Storage
from shoal.core.algorithm import State
from shoal.core.engine.policy import RoundPolicy
from shoal.core.engine.rounds import Stage
from shoal.core.exchange.messages import Evaluated
from shoal.core.server_kit.learned import has_numbers
from shoal.core.texts import listed
from shoal.core.types import DeviceId, ModelKey, RunId

DEPOSED = (
    "this server leads no more: another one has its database or its folder of blobs, and nothing that this "
    "one still does counts. Stop it"
)
RECENT = 7 * 86400.0
"""Seconds after which a newcomer that has not asked again is not reported any more."""
MAX_NAMED = 3
"""How many devices are named in a notice."""


MAX_SAID = 400
"""Characters of the reason of a failed run in a notice."""


def summary_of(run: Run, known: Iterable[DeviceId]) -> RunSummary:
    """A run, its stage, and what it waits for. known: devices that may take part in it."""
    so_far: dict[str, Any] = {
        "created": run.created,
        "cluster_count": sum(map(bool, clusters_of(run.engine.state).values())),
        "accuracy": _mean_accuracy(run.engine.state),
        "numbers": has_numbers(run.engine.state),
        "ended": None if run.active else run.ended,
        "progress": run.engine.state.progress,
        "rounds": _rounds_of(run.engine.state),
        "pace": run.recorder.pace.seconds if run.active else None,
    }
    if not run.active:
        return of_spec(
            run.run, run.spec, run.standing.value, run.engine.round, waiting_for=run.reason, **so_far
        )
    waiting, stage = run.engine.waiting(known), run.engine.stage
    if stage is Stage.OVER:  # complete, but that is not on the disk yet
        stage = Stage.REDUCING
    title = "" if stage is Stage.WAITING else run.title
    waits = {"waiting_for": waiting.text, "waiting_devices": waiting.devices, "time_left": waiting.seconds}
    return of_spec(run.run, run.spec, stage.value, run.engine.round, title=title, **waits, **so_far)


def of_spec(run: RunId, spec: RunSpec, stage: str, round: int, **more: Any) -> RunSummary:
    """The summary of a run that was asked for so. more: its other fields."""
    return RunSummary(run, spec.name, spec.algorithm, spec.preset, stage, round, **more)


def too_few(run: RunId, policy: RoundPolicy, able: int) -> tuple[str, ...]:
    """A sentence where a run wants more devices than there are. able: how many may take part."""
    wanted = max(policy.devices, policy.minimum)
    if not 0 < able < wanted:
        return ()
    devices = f" --devices {able}" if policy.devices else ""
    minimum = f" --minimum {able}" if able < policy.minimum else ""
    cure = f"admit more, or: fedserver run set {run}{devices}{minimum}"
    return (f"run {run} wants {wanted} devices, and {able} can take part: {cure}",)


def failed(runs: Iterable[Run]) -> tuple[str, ...]:
    """A sentence where the newest run has failed: no line of an active run says so. runs: newest last."""
    newest = next(reversed([*runs]), None)
    if newest is None or newest.standing is not Standing.FAILED:
        return ()
    cure = f"fedserver run resume {newest.run}, once its cause is removed, or fedserver run rm {newest.run}"
    return (f"run {newest.run} has failed: {newest.reason[:MAX_SAID]}; {cure}",)


async def unplaced(storage: Storage) -> list[str]:
    """A sentence for each run to which newcomers come again and again whose data are unlike those of all
    devices, as far as the server learns of it: not of those that choose their model themselves."""
    found: dict[RunId, Counter[DeviceId]] = {}
    for run, device, times in await storage.call(storage.journal.placements.unplaced, time.time() - RECENT):
        found.setdefault(run, Counter())[device] = times
    return [_unplaced(run, devices) for run, devices in found.items()]


def _unplaced(run: RunId, devices: Counter[DeviceId]) -> str:
    ((device, most),) = devices.most_common(1)
    who = f"newcomer {device} has asked run {run} for a model {most} times, and fits no cluster"
    if len(devices) > 1:
        who = f"{len(devices)} newcomers of run {run} fit no cluster and ask again, {device} {most} times"
    return f"{who}: no device trains for such data yet; see fedserver run show {run} --newcomers"


def unreadable(run: RunId, record: RunRecord | None, reason: str) -> RunSummary:
    """The summary of a run that cannot be read. record: its row, unless that cannot be read either."""
    why = f"it cannot be read: {reason}"
    if record is None:
        return RunSummary(run, run, "", "", Standing.FAILED.value, 0, waiting_for=why)
    stage = Standing.FAILED.value
    return of_spec(run, record.spec, stage, record.round, waiting_for=why, created=record.created)


def unchecked(record: RunRecord) -> RunSummary:
    """The summary of a run whose files are being checked after a start."""
    stage = "waiting" if record.standing is Standing.ACTIVE else record.standing.value
    why = "the check of its files after the start"
    return of_spec(record.run, record.spec, stage, record.round, waiting_for=why, created=record.created)


def clusters_of(state: State) -> dict[ModelKey, tuple[DeviceId, ...]]:
    """The members of each model's cluster."""
    members: dict[ModelKey, list[DeviceId]] = {key: [] for key in state.models}
    for device, key in sorted(state.assignments.items()):
        members.setdefault(key, []).append(device)
    return {key: tuple(devices) for key, devices in members.items()}


def _mean_accuracy(state: State) -> float | None:
    """The mean over the devices; None if no device has measured its accuracy."""
    return fmean(each.accuracy for each in state.metrics.values()) if state.metrics else None


def _rounds_of(state: State) -> int:
    """How many rounds of training a run has in all, or at most has; 0 if its state does not say."""
    known = getattr(state, "parameters", None)
    return int(getattr(state, "rounds", getattr(known, "rounds", 0)))


def figures_of(
    assignments: Mapping[DeviceId, ModelKey],
    metrics: Mapping[DeviceId, Evaluated],
    traffic: Mapping[DeviceId, Traffic],
) -> tuple[DeviceFigures, ...]:
    """The figures of each device that has taken part."""
    found = []
    for device in sorted({*assignments, *metrics, *traffic}):
        moved, measured = traffic.get(device), metrics.get(device)
        found.append(
            DeviceFigures(
                device,
                assignments.get(device, ""),
                measured.accuracy if measured else None,
                measured.loss if measured else None,
                measured.examples if measured else 0,
                moved.up if moved else 0,
                moved.down if moved else 0,
            )
        )
    return tuple(found)


def device_of(
    record: DeviceRecord, visitor: Visitor | None, leases: Sequence[Lease], timeout: float
) -> DeviceStatus:
    """A device as the server sees it. timeout: after this many seconds without a call it counts as absent."""
    if visitor is None or visitor.last_seen is None:
        return DeviceStatus(record.device, "absent", software=record.software)
    ago = 0.0 if visitor.polling else max(0.0, time.time() - visitor.last_seen)
    here = bool(visitor.session) and ago < timeout
    return DeviceStatus(
        record.device,
        ("working" if leases else "idle") if here else "absent",
        ago,
        record.software,
        (leases[0].task.run, leases[0].task.round, leases[0].task.attempt) if here and leases else None,
    )


def shared(visitors: Iterable[Visitor]) -> tuple[str, ...]:
    """A sentence where several processes use one device's name, and end each other's work."""
    names = sorted(visitor.device for visitor in visitors if visitor.is_shared)
    if not names:
        return ()
    return (
        f"several processes take turns as {listed(names, MAX_NAMED)}, and end each other's work:"
        " stop all but one. A copy of a device's folder is the same device; another one joins by itself",
    )


def problems(storage: Storage, conflicts: Mapping[DeviceId, str], low_water: int) -> tuple[str, ...]:
    """What keeps the server from working, or may soon. low_water: how many bytes of the disk should be
    free."""
    if storage.is_deposed():
        return (DEPOSED,)
    if conflicts:
        named = ", ".join(f"{device} saw {mark}" for device, mark in list(conflicts.items())[:MAX_NAMED])
        return (
            f"the server state is older than what devices have seen; new work is refused: {named}. To go"
            " on from this state, stop the server and run: fedserver recover --accept",
        )
    if storage.full:
        return (wait_for(storage.full).problem,)
    found = []
    if lacking := storage.space.lacks(low_water):
        some = f" ({lacking / (1 << 20):.0f} MiB)" if lacking >= 1 << 20 else ""
        found.append(f"uploads are refused: the disk needs {lacking} more free bytes{some}")
    if repaired := storage.repaired:
        more = f", and {len(repaired) - 1} more" if len(repaired) > 1 else ""
        found.append(f"the disk damaged what the server stored; check it: {repaired[0]}{more}")
    return tuple(found)
