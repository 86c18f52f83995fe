"""Asking a running server: what is asked in each look, and what has a pace of its own."""

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

from fedserver.authority.answers import Known
from fedserver.coordinator.status_types import RunSummary, ServerStatus
from fedserver.page.source import Answer, Asked
from fedserver.page.views import releases
from fedserver.page.views import run as run_view
from fedserver.page.views.fleet import Fleet
from fedserver.page.views.newcomers import Newcomers
from fedserver.page.views.past import Past
from fedserver.page.views.texts import words
from shoal.core.errors import ConfigError, NotFound
from shoal.core.server_kit.history.records import RoundHistory
from shoal.core.types import RunId

REGISTRY = 10.0
"""Seconds for which the labels of devices are not asked for again."""
STATUS = 3.0
"""The same for the devices themselves, while only runs are looked at, and for releases."""
NEWCOMERS = 1.0
"""The same for what newcomers were answered."""
MAX_BUSY = 0.02
"""The largest part of the time in which a call is open that has a pace of its own. Such calls take longer the
more devices there are; what is asked in each look does not."""
ROUNDS = 500
"""How many rounds are taken in one look, so that a long run takes little memory at a time."""


class Pace:
    """When something may be asked again, so that it takes at most `MAX_BUSY` of the time.

    least: how many seconds lie between two calls at least.
    """

    def __init__(self, least: float = 0.0) -> None:
        self._least, self._next = least, -math.inf

    def is_due(self) -> bool:
        return time.monotonic() >= self._next

    @contextmanager
    def asking(self) -> Iterator[None]:
        """Around the call."""
        began = time.monotonic()
        yield
        now = time.monotonic()
        self._next = now + max(self._least, (now - began) / MAX_BUSY)


@dataclass
class Look:
    """What is known of a run that is looked at.

    seen, beside: how far the run, and the one that it is compared with, had got when last asked for.
    pace: of asking for the run; newcomers_pace: of asking for newcomers.
    """

    past: Past
    seen: object = None
    beside: object = None
    pace: Pace = field(default_factory=Pace)
    newcomers: Newcomers = field(default_factory=Newcomers)
    newcomers_pace: Pace = field(default_factory=lambda: Pace(NEWCOMERS))


class Server:
    """The source that is a running server.

    In each look it is asked for the runs, in a few lines each, and for the rounds that are over since the
    look before. Everything else has a pace of its own, and is asked for once a round is over.
    """

    def __init__(self, client: Asked) -> None:
        self._client = client
        self._fleet = Fleet()
        self._status: ServerStatus | None = None
        self._registry: Sequence[Known] = ()
        self._status_pace, self._registry_pace, self._beside_pace = Pace(STATUS), Pace(REGISTRY), Pace()
        self._releases: dict[str, Any] = {}
        self._releases_pace = Pace(STATUS)
        self._looks: dict[RunId, Look] = {}
        self._single: tuple[object, dict[str, Any]] | None = None

    def look(self, run: RunId, have: int) -> Answer:
        began = time.monotonic()
        runs = self._client.runs()
        took = time.monotonic() - began
        status = self._ask_status(wanted=not run)
        runs = [_with_devices(each, status) for each in runs]
        server = {
            "version": words(status.version),
            "notices": [words(notice) for notice in status.notices],
            "runs": [self._fleet.run(each, time.time()) for each in runs],
        }
        if not run:
            devices = self._fleet.devices(status, self._ask_registry(), time.time())
            documents = {"fleet": {"devices": devices}, "releases": self._ask_releases()}
            return Answer(server, documents, took=time.monotonic() - began)
        return self._look_at(run, have, server, runs, took)

    def forget(self, run: RunId) -> None:
        self._looks.pop(run, None)

    def _look_at(
        self, run: RunId, have: int, server: dict[str, Any], runs: Sequence[RunSummary], took: float
    ) -> Answer:
        summary = next((each for each in runs if each.run == run), None)
        if summary is None:
            raise NotFound(f"there is no run {run!r}")
        look, documents = self._looks.get(run), dict[str, Any]()
        if look is None or look.past.rows != have or look.past.created != summary.created:
            look = self._looks[run] = Look(Past(summary.created))
            documents = {"map": {}, "beside": None, "newcomers": look.newcomers.document()}
        past, began = look.past, time.monotonic()
        start, rows = past.rows, past.take(self._rounds(run, past.last, summary.round - 1))
        took += time.monotonic() - began
        more = len(rows) == ROUNDS
        if past.map_round != past.places.get("round", 0) and not more:
            documents["map"] = past.map(self._client.history(run, past.map_round - 1, most=1))
        single = run_view.single(summary, runs) if summary.cluster_count > 1 else None
        if look.seen != (seen := _course(summary)) and look.pace.is_due():
            look.seen = None  # if the call fails, the page shows why until the next one
            with look.pace.asking():
                documents["run"] = run_view.document(self._client.show(run))
            look.seen = seen
        if look.beside != (beside := single and _course(single)) and self._beside_pace.is_due():
            documents["beside"], look.beside = self._beside(single), beside
        if not more and look.newcomers_pace.is_due():
            with look.newcomers_pace.asking():
                news = look.newcomers.take(self._client.placements(run, after=look.newcomers.last))
            if news:
                documents["newcomers"] = look.newcomers.document()
        return Answer(server, documents, rows, start, more, took)

    def _rounds(self, run: RunId, after: int, last: int) -> Iterator[RoundHistory]:
        """Some of the rounds that are over, up to the one that is known to be the last."""
        if after < last:
            for each in islice(self._client.history(run, after, devices=False, most=ROUNDS), ROUNDS):
                yield each
                if each.round >= last:
                    return

    def _beside(self, single: RunSummary | None) -> dict[str, Any] | None:
        """The run with one model that another is compared with; it is asked for where it has got further."""
        if single is None:
            return None
        now = _course(single)
        if self._single is None or self._single[0] != now:
            with self._beside_pace.asking():
                self._single = now, run_view.beside(single, self._client.show(single.run))
        return self._single[1]

    def _ask_status(self, wanted: bool) -> ServerStatus:
        if self._status is None or wanted or self._status_pace.is_due():
            with self._status_pace.asking():
                self._status = self._client.status(released=False)
        return self._status

    def _ask_releases(self) -> dict[str, Any]:
        if self._releases_pace.is_due():
            with self._releases_pace.asking():
                self._releases = releases.document(*self._client.releases())
        return self._releases

    def _ask_registry(self) -> Sequence[Known]:
        if self._registry_pace.is_due():
            with self._registry_pace.asking():
                try:
                    self._registry = self._client.devices()
                except ConfigError:  # a server in plain text has no registry
                    self._registry = ()
        return self._registry


def _course(summary: RunSummary) -> object:
    """What changes when more than the waiting changes."""
    return (summary.run, summary.created, summary.stage, summary.round, summary.accuracy, summary.rounds)


def _with_devices(fresh: RunSummary, status: ServerStatus) -> RunSummary:
    """A run with what it waits for, which only the status of the server says in full before a round opens."""
    known = next((each for each in status.runs if each.run == fresh.run), fresh)
    if fresh.stage == known.stage == "waiting" and fresh.round == known.round:
        return replace(fresh, waiting_for=known.waiting_for, waiting_devices=known.waiting_devices)
    return fresh
