"""What the page asks the server by the operators' socket, and nothing that changes anything."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
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


ROUNDS = 100
"""How many rounds are taken in one look, so that a long run takes little memory at a time."""


@dataclass(frozen=True)
class Answer:
    """What one look found. server: for every view. documents: of this view, by name.

    rows: rounds of the run, from number `start` on; more: there are further ones.
    """

    server: dict[str, Any]
    documents: dict[str, Any]
    rows: Sequence[dict[str, Any]] = field(default=())
    start: int = 0
    more: bool = False


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
        past = self._pasts.get(run)
        summary = next((replace(each, time_left=None) for each in runs if each.run == run), None)
        if past is None or past.rows != have or summary is None or past.created != summary.created:
            past = self._pasts[run] = Past(summary.created if summary else None)
        start = past.rows
        single = run_view.single(summary, runs) if summary and summary.cluster_count > 1 else None
        seen = (summary, single and replace(single, time_left=None))
        if summary is not None and seen == past.seen:
            return Answer(server, {}, start=start)
        status = self._client.show(run)
        rows = past.take(self._rounds(run, past.last, status.summary.round - 1))
        more = len(rows) == ROUNDS
        past.seen = None if more else seen
        beside = self._beside(single)
        documents = {"run": run_view.document(status), "map": past.places, "beside": beside}
        return Answer(server, documents, rows, start, more)

    def _rounds(self, run: RunId, after: int, last: int) -> Iterator[RoundHistory]:
        """Some of the rounds that are over, up to the one that is known to be the last."""
        if after < last:
            for each in islice(self._client.history(run, after), ROUNDS):
                yield each
                if each.round >= last:
                    return

    def _beside(self, single: RunSummary | None) -> dict[str, Any] | None:
        """The run with one model that another is compared with; it is asked for where it has got further."""
        if single is None:
            return None
        now = (single.run, single.created, single.round, single.stage, single.accuracy)
        if self._single is None or self._single[0] != now:
            self._single = now, run_view.beside(single, self._client.show(single.run))
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
