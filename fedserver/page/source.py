"""What the page knows a server by: what one look finds, and the calls that it makes, which change nothing."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from fedserver.authority.answers import Known
from fedserver.coordinator.status_types import (
    ReleaseSummary,
    RolloutStatus,
    RunStatus,
    RunSummary,
    ServerStatus,
)
from fedserver.store.journal.newcomers import PlacementRecord
from fedserver.store.records import Move
from shoal.core.server_kit.history.records import RoundHistory
from shoal.core.types import DeviceId, RunId


@dataclass(frozen=True)
class Answer:
    """What one look found. server: for every view. documents: of this view, by name.

    rows: rounds of the run, from number `start` on; more: there are further ones. took: seconds of what is
    asked in each look.
    """

    server: dict[str, Any]
    documents: dict[str, Any]
    rows: Sequence[dict[str, Any]] = field(default=())
    start: int = 0
    more: bool = False
    took: float = 0.0


class Source(Protocol):
    """Where the feed asks. Calls come one at a time, from a thread of their own."""

    def look(self, run: RunId, have: int) -> Answer:
        """The fleet, or a run of which `have` rounds are known.

        Raises ShoalErrors; Unavailable if there is no server.
        """

    def forget(self, run: RunId) -> None:
        """No one looks at this run any more."""


class Asked(Protocol):
    """What is called of `fedserver.rpc.client.OperatorClient`: these methods and no others."""

    def status(self, *, released: bool = True) -> ServerStatus: ...
    def runs(self) -> list[RunSummary]: ...
    def devices(self) -> list[Known]: ...
    def placements(
        self, run: RunId = "", device: DeviceId = "", after: int = 0
    ) -> Iterator[PlacementRecord]: ...
    def releases(self) -> tuple[list[ReleaseSummary], Mapping[str, list[Move]], list[RolloutStatus]]: ...
    def show(self, run: RunId) -> RunStatus: ...
    def history(
        self, run: RunId, after: int = 0, *, devices: bool = True, most: int = 0
    ) -> Iterator[RoundHistory]: ...
