"""Notes what happens in the open round of a run, and makes its history when the round is over."""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from fedserver.coordinator.history.pace import Pace
from shoal.core.algorithm import State
from shoal.core.exchange.parts import Descriptor
from shoal.core.server_kit.aggregation.guard import Guard
from shoal.core.server_kit.history.changes import changes, parents_of
from shoal.core.server_kit.history.figures import Figures, mean, measured_on
from shoal.core.server_kit.history.positions import positions
from shoal.core.server_kit.history.records import (
    ABANDONED,
    GROUPED,
    JOINED,
    MERGED,
    MOVED,
    REMARK,
    ROLLED_BACK,
    SPLIT,
    TRAIN,
    ClusterRound,
    DeviceRound,
    Position,
    RoundHistory,
    RunEvent,
    digest_of,
)
from shoal.core.texts import measure
from shoal.core.types import DeviceId, ModelKey

LOGGED_KINDS, MAX_LOGGED = (GROUPED, SPLIT, MERGED, MOVED, JOINED, REMARK), 20
"""The kinds of events that the log of a run has lines about, and how many of one round."""
WHOLE_DIGEST_ROUNDS = 100
"""Each time after this number of rounds, the digest assigns all devices a cluster again."""
MAX_NAMED = 10
"""How many missing devices a log line names; `run show` lists all."""
Moved = Mapping[DeviceId, tuple[int, int]]
"""By device, the bytes that it sent and fetched."""


@dataclass
class _Notes:
    """What has happened in the open round so far. offered, reported: when, by the recorder's clock."""

    offered: dict[DeviceId, float] = field(default_factory=dict)
    reported: dict[DeviceId, float] = field(default_factory=dict)
    figures: Mapping[DeviceId, Figures] = field(default_factory=dict)
    positions: Mapping[DeviceId, Position] = field(default_factory=dict)
    events: list[RunEvent] = field(default_factory=list)
    back_to: int = 0
    went_back: tuple[ModelKey, ...] = ()


class Recorder:
    """One for each run. Everything is in memory: after a restart of the server, the history of the round that
    was open lacks the times and bytes from before, and nothing else.

    state: with which the present round opened. resumed: the round that was open when the server started; 0:
    none. clock: seconds, of any clock that never runs backwards. pace: of the rounds of training.
    """

    def __init__(self, state: State, resumed: int = 0, clock: Callable[[], float] = time.monotonic) -> None:
        self._state, self._resumed, self._clock, self._notes = state, resumed, clock, _Notes()
        self.pace = Pace(state.progress)
        self._assigned: dict[DeviceId, ModelKey] = {}

    def offered(self, device: DeviceId) -> None:
        """A device has a task. If it gets the task again, its time goes on."""
        self._notes.offered.setdefault(device, self._clock())

    def reported(self, device: DeviceId) -> None:
        """The report of a device counts."""
        self._notes.reported[device] = self._clock()

    def rolled_back(self, round: int, cluster: ModelKey = "") -> None:
        """The round that ends next is a roll back to what `round` opened with, of all or of one cluster."""
        self._notes.back_to, self._notes.went_back = round, (cluster,) if cluster else ()

    def event(self, kind: str, text: str) -> None:
        """Something happened, which the history shows with the round that ends next."""
        self._notes.events.append(RunEvent(kind, text))

    def combined(self, figures: Mapping[DeviceId, Figures], following: State) -> None:
        """The reports were combined; this may run on any thread. figures: of the devices that counted."""
        before, after = _described(self._state), _described(following)
        changed = any(before.get(device) is not descriptor for device, descriptor in after.items())
        self._notes.figures, self._notes.positions = figures, positions(after) if changed else {}

    def closed(
        self,
        record: RoundHistory,
        state: State,
        models: Mapping[ModelKey, str],
        asked: Iterable[DeviceId],
        missing: Mapping[DeviceId, str],
        moved: Moved,
    ) -> RoundHistory:
        """The whole history of the round, which is over; the next one opens with `state`.

        record: what the run itself knows of it. models: the SHA-256 of each model. asked: the devices with a
        task. missing: those whose reports do not count, and why. moved: since the round before.
        """
        notes, before, now = self._notes, self._state, self._clock()
        self._notes, self._state = _Notes(), state
        if record.abandoned or record.round == self._resumed:
            self.pace.lost(state.progress)
        else:
            self.pace.passed(record.seconds, state.progress)
        if record.abandoned:
            notes.figures, notes.positions = {}, {}
        homes = {device: _home(state, device) for device in sorted(asked)}
        found = replace(
            record,
            ended=time.time(),
            progress=state.progress,
            measured_on=measured_on(notes.figures),
            loss=mean(notes.figures.values(), "loss"),
            accuracy=mean(notes.figures.values(), "accuracy"),
            bytes_up=sum(up for up, _ in moved.values()),
            bytes_down=sum(down for _, down in moved.values()),
            clusters=_clusters(before, state, models, notes.figures, homes),
            events=(*notes.events, *_events(record, before, state, notes)),
            devices=tuple(
                _device(device, home, notes, missing.get(device, ""), moved.get(device, (0, 0)), now)
                for device, home in homes.items()
            ),
            back_to=notes.back_to if record.abandoned else 0,
            positions=notes.positions,
        )
        digest = digest_of(found, {} if record.round % WHOLE_DIGEST_ROUNDS == 0 else self._assigned)
        self._assigned |= digest.assigned
        return replace(found, digest=digest)


