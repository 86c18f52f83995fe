"""When the next round may open, and which devices it asks: the policy, and the devices of the last round."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import partial

from shoal.core.algorithm import Plan, State
from shoal.core.data.seeds import generator
from shoal.core.engine.policy import RoundPolicy
from shoal.core.engine.round.attendance import Attendance
from shoal.core.engine.round.open_round import OpenRound
from shoal.core.engine.round.waiting import Waiting
from shoal.core.engine.sessions import Presence, Sessions
from shoal.core.types import DeviceId, ModelKey

STEP_IN_SECONDS = 1.0
"""Seconds between two looks for devices that could step in."""


class Opening:
    """Times are seconds on the engine's clock. since: when the last round ended; NaN before the first tick.
    start: the first tick.

    A round waits for a fleet that is too small, and the next one does so only if the fleet has changed: who
    did not come in one round's time would slow down every round.
    """

    def __init__(self, policy: RoundPolicy, seed: int, sessions: Sessions, attendance: Attendance) -> None:
        self.policy, self._seed = policy, seed
        self._sessions, self._attendance = sessions, attendance
        self.since, self.start = math.nan, math.nan
        self._lacking: tuple[tuple[DeviceId, ...], Waiting] = ((), Waiting(""))
        self._waited_with: list[DeviceId] = []

    def began(self, now: float) -> None:
        """A tick has come, maybe the first one. What was before that had no time."""
        if not math.isnan(self.start):
            return
        self.since = self.start = now
        for device in self._sessions.present:
            self._sessions.hear(device, now)

    def revoked(self, device: DeviceId) -> None:
        """A device, here or not, will not come back. If no other one was waited for, none is now."""
        present = self._sessions.present
        if len(present) >= self._wanted or present == self._waited_with:
            self._waited_with = [each for each in present if each != device]

    def time_to_return(self) -> float:
        """How many seconds after a restart a round waits for all the devices that it had before; or after the
        start of a run, for those that asked for work then."""
        return max(self.policy.device_timeout, self.policy.wait_for_devices)

    def returned_by(self) -> float:
        """When that time is over."""
        return self.start + self.time_to_return()

    def ends_for_the_slow(self, tasks: OpenRound) -> float:
        """When the devices that have not answered have run out of time.

        After a restart, those that answered at once say nothing about those that are still on their way back
        with a result. As soon as these are back, their tasks have the usual time.
        """
        end = tasks.ends_for_the_slow()
        is_back = self._attendance.returning.isdisjoint(tasks.outstanding)
        return end if is_back else max(end, self.returned_by())

    def returned(self, now: float) -> list[DeviceId]:
        """The devices that have not come back in that time; they are not waited for any more."""
        returning = self._attendance.returning
        if not returning or now - self.start < self.time_to_return():
            return []
        gone = sorted(returning)
        returning.clear()
        return gone

    def pause_left(self, abandoned: int, now: float) -> float:
        """Seconds until a round may open after this many abandoned ones in a row."""
        pause = self.policy.pause(abandoned)
        return self._seconds_left(pause, self.since, now) if pause else 0.0

    # -- whether it may open ----------------------------------------------------------------------------

    def asks(self, round: int, state: State, now: float) -> tuple[DeviceId, ...]:
        """The devices that a round which opens now asks, sorted; none if it has to wait."""
        waits, enough = now - self.since < self.policy.wait_for_devices, self.policy.least(state)
        if begun := self._begun_by(state):
            here = tuple(device for device in begun if self._sessions.is_here(device))
            complete = all(device in here or device in self._attendance.gone for device in begun)
            if len(here) == len(begun) or (len(here) >= enough and (complete or not waits)):
                return here
            if waits and not complete:
                return ()
        present = self._sessions.present
        least = self._wanted if waits and present != self._waited_with else enough
        if len(present) < least or self._lack(state.assignments, now):
            return ()
        self._waited_with = present if len(present) < self._wanted else []
        ready = self._attendance.ready(present, round, self._wanted)
        asked = self._drawn(ready, self._most or len(ready), round, "sample")
        return () if asked == self._lacking[0] and self._may_wait(now) else asked

    def lacks_quorum(self, plan: Plan, asked: tuple[DeviceId, ...], now: float) -> bool:
        """Whether the round that is planned needs more of the devices of the last round than there are."""
        fleet = self._attendance.fleet
        here, needed = len(fleet.intersection(asked)), math.ceil(plan.quorum * len(fleet))
        if self._most or here >= needed or not self._may_wait(now):
            return False
        text = f"{here} of the {len(fleet)} devices of the last round are here, and {needed} are needed"
        self._lacking = asked, Waiting(text, tuple(sorted(fleet.difference(asked))))
        return True

    def waiting(self, known: Iterable[DeviceId], state: State, now: float) -> Waiting:
        """What the next round waits for. known: all devices that may take part, here or not."""
        present, wanted, least = self._sessions.present, self._wanted, self.policy.least(state)
        seconds = self._seconds_left(self.policy.wait_for_devices, self.since, now)
        if present and present == self._waited_with:
            seconds = 0.0
        if (begun := self._begun_by(state)) and seconds:
            gone = tuple(device for device in begun if not self._sessions.is_here(device))
            here = f"{len(begun) - len(gone)} of the {len(begun)} devices that began this round are here"
            return Waiting(here, gone, seconds)
        if lack := self._lack(state.assignments, now):
            return lack()
        if present and tuple(present) == self._lacking[0] and self._may_wait(now):
            left = self._seconds_left(self.policy.deadline, self.since, now)
            return Waiting(self._lacking[1].text, self._lacking[1].devices, left)
        absent = tuple(sorted({*known} - {*present}))
        lacking = wanted - len(present) - len(absent)
        text = f"{len(present)} of {wanted} devices are here"
        if len(present) > wanted:
            text = f"{len(present)} devices are here, and {wanted} are needed"
        more = f", and {lacking} more must join" if known and lacking > 0 else ""
        return Waiting(
            text + more, absent if len(present) < wanted else (), seconds if wanted != least else None
        )

    def _begun_by(self, state: State) -> list[DeviceId]:
        """The only devices that can go on with what those drawn for the last round have begun, sorted; none
        where a round asks all, which has them too."""
        return sorted(getattr(state, "begun_by", ())) if self._most else []

    def _lack(self, assignments: Mapping[DeviceId, ModelKey], now: float) -> Callable[[], Waiting] | None:
        """What the next round lacks of the devices of the last one; None if nothing. Each device that comes
        is a reason to ask, so the texts, and lists of thousands of devices, are only made for a reader.

        After a restart it waits for all of them for a short time. Whatever the reason for which they are
        away, it waits for half of each cluster until the deadline: or the first device that is back would be
        the whole round.
        """
        attendance = self._attendance
        fleet = attendance.fleet
        if attendance.returning:
            return partial(self._lacks_returning, now)
        if not self._may_wait(now):
            return None
        if self._most:
            lacks = self._sessions.count < min(len(fleet) / 2, self._most)
        else:
            present = Counter(assignments.get(device, "") for device in self._sessions.present)
            wanted = Counter(assignments.get(device, "") for device in fleet)
            lacks = any(present[cluster] < count / 2 for cluster, count in wanted.items())
        return partial(self._lacks_half, now) if lacks else None

    def _lacks_returning(self, now: float) -> Waiting:
        fleet, returning = self._attendance.fleet, self._attendance.returning
        here = f"{len(fleet) - len(returning)} of {len(fleet)} expected devices are here"
        left = self._seconds_left(self.time_to_return(), self.start, now)
        return Waiting(here, tuple(sorted(returning)), left)

    def _lacks_half(self, now: float) -> Waiting:
        fleet = self._attendance.fleet
        absent = tuple(sorted(device for device in fleet if not self._sessions.is_here(device)))
        here = f"{len(fleet) - len(absent)} of the {len(fleet)} devices of the last round are here"
        left = self._seconds_left(self.policy.deadline, self.since, now)
        return Waiting(f"{here}, and half of each cluster is needed", absent, left)

    def _may_wait(self, now: float) -> bool:
        """Whether the next round may still wait for devices of the last one."""
        return not now - self.since >= self.policy.deadline

    def _seconds_left(self, limit: float, since: float, now: float) -> float:
        return max(0.0, limit if math.isnan(since) else since + limit - now)

    @property
    def _wanted(self) -> int:
        return max(self.policy.devices, self.policy.minimum)

    @property
    def _most(self) -> int:
        """How many devices a round asks at most; 0: all."""
        return math.ceil(self.policy.devices * self.policy.oversample)

    # -- which devices ----------------------------------------------------------------------------------

    def drawn_again(self, able: Iterable[DeviceId], round: int) -> tuple[DeviceId, ...]:
        """The devices that a round asks if those drawn first have no task in it. able: those that have."""
        ready = self._attendance.ready(sorted(able), round, self._wanted)
        return self._drawn(ready, self._most or len(ready), round, "drawn again")

    def not_drawn(self, drawn: tuple[DeviceId, ...], round: int) -> tuple[DeviceId, ...]:
        """The devices that a round asks beside those drawn, sorted, if it decides about all."""
        asked = {*drawn}
        rest = [device for device in self._sessions.present if device not in asked]
        return tuple(self._attendance.ready(rest, round, 0))

    def step_in(self, tasks: OpenRound, round: int, state: State, now: float) -> tuple[DeviceId, ...]:
        """The idle devices that should be asked in place of those that are missing or late, sorted."""
        room = tasks.goal if self._has_no_one(tasks) else tasks.goal - len(tasks.tried)
        number = min(tasks.lacking(now), room)
        if number <= 0:
            return ()
        return self._drawn(self.idle(tasks, round, state), number, round, f"step in after {len(tasks.tried)}")

    def idle(self, tasks: OpenRound, round: int, state: State) -> list[DeviceId]:
        """The devices that may still step in, sorted. A round asks at most twice as many as it needs, and
        more only where it has no one."""
        if (len(tasks.tried) >= tasks.goal and not self._has_no_one(tasks)) or self._begun_by(state):
            return []
        free = [
            device
            for device in self._sessions.present
            if device not in tasks.plan.tasks
            and device not in tasks.tried
            and self._sessions.of(device).presence is Presence.IDLE
        ]
        return self._attendance.ready(free, round, 0)

    def _has_no_one(self, tasks: OpenRound) -> bool:
        """Whether no report is in, no device is at work, and one has left by its own will: others may do what
        it did not even try. Where all have failed, more would fail as well; where they have gone silent, it
        is more likely that the network has failed."""
        if tasks.reported or tasks.outstanding:
            return False
        return any(
            device not in tasks.silent and self._attendance.has_left(device) for device in tasks.missing
        )

    def _drawn(self, devices: list[DeviceId], most: int, round: int, label: str) -> tuple[DeviceId, ...]:
        """At most this many of these devices, sorted."""
        if len(devices) <= most:
            return tuple(devices)
        chosen = generator(self._seed, label, round).choice(len(devices), most, replace=False)
        return tuple(sorted(devices[index] for index in chosen))
