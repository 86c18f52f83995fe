"""The round that is open: who has a task, who has answered, and how long the others may still take.

Every question is answered without a look at all tasks, whatever their number.
"""

import math
from bisect import insort
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from shoal.core.algorithm import Plan
from shoal.core.engine.policy import RoundPolicy
from shoal.core.engine.sessions import Presence, Session
from shoal.core.errors import StaleReport
from shoal.core.exchange.messages import Message
from shoal.core.types import DeviceId

SHARE_NEEDED, SHARE_NEEDED_LATER = 2 / 3, 1 / 2
"""The share of the devices at work that must have answered before the others run out of time: if only they
show what a task takes, and if an earlier round has shown it too."""
TYPICAL = 0.9
"""The time of a task is what this share of the devices that have answered needed at most."""
LATE, MISSED = 1 / 2, 2 / 3
"""The shares of its time after which another device steps in for a device, and after which it has missed its
task if the round closes without it."""
ALONE = 60.0
"""Seconds after which another device steps in for one on which a whole round depends: the work of one more
device costs little, and there are no others to show what the task takes."""
SHORTEST = 10.0
"""Seconds that every device has for a task: a connection that fails for a moment is no missed task."""


class OpenRound:
    """plan: the tasks. reported: the devices whose reports count.
    missing: the devices that are not expected to answer any more, and why. silent: those of them that have
    just gone quiet and may be back. asking: those that wait for their owners' consent. outstanding: the
    devices that are expected to answer.

    typical: what tasks of each kind took in an earlier round, seconds. stored: the devices whose reports
    count already, in a round that is resumed. timed: whether the round shows what tasks take; one that is
    resumed does not, since results that were ready arrive at once.
    """

    def __init__(
        self,
        plan: Plan,
        now: float = 0.0,
        policy: RoundPolicy | None = None,
        typical: Mapping[str, float] | None = None,
        stored: Iterable[DeviceId] = (),
        *,
        timed: bool = True,
    ) -> None:
        self._policy, self.began = policy or RoundPolicy(), now
        self.plan = replace(plan, tasks={})
        self._first = len(plan.tasks)
        self.reported: set[DeviceId] = set()
        self.missing: dict[DeviceId, str] = {}
        self.silent: set[DeviceId] = set()
        self.asking: set[DeviceId] = set()
        self.outstanding: set[DeviceId] = set()
        self.is_over = False
        self.tried: set[DeviceId] = set()
        """The devices that were considered to step in."""
        self._stored, self._timed, self._typical = frozenset(stored), timed, dict(typical or {})
        self._since: dict[DeviceId, float] = {}
        self._offered: set[DeviceId] = set()
        self._latest: dict[str, float] = {}
        self._needed: dict[str, list[float]] = {}
        self._at_work: Counter[str] = Counter()
        self._answered: Counter[str] = Counter()
        self.add(plan.tasks, now)

    @property
    def drawn(self) -> int:
        """How many reports close a round that asks no others; see `Plan`."""
        return min(self._policy.devices or self._first, self._first)

    @property
    def goal(self) -> int:
        """How many reports close the round."""
        return self.drawn if self.plan.others is None else len(self.plan.tasks)

    def expects(self, device: DeviceId, round: int, session: Session, attempt: int) -> Message:
        """The task that a report of this device would answer. Raises StaleReport if there is none."""
        again = "ask for the next task"
        if device not in self.plan.tasks:
            raise StaleReport(f"device {device} has no task in round {round}", again)
        if attempt != session.attempt:
            raise StaleReport(
                f"attempt {attempt} of device {device} was replaced by attempt {session.attempt}",
                "run one process per device: stop the other one",
            )
        if device in self.reported or session.presence is not Presence.WORKING:
            raise StaleReport(f"device {device} has no open task in round {round}", again)
        return self.plan.tasks[device]

    # -- what happens -----------------------------------------------------------------------------------

    def offered(self, device: DeviceId, now: float) -> None:
        """A device has its task. If it gets the task again, for example after a crash, its time goes on."""
        if device not in self._offered:
            self._offered.add(device)
            self._since[device] = now
            self._latest[self._kind(device)] = now

    def joined(self, device: DeviceId) -> None:
        """A device is back: it may answer after all."""
        self.silent.discard(device)
        self.asking.discard(device)
        if not self.is_over and self.missing.pop(device, None) is not None:
            self.outstanding.add(device)
            self._at_work[self._kind(device)] += 1

    def lost(self, device: DeviceId, reason: str, *, silent: bool = False, asks: bool = False) -> None:
        """A device with a task will not answer it. asks: not before its owner allows it."""
        if not silent:
            self.silent.discard(device)
        if device in self.outstanding:
            self._ended(device)
            self.missing[device] = reason
            if silent:
                self.silent.add(device)
            if asks:
                self.asking.add(device)

    def answered(self, device: DeviceId, now: float) -> None:
        """The report of a device counts."""
        kind = self._kind(device)
        self._ended(device)
        self.reported.add(device)
        self._answered[kind] += 1
        if self._timed:
            insort(self._needed.setdefault(kind, []), now - self._since[device])

    def withdrawn(self, device: DeviceId) -> None:
        """The report of a device does not count any more; it is expected again, as if it had just begun."""
        if self.is_over:  # the silent ones have been counted as late already
            self.silent.clear()
        self.is_over = False
        self.reported.discard(device)
        self._offered.discard(device)
        self._answered[self._kind(device)] -= 1
        self.outstanding.add(device)
        self._at_work[self._kind(device)] += 1

    def change(self, policy: RoundPolicy) -> None:
        """The round goes on by another policy."""
        self._policy = policy

    def add(self, tasks: Mapping[DeviceId, Message], now: float) -> None:
        """More devices have tasks. The reports of some of them may be stored already."""
        self.plan = replace(self.plan, tasks={**self.plan.tasks, **tasks})
        for device in tasks:
            kind = self._kind(device)
            if device in self._stored:
                self.reported.add(device)
                self._answered[kind] += 1
            else:
                self.outstanding.add(device)
                self._at_work[kind] += 1
            self._since[device] = self._latest[kind] = now

    def end(self, reason: str, missed: Callable[[DeviceId], str], now: float) -> list[DeviceId]:
        """The round is over. Returns the devices whose reports do not count, sorted.

        missed: called with each device that has missed its task; what it returns is added to the reason.
        """
        absent = sorted(set(self.plan.tasks) - self.reported)
        for device in absent:
            late = device in self.outstanding and self._has_used(MISSED, device, now)
            more = missed(device) if late or device in self.silent else ""
            self.missing[device] = self.missing.get(device, reason) + more
        self.missing = {device: self.missing[device] for device in absent}
        for device in tuple(self.outstanding):  # if the round is opened again, they are not asked again
            self._ended(device)
        self.is_over = True
        return absent

    def _ended(self, device: DeviceId) -> None:
        self.outstanding.discard(device)
        self._at_work[self._kind(device)] -= 1

    # -- how long a task takes --------------------------------------------------------------------------

    def taken(self) -> dict[str, float]:
        """By kind of task, what the devices needed in this round."""
        return {kind: _typical(needed) for kind, needed in self._needed.items()}

    def time_for(self, kind: str) -> float:
        """How many seconds a device may take for a task of this kind, as far as is known now."""
        needed = self._needed.get(kind, [])
        known = max(self._typical.get(kind, 0.0), _typical(needed) if needed else 0.0)
        factor, deadline = self._policy.straggler_factor, self._policy.deadline
        if not factor or not known:
            return deadline
        return min(max(SHORTEST, factor * known), deadline)

    def ends_for_the_slow(self) -> float:
        """When the devices that have not answered by then have run out of time; infinite as long as the
        others have not shown what their tasks take."""
        end = -math.inf
        for kind, latest in self._latest.items():
            if not self._at_work[kind]:
                continue
            share = SHARE_NEEDED_LATER if kind in self._typical else SHARE_NEEDED
            answered = self._answered[kind]
            shown = (
                self._policy.straggler_factor
                and answered
                and answered >= share * (answered + self._at_work[kind])
            )
            end = max(end, latest + self.time_for(kind) if shown else math.inf)
        return end if self.outstanding else math.inf

    def lacking(self, now: float) -> int:
        """How many devices should step in: for those that are missing, and for those that are late."""
        most = ALONE if self.goal == 1 else math.inf
        late = sum(
            self._has_used(LATE, device, now) or now - self._since[device] >= most
            for device in self.outstanding
        )
        return max(0, self.goal - len(self.reported) - len(self.outstanding) + late)

    def _has_used(self, share: float, device: DeviceId, now: float) -> bool:
        """Whether a device has used this share of the time that it may take."""
        return now - self._since[device] >= share * self.time_for(self._kind(device))

    def _kind(self, device: DeviceId) -> str:
        task: Any = self.plan.tasks[device]
        return str(task.kind)


def _typical(needed: list[float]) -> float:
    return needed[max(0, math.ceil(TYPICAL * len(needed)) - 1)]
