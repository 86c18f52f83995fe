"""A device that follows a release compares its data, once a day, with those that it got its model for.

<state>/watch/state.json         what was found last, and the answer that waits for the next request
<state>/watch/reference-N.npz    latents and predictions of the samples that were there when the model came

    another release or cluster --> a new reference --> compared each day --> shown by `fedclient status`
    time for an answer, and the owner's budget has room --> the ledger pays --> one randomized bit --> the
    next wish --> gone

All of it stays here but that bit. The first leaves at a random time within 92 days, so that those of a fleet
are spread over them, and the next ones 92 days after the last that the ledger has paid for. A crash may lose
one that was paid; none is drawn twice.
"""

import io
import json
import secrets
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from zipfile import BadZipFile

import numpy as np

from fedclient.config import ClientConfig
from fedclient.placing.placement import PlacementResult
from fedclient.store.blobs import BlobStore
from fedclient.store.findings import FOLDER, STATE, Findings, findings_in
from fedclient.store.ledger import DAY
from fedclient.store.privacy_report import ledger_of
from fedclient.work.executor import Executor, performed
from shoal.core.errors import ShoalError
from shoal.core.exchange.choosing.watching import Moved, Watch, Watched
from shoal.core.exchange.link import Task
from shoal.core.exchange.payload import decode, encode
from shoal.core.inference.drift import LEVEL
from shoal.core.privacy.ledger.entries import paid
from shoal.core.privacy.noise.response import EVERY_DAYS
from shoal.core.privacy.payment import WATCH
from shoal.core.types import Tensors
from shoal.shell.disk import write

COMPARE_SECONDS, ANSWER_SECONDS = DAY, EVERY_DAYS * DAY
"""Seconds between two comparisons, and between two answers that leave."""


class Watcher:
    """Of one device; the caller has locked its folder."""

    def __init__(self, settings: ClientConfig, clock: Callable[[], float] = time.time) -> None:
        self._settings, self._clock = settings, clock
        self._folder = settings.state / FOLDER

    @property
    def findings(self) -> Findings:
        """What was found last; nothing where that cannot be read."""
        return findings_in(self._settings.state)

    def sent(self, moved: Moved | None) -> None:
        """The server has this answer. Raises StorageFault."""
        found = self.findings
        if moved is not None and found.waiting == moved:
            self._keep(replace(found, waiting=None))

    async def look(self, placed: PlacementResult, executor: Executor, store: BlobStore) -> None:
        """Compare, if it is time; and take a new reference where the device has another model. A fault is
        noted and hinders nothing."""
        found, now = self.findings, self._clock()
        where = (placed.release or placed.run, placed.assignment.cluster)
        if where != (found.subject, found.cluster):
            due = found.due or now + ANSWER_SECONDS * secrets.randbelow(1 << 20) / (1 << 20)
            found = Findings(*where, due=due, waiting=found.waiting)
        elif 0.0 <= now - found.looked < COMPARE_SECONDS:
            return
        try:
            found = await self._compared(replace(found, looked=now), placed, executor, store)
        except ShoalError as error:
            found = replace(found, looked=now, trouble=str(error))
        self._keep(found)

    async def _compared(
        self, found: Findings, placed: PlacementResult, executor: Executor, store: BlobStore
    ) -> Findings:
        """Raises ShoalErrors."""
        if placed.of_cluster is None:
            return found
        reference = self._reference(found.reference)
        holder = self._settings.consents.holder  # others may share the ledger
        debits = paid(ledger_of(self._settings).entries(), WATCH)
        answers = [each.at for each in debits if each.holder == holder]
        due = max(found.due, max(answers, default=0.0) + ANSWER_SECONDS)
        answer = f"{holder} {found.subject} {found.cluster} {len(answers)}"
        asked = bool(reference) and found.waiting is None and found.looked >= due
        question = Watch(store.load(placed.of_cluster), reference, answer if asked else "")
        task = Task(placed.run, 1, 0, 0, Watch.kind, encode(question, store.keep))
        said = decode(await performed(executor, task), {Watched.kind: Watched}, store.load)
        assert isinstance(said, Watched)
        if said.reference is not None:
            name = self._keep_reference(said.reference)
            return replace(found, reference=name, taken=found.looked, trouble="")
        moved = said.chance <= LEVEL
        since = (found.since or found.looked) if moved else 0.0
        found = replace(found, chance=said.chance, fresh=said.fresh, since=since, trouble=said.refused)
        if said.said < 0:
            return found
        named = "" if placed.tried else found.cluster  # who has chosen by itself keeps its choice
        return replace(
            found, waiting=Moved(found.subject, named, bool(said.said)), due=found.looked + ANSWER_SECONDS
        )

    def _reference(self, name: str) -> Tensors | None:
        """None where there is none, or it is damaged: then a new one is taken."""
        try:
            with np.load(self._folder / name, allow_pickle=False) as found:
                return dict(found)
        except (OSError, ValueError, EOFError, BadZipFile, RuntimeError):  # as of an unknown version of zip
            return None

    def _keep_reference(self, found: Tensors) -> str:
        """Write it under a new name, so that the earlier one is whole until `_keep` names this one."""
        data, name = io.BytesIO(), f"reference-{secrets.token_hex(4)}.npz"
        np.savez(data, **{key: np.asarray(each) for key, each in found.items()})  # type: ignore[arg-type]
        write(self._folder / name, data.getvalue())
        return name

    def _keep(self, found: Findings) -> None:
        write(self._folder / STATE, json.dumps(asdict(found)).encode())
        for old in self._folder.glob("reference-*.npz"):
            if old.name != found.reference:
                old.unlink(missing_ok=True)