def log_lines(closed: RoundHistory, numbers: bool) -> list[str]:
    """The lines that the run's log has about a round that is over, its models and its clusters. numbers:
    whether labels are."""
    texts = [event.text for event in closed.events if event.kind in LOGGED_KINDS]
    more = [f"... and {len(texts) - MAX_LOGGED} more changes"] if len(texts) > MAX_LOGGED else []
    return [_summary(closed, measure(numbers)), *texts[:MAX_LOGGED], *more]


def _summary(closed: RoundHistory, what: str) -> str:
    """The log line about a round that is over. what: the name of its accuracy."""
    parts = ("no result", closed.title, closed.abandoned) if closed.abandoned else ("done", closed.title)
    end = ": ".join(filter(None, parts))
    others = [each for each in sorted(closed.missing.items()) if f": {each[1]}" not in closed.abandoned]
    missing = "".join(f"; {device} is missing: {reason}" for device, reason in others[:MAX_NAMED])
    more = f"; {len(others) - MAX_NAMED} more are missing" if len(others) > MAX_NAMED else ""
    loss = "" if closed.loss is None else f"; loss {closed.loss:.4f}"
    before = " before" if closed.measured_on == TRAIN else ""
    accuracy = "" if closed.accuracy is None else f"; held-out {what}{before} {closed.accuracy:.3f}"
    counted = f"{closed.reported} of {closed.asked} devices counted"
    return f"{end}; {counted}, {closed.seconds:.1f} s{loss}{accuracy}{missing}{more}"


def _device(
    device: DeviceId, home: ModelKey, notes: _Notes, missing: str, moved: tuple[int, int], now: float
) -> DeviceRound:
    figures = notes.figures.get(device, Figures())
    began, ended = notes.offered.get(device), notes.reported.get(device)
    return DeviceRound(
        device,
        home,
        figures.examples,
        figures.loss,
        figures.accuracy,
        *moved,
        None if began is None or ended is None else ended - began,
        None if ended is None else now - ended,
        missing,
    )


def _clusters(
    before: State,
    state: State,
    models: Mapping[ModelKey, str],
    figures: Mapping[DeviceId, Figures],
    homes: Mapping[DeviceId, ModelKey],
) -> tuple[ClusterRound, ...]:
    parents, sizes = parents_of(before, state), Counter(state.assignments.values() or homes.values())
    guard = getattr(state, "guard", None)
    # The guard keeps its remarks until the next round of training.
    judged = isinstance(guard, Guard) and any(each.trained for each in figures.values())
    remarks: Mapping[ModelKey, tuple[str, ...]] = guard.of_round if judged else {}  # type: ignore[union-attr]
    of_cluster: dict[ModelKey, list[Figures]] = {key: [] for key in state.models}
    for device, each in sorted(figures.items()):
        of_cluster.setdefault(homes.get(device, ""), []).append(each)
    return tuple(
        ClusterRound(
            key,
            models.get(key, ""),
            sizes[key],
            mean(of_cluster[key], "loss"),
            mean(of_cluster[key], "accuracy"),
            parents[key],
            tuple(remarks.get(key, ())),
        )
        for key in state.models
    )


def _events(record: RoundHistory, before: State, state: State, notes: _Notes) -> list[RunEvent]:
    if record.abandoned:
        kind = ROLLED_BACK if notes.back_to else ABANDONED
        return [RunEvent(kind, record.abandoned, notes.went_back)]
    new = [remark for remark in state.remarks if remark not in before.remarks]
    return [*changes(before, state), *(RunEvent(REMARK, remark) for remark in new)]


def _home(state: State, device: DeviceId) -> ModelKey:
    only = next(iter(state.models)) if len(state.models) == 1 else ""
    return state.assignments.get(device, only)


def _described(state: State) -> Mapping[DeviceId, Descriptor]:
    """The descriptors that devices have released, of an algorithm that has any."""
    found: Mapping[DeviceId, Descriptor] = getattr(state, "descriptors", {})
    return found
