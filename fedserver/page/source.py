"""What the page asks the server by the operators' socket, and nothing that changes anything."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from fedserver.authority.answers import Known
from fedserver.coordinator.status_types import RunStatus, RunSummary, ServerStatus
from fedserver.page.views import run as run_view
from fedserver.page.views.fleet import Fleet
from fedserver.page.views.past import Past
from fedserver.page.views.texts import words
from shoal.core.errors import ConfigError
from shoal.core.server_kit.history.records import RoundHistory
from shoal.core.types import RunId

REGISTRY = 10.0
"""Seconds for which the labels of devices are not asked for again."""
STATUS = 3.0
"""The same for the devices themselves, while only runs are looked at."""


@dataclass(frozen=True)
class Answer:
    """What one look found. server: for every view. documents: of this view, by name.

    rows: rounds of the run, from number `start` on.
    """

    server: dict[str, Any]
    documents: dict[str, Any]
    rows: Sequence[dict[str, Any]] = field(default=())
    start: int = 0


class Source(Protocol):
    """Where the feed asks. Calls come one at a time, from a thread of their own."""

    def look(self, run: RunId, have: int) -> Answer:
        """The fleet, or a run of which `have` rounds are known.

        Raises ShoalErrors; Unavailable if there is no server.
        """

    def forget(self, run: RunId) -> None:
        """No one looks at this run any more."""


class Asked(Protocol):
    """What is called of `fedserver.rpc.client.AuthorityClient`: these methods and no others."""

    def status(self) -> ServerStatus: ...
    def runs(self) -> list[RunSummary]: ...
    def devices(self) -> list[Known]: ...
    def show(self, run: RunId) -> RunStatus: ...
    def history(self, run: RunId, after: int = 0) -> Iterator[RoundHistory]: ...


class Server:
    """The source that is a running server."""

    def __init__(self, client: Asked) -> None:
        self._client = client
        self._fleet = Fleet()
        self._status: tuple[float, ServerStatus] | None = None
        self._registry: tuple[float, Sequence[Known]] | None = None
        self._pasts: dict[RunId, Past] = {}
        self._single: tuple[object, dict[str, Any]] | None = None

    def look(self, run: RunId, have: int) -> Answer:
        status = self._ask_status(0.0 if not run else STATUS)
        runs = {each.run: each for each in self._client.runs()}
        runs |= {each.run: each for each in status.runs if each.run in runs and not runs[each.run].over}
        server = {
            "version": words(status.version),
            "notices": [words(notice) for notice in status.notices],
            "runs": [self._fleet.run(each, time.time()) for each in runs.values()],
        }
        if not run:
            devices = self._fleet.devices(status, self._ask_registry(), time.time())
            return Answer(server, {"fleet": {"devices": devices}})
        return self._look_at(run, have, server, list(runs.values()))

    def forget(self, run: RunId) -> None:
        self._pasts.pop(run, None)

    def _look_at(self, run: RunId, have: int, server: dict[str, Any], runs: Sequence[RunSummary]) -> Answer:
        status = self._client.show(run)
        past = self._pasts.get(run)
        if past is None or past.rows != have or past.created != status.summary.created:
            past = self._pasts[run] = Past(status.summary.created)
        start = past.rows
        rows = past.take(self._client.history(run, past.last))
        beside = self._beside(status.summary, runs)
        documents = {"run": run_view.document(status), "map": past.places, "beside": beside}
        return Answer(server, documents, rows, start)

    def _beside(self, run: RunSummary, runs: Sequence[RunSummary]) -> dict[str, Any] | None:
        """The run with one model that this one is compared with; it is asked for where it has got further."""
        found = run_view.single(run, runs) if run.cluster_count > 1 else None
        if found is None:
            return None
        now = (found.run, found.created, found.round, found.stage, found.accuracy)
        if self._single is None or self._single[0] != now:
            self._single = now, run_view.beside(found, self._client.show(found.run))
        return self._single[1]

    def _ask_status(self, age: float) -> ServerStatus:
        if self._status is None or time.monotonic() - self._status[0] > age:
            self._status = (time.monotonic(), self._client.status())
        return self._status[1]

    def _ask_registry(self) -> Sequence[Known]:
        if self._registry is None or time.monotonic() - self._registry[0] > REGISTRY:
            try:
                found = self._client.devices()
            except ConfigError:  # a server in plain text has no registry
                found = []
            self._registry = (time.monotonic(), found)
        return self._registry[1]
