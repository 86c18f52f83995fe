"""Counts in memory: bytes for the journal and for the history of runs, and what monitoring asks for."""

import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from fedserver.store.records import Traffic
from shoal.core.server_kit.history.records import RoundHistory
from shoal.core.types import DeviceId, RunId

MAX_PHASES = 64
"""Phases of one round that are traced: a round has five, and more only if its reports were damaged."""


@dataclass(frozen=True)
class Phase:
    """A part of a round. began, ended: seconds since 1970."""

    name: str
    began: float
    ended: float


Trace = Callable[[RunId, RoundHistory, Sequence[Phase]], None]
"""Called with each round that is over, and its phases in the order in which they ended."""


class Meter:
    """What has happened since the server was started.

    reports: by outcome: accepted, failed, refused, late or duplicate. refusals: calls that ended in an error,
    by its code. rounds: done or abandoned. seconds: by phase of a round: plan, devices (from its opening
    until its reports are in), combine, checkpoint (the models) and save (what happened). uploaded,
    downloaded: bytes of blobs. trace: what follows rounds, see
    `fedserver.telemetry.tracing`; None: nothing does.
    """

    def __init__(self) -> None:
        self.reports: Counter[str] = Counter()
        self.refusals: Counter[str] = Counter()
        self.rounds: Counter[str] = Counter()
        self.seconds: Counter[str] = Counter()
        self.uploaded = self.downloaded = 0
        self._up: Counter[tuple[RunId, DeviceId]] = Counter()
        self._down: Counter[tuple[RunId, DeviceId]] = Counter()
        self._rounds: dict[RunId, dict[DeviceId, tuple[int, int]]] = {}
        self.trace: Trace | None = None
        self._phases: dict[RunId, deque[Phase]] = {}

    def up(self, run: RunId, device: DeviceId, size: int) -> None:
        self.uploaded += size
        self._up[run, device] += size
        self._in_round(run, device, size, 0)

    def down(self, run: RunId, device: DeviceId, size: int) -> None:
        self.downloaded += size
        self._down[run, device] += size
        self._in_round(run, device, 0, size)

    def _in_round(self, run: RunId, device: DeviceId, up: int, down: int) -> None:
        known = self._rounds.setdefault(run, {})
        before = known.get(device, (0, 0))
        known[device] = (before[0] + up, before[1] + down)

    @contextmanager
    def phase(self, run: RunId, name: str) -> Iterator[None]:
        """Add the time that the block takes to the seconds of this phase."""
        began = time.monotonic()
        try:
            yield
        finally:
            self.add_seconds(run, name, time.monotonic() - began)

    def refused(self, code: str) -> None:
        """A call ended in an error with this code."""
        self.refusals[code] += 1

    def add_seconds(self, run: RunId, phase: str, seconds: float) -> None:
        """A phase of a run's round has just ended."""
        self.seconds[phase] += seconds  # type: ignore[assignment]
        if self.trace is not None:
            now = time.time()
            self._phases.setdefault(run, deque(maxlen=MAX_PHASES)).append(Phase(phase, now - seconds, now))

    def round_over(self, run: RunId, closed: RoundHistory) -> None:
        """A round is over and stored."""
        self.rounds["abandoned" if closed.abandoned else "done"] += 1
        if self.trace is not None:
            self.trace(run, closed, self._phases.pop(run, ()))

    def take_round(self, run: RunId) -> dict[DeviceId, tuple[int, int]]:
        """Return the bytes that each device has sent and fetched in a run, and reset them to zero."""
        return self._rounds.pop(run, {})

    def only_of(self, runs: Iterable[RunId]) -> None:
        """Forget what newcomers have fetched of other runs since their last rounds: none of theirs comes."""
        for run in {*self._rounds, *self._phases}.difference(runs):
            self._rounds.pop(run, None)
            self._phases.pop(run, None)

    def give_back(self, taken: Iterable[Traffic]) -> None:
        """Add back what was taken but could not be stored."""
        for each in taken:
            self._up[each.run, each.device] += each.up
            self._down[each.run, each.device] += each.down

    def take(self) -> list[Traffic]:
        """Return the bytes of all devices since the last call, and reset them to zero."""
        keys = sorted({*self._up, *self._down})
        taken = [Traffic(device, run, self._up[run, device], self._down[run, device]) for run, device in keys]
        self._up.clear()
        self._down.clear()
        return taken
