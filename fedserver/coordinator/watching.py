"""What devices that follow a release say of their data, and what operators see of it."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress

from fedserver.coordinator.coordinator import Coordinator
from fedserver.coordinator.status_types import WatchedCluster
from fedserver.store.integrity.redundancy import DamagedRow
from fedserver.store.journal import released
from fedserver.store.journal.watched import Answer
from fedserver.store.store import Storage
from shoal.core.errors import DiskFull, NotFound, ShoalError
from shoal.core.exchange.choosing.watching import Moved
from shoal.core.exchange.link import AT, run_of
from shoal.core.privacy.noise.response import EVERY_DAYS
from shoal.core.server_kit.drift_answers import Day, movement
from shoal.core.types import DeviceId, ModelKey

DAY = 86400.0


async def note(coordinator: Coordinator, device: DeviceId, said: Moved) -> None:
    """Count what a device says, if it has not said anything lately and names models that there are. Where
    that cannot be read or stored, only this is lost."""
    storage, day = coordinator.storage, int(time.time() // DAY)
    with suppress(DiskFull, DamagedRow, NotFound):
        if not await storage.call(storage.journal.watched.counts, device, day):
            return
        if said.cluster not in ("", *await _models(coordinator, said.subject)):
            return
        run = run_of(said.subject)
        answer = Answer(run, said.subject, said.cluster, device, day, said.moved)
        if await storage.call(storage.journal.watched.add, answer):
            await released.record_answer(storage, run, device, day)


async def _models(coordinator: Coordinator, subject: str) -> Sequence[ModelKey]:
    """The names of the models of a release or run. Raises NotFound."""
    if subject in coordinator.runs:
        return list(coordinator.runs[subject].engine.state.models)
    storage = coordinator.storage
    try:
        return list((await storage.call(storage.releases.get, subject)).card.models)
    except ShoalError as error:  # it cannot be read, which the operator sees elsewhere
        raise NotFound(error.message) from None


async def watched(storage: Storage) -> Mapping[str, tuple[WatchedCluster, ...]]:
    """Of each release, or run, what devices have said within the last 92 days or since they have moved."""
    said = await storage.call(storage.journal.watched.all)
    return await asyncio.to_thread(_watched, said)  # two years of many clusters take a moment


def _watched(said: Mapping[tuple[str, ModelKey], Sequence[Day]]) -> Mapping[str, tuple[WatchedCluster, ...]]:
    found: dict[str, list[WatchedCluster]] = {}
    today = int(time.time() // DAY)
    for (subject, cluster), known in said.items():
        # A day that has not come is one on which the clock was wrong: it would be the latest for months.
        days = [each for each in known if each.day <= today]
        if days and today - days[-1].day <= EVERY_DAYS:
            found.setdefault(subject, []).append(_cluster(cluster, days))
    return {subject: tuple(each) for subject, each in found.items()}


def _cluster(key: ModelKey, days: Sequence[Day]) -> WatchedCluster:
    found = movement(days)
    since = None if found.since is None else found.since * DAY
    return WatchedCluster(key, found.answers, found.share, found.error, since)


async def notices(storage: Storage) -> list[str]:
    """A sentence for each cluster whose devices have moved."""
    return [
        _notice(subject, each)
        for subject, found in (await watched(storage)).items()
        for each in found
        if each.since is not None
    ]


def _notice(subject: str, found: WatchedCluster) -> str:
    of = f"cluster {found.key} of {subject}" if found.key else f"devices that chose a model of {subject}"
    since = time.strftime("%Y-%m-%d", time.gmtime(found.since))
    share = f"{100 * found.share:.0f} ± {100 * found.error:.0f} %"
    again = f"NAME --from {subject}" if AT in subject else f"--like {subject}"
    cure = f"train again: fedserver run start {again}"
    return (
        f"{of}: since {since}, {share} of them have other data than its model was made for; {cure}. "
        "Until then, fedclient place may find them a better model"
    )
