"""A device's part in a rollout: another release predicts beside the one that it uses, and is counted.

place --> "try this release, too" --> its model --> <state>/shadow/ --> predictions of both are compared
place with what was counted <-- on the disk <-- counts of the process that predicts

Counts are on the disk before the server hears of them, so a device that was killed never tells less than
before. What was counted since the last call is lost with the process, which does no harm.
"""

import json
import shutil
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import astuple, dataclass
from pathlib import Path

from fedclient.faults import WorkerDied
from fedclient.light.serving import Endpoint
from fedclient.placing.placement import PlacementResult, save
from fedclient.store.blobs import BlobStore
from fedclient.store.state import DeviceFolder, read_json
from shoal.core.errors import BadPayload, DeviceFault, ShoalError
from shoal.core.exchange.choosing import Counted
from shoal.core.exchange.link import Trial
from shoal.core.rollout import Counts
from shoal.shell import crash
from shoal.shell.disk import write

KNOWN = "rollout.json"
"""Beside that model: the rollout, its release, the cluster of the model in use, and the counts."""


@dataclass(frozen=True)
class Part:
    """In which rollout this device takes part. counted: as the server gets it."""

    release: str
    counted: Counted


class Shadow:
    """The model in `folder.shadow`. fetch: gets the model of a release. permit: raises a ShoalError where the
    owner does not let counts of a release leave for a rollout. say: tells people what changed."""

    def __init__(
        self,
        folder: DeviceFolder,
        store: BlobStore,
        endpoint: Endpoint,
        fetch: Callable[[str], Awaitable[PlacementResult]],
        permit: Callable[[str, str], None],
        say: Callable[[str], None],
    ) -> None:
        self._folder, self._store, self._endpoint = folder.shadow, store, endpoint
        self._fetch, self._permit, self._say = fetch, permit, say
        self._trouble = self._refused = ""
        self._part = _stored(self._folder) if endpoint.can_use(self._folder) else None
        if self._part is not None:
            endpoint.shadow = self._folder, self._part.counted.counts

    async def counted(self) -> Counted | None:
        """What to tell the server; None where the owner does not let it leave any more."""
        if self._part is None:
            return Counted()
        before = self._part.counted
        try:
            self._permit(self._part.release, before.rollout)
        except ShoalError as error:
            await self._end(str(error))
            return None
        with suppress(WorkerDied, DeviceFault):  # those of before the process died are still true
            counts = await self._endpoint.counts()
            if not counts.falls_below(before.counts) and counts != before.counts:
                self._keep(Part(self._part.release, Counted(before.rollout, before.cluster, counts)))
        return self._part.counted

    async def take(self, found: PlacementResult) -> None:
        """Do what the server asked for in this answer. Raises what `fetch` raises."""
        trial = found.trial
        if trial is None or (trial.clusters and found.assignment.cluster not in trial.clusters):
            if self._part is not None:
                await self._end("the rollout does not need this device any more")
        elif trial.rollout not in (self._refused, self._part and self._part.counted.rollout):
            await self._begin(trial, found.assignment.cluster)

    async def _begin(self, trial: Trial, cluster: str) -> None:
        try:
            self._permit(trial.release, trial.rollout)
        except ShoalError as error:
            if str(error) != self._trouble:
                self._say(f"release {trial.release} is not tried: {error}")
            self._trouble = str(error)
            return
        tried = await self._fetch(trial.release)
        if tried.model is None:
            return
        await self._forget()
        save(tried, self._store, self._folder)
        self._keep(Part(trial.release, Counted(trial.rollout, cluster)))
        if refused := await self._endpoint.try_out(self._folder, Counts()):
            self._say(f"release {trial.release} cannot be tried: {refused}")
            self._refused = trial.rollout
            await self._forget()
        else:
            self._say(f"release {trial.release} is tried beside the one that is used, for a rollout")

    async def _end(self, why: str) -> None:
        self._say(f"no other release is tried any more: {why}")
        await self._forget()

    async def _forget(self) -> None:
        self._part = None
        await self._endpoint.try_out(None, Counts())
        shutil.rmtree(self._folder, ignore_errors=True)

    def _keep(self, part: Part) -> None:
        sent = part.counted
        facts = {"release": part.release, "rollout": sent.rollout, "cluster": sent.cluster}
        write(self._folder / KNOWN, json.dumps({**facts, "counts": astuple(sent.counts)}).encode())
        self._part = part
        crash.point("device.counts-kept")


def _stored(folder: Path) -> Part | None:
    """What the last process has left; None if it cannot be used, and then another one begins."""
    known = read_json(folder / KNOWN)
    try:
        counts = Counts(*map(int, known["counts"]))
        return Part(str(known["release"]), Counted(str(known["rollout"]), str(known["cluster"]), counts))
    except (KeyError, TypeError, ValueError, BadPayload):
        return None
