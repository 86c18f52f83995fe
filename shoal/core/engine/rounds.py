"""The round engine: the one place where a run moves on. Events in, effects out; no I/O, no clock, no chance.

A run goes through the stages of `shoal.core.engine.stages`, and each of its devices through the states of
`shoal.core.engine.sessions`. The same events always give the same effects, whether the simulator, the
coordinator called directly, or devices over gRPC feed them.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from shoal.core.algorithm import Plan, ServerHalf, State
from shoal.core.engine.events import (
    Abandon,
    Changed,
    Damaged,
    Effect,
    Event,
    Failed,
    Finished,
    Heard,
    Joined,
    Left,
    Offer,
    Opened,
    Reduce,
    Reduced,
    Reported,
    RolledBack,
    Save,
    Tick,
    Withdraw,
)
from shoal.core.engine.policy import RoundPolicy
from shoal.core.engine.sessions import Presence, Session, Step
from shoal.core.engine.stages import Move, Stage, after
from shoal.core.errors import IllegalEvent, StaleReport
from shoal.core.exchange.messages import Message
from shoal.core.seeds import derive, generator
from shoal.core.types import DeviceId

__all__ = ["RoundEngine", "RoundPolicy", "Stage", "Waiting"]

REASONS, NAMED, LETTERS = 3, 3, 200
"""Limits on an abandoned round's reason: how many reasons, devices named for each, characters of each."""


@dataclass(frozen=True)
class Waiting:
    """What a run waits for. devices: from whom. seconds: for how long at most; None: without a limit."""

    text: str
    devices: tuple[DeviceId, ...] = ()
    seconds: float | None = None


class RoundEngine:
    """One run. `feed` it events; carry out the effects that it returns, in order.

    policy: when rounds open, close and are given up. seed: what sampling and the seeds of tasks derive from.
    state: the algorithm's state that round `round` opens with.

    `asked`, `reported` and `abandoned_in_a_row` restore a run after a restart: the devices that the open
    round had asked (empty when no round was open), those whose reports are already stored, and how many
    rounds before it were abandoned.

    Example:
        >>> engine = RoundEngine(server_half, RoundPolicy(minimum=2), 42, state)
        >>> engine.feed(Joined("a")), engine.feed(Joined("b"))
        ([], [])
        >>> engine.feed(Tick(0.0))
        [Opened(round=1, devices=('a', 'b'), ...), Offer(device='a', ...), Offer(device='b', ...)]
    """

    def __init__(
        self,
        server_half: ServerHalf,
        policy: RoundPolicy,
        seed: int,
        state: State,
        *,
        round: int = 1,
        asked: Iterable[DeviceId] = (),
        reported: Iterable[DeviceId] = (),
        abandoned_in_a_row: int = 0,
    ) -> None:
        self._server_half, self._policy, self._seed = server_half, policy, seed
        self.state, self.round, self.stage = state, round, Stage.WAITING  # after this, only _enter sets stage
        self.plan = Plan({}, "")
        self.sessions: dict[DeviceId, Session] = {}
        self.reported: set[DeviceId] = set(reported)
        self.missing: dict[DeviceId, str] = {}
        self._resume = tuple(asked)
        self._abandoned = abandoned_in_a_row
        self._may_be_over = True
        # The clock is whatever the ticks say, so the time that a run waits counts from its first tick: a
        # monotonic clock may start anywhere.
        self._now, self._since = 0.0, math.nan
        self._handlers: dict[type, Callable[[Any], list[Effect]]] = {
            Joined: self._joined,
            Heard: self._heard,
            Left: self._left,
            Reported: self._on_reported,
            Failed: self._failed,
            Reduced: self._reduced,
            Damaged: self._damaged,
            Changed: self._changed,
            RolledBack: self._rolled_back,
            Tick: self._tick,
        }

    def feed(self, event: Event) -> list[Effect]:
        """Take one event and return the effects, in the order in which they have to be carried out.

        Raises IllegalEvent for an event that a table has no transition for, and StaleReport for a report that
        answers no open task. Neither changes anything.
        """
        return self._handlers[type(event)](event)

    def expects(self, device: DeviceId, round: int, attempt: int) -> Message:
        """The task that a report of this device would answer.

        Raises StaleReport when there is none: the round is not open, the device has no task in it, or an
        earlier process of the device sent the report.
        """
        if self.stage is not Stage.OPEN or round != self.round:
            raise StaleReport(f"round {round} is not open", "ask for the next task")
        if device not in self.plan.tasks:
            raise StaleReport(f"device {device} has no task in round {round}", "ask for the next task")
        session = self.sessions.get(device, Session())
        if attempt != session.attempt:
            raise StaleReport(
                f"attempt {attempt} of device {device} was replaced by attempt {session.attempt}",
                "run one process per device: stop the other one",
            )
        if device in self.reported or session.presence is not Presence.WORKING:
            raise StaleReport(f"device {device} has no open task in round {round}", "ask for the next task")
        return self.plan.tasks[device]

    def waiting(self, known: Iterable[DeviceId] = ()) -> Waiting:
        """What an operator should know now. known: all devices that may take part, here or not."""
        if self.stage is Stage.WAITING:
            present, wanted = self._present(), self._wanted_to_open()
            absent = tuple(sorted({*known} - {*present}))
            if pause := self._pause_left():
                many = "a round was" if self._abandoned == 1 else f"{self._abandoned} rounds in a row were"
                return Waiting(f"{many} abandoned, and the next one opens after a pause", (), pause)
            lacking = wanted - len(present) - len(absent)
            left = (
                self._seconds_left(self._policy.wait_for_devices) if wanted != self._policy.minimum else None
            )
            text = f"{len(present)} of {wanted} devices are here"
            if len(present) > wanted:
                text = f"{len(present)} devices are here, and {wanted} are needed"
            more = f", and {lacking} more must join" if known and lacking > 0 else ""
            return Waiting(text + more, absent if len(present) < wanted else (), left)
        if self.stage is Stage.OPEN:
            text = f"{len(self.reported)} of {self._goal()} reports are in"
            return Waiting(text, tuple(self._outstanding()), self._seconds_left(self._policy.deadline))
        if self.stage is Stage.REDUCING:
            return Waiting("the server is combining reports")
        return Waiting("nothing: the run is over")

    # -- devices ----------------------------------------------------------------------------------------

    def _joined(self, event: Joined) -> list[Effect]:
        session = self.sessions.get(event.device, Session())
        self._heard_now(event.device, session.after(Step.JOINED))
        # A device that left while it owed a report gets the same task again, with the attempt after the last.
        self.missing.pop(event.device, None)
        return self._offer(event.device)

    def _heard(self, event: Heard) -> list[Effect]:
        self._heard_now(event.device, self._session(event.device))
        return []

    def _left(self, event: Left) -> list[Effect]:
        self._heard_now(event.device, self._session(event.device).after(Step.LEFT))
        if self.stage is Stage.OPEN and event.device in self.plan.tasks and event.device not in self.reported:
            self.missing[event.device] = event.reason
        return self._close_if_complete()

    def _on_reported(self, event: Reported) -> list[Effect]:
        self.expects(event.device, event.round, event.attempt)
        self._heard_now(event.device, self._session(event.device).after(Step.REPORTED))
        self.reported.add(event.device)
        return self._close_if_complete()

    def _failed(self, event: Failed) -> list[Effect]:
        self.expects(event.device, event.round, event.attempt)
        self._heard_now(event.device, self._session(event.device).after(Step.FAILED))
        self.missing[event.device] = event.reason
        return self._close_if_complete()

    # -- the round --------------------------------------------------------------------------------------

    def _tick(self, event: Tick) -> list[Effect]:
        self._now = max(self._now, event.now)
        if math.isnan(self._since):
            self._since = self._now
        # Silent devices go first: a round must not open with a device that is gone already.
        effects: list[Effect] = []
        for device in self._present():
            if self._now - self.sessions[device].seen > self._policy.device_timeout:
                effects += self._left(Left(device, f"not heard from for {self._policy.device_timeout:g} s"))
        if self.stage is Stage.WAITING:
            effects += self._open_if_ready()
        elif self.stage is Stage.OPEN and self._now - self._since >= self._policy.deadline:
            effects += self._deadline()
        return effects

    def _open_if_ready(self) -> list[Effect]:
        # Only a tick opens a round, never a join. Between two ticks all devices that are here count together,
        # and the sample is drawn from their sorted ids: so neither the order in which devices arrive nor a
        # race between two of them changes who is asked, and three drivers give the same models.
        if self._pause_left():
            return []
        asked, resumed = self._resume, bool(self._resume)
        if not resumed:
            present = self._present()
            may_wait = self._now - self._since < self._policy.wait_for_devices
            if len(present) < (self._wanted_to_open() if may_wait else self._policy.minimum):
                return self._finish_if_over(present)
            asked = tuple(self._sample(present))
        plan = self._server_half.plan(self.state, asked)
        if plan is None:
            return self._finish()
        if not plan.tasks:
            return []
        self._enter(Move.OPENED)
        self.plan, self._since, self._resume = plan, self._now, ()
        self.missing = {}
        self.reported = self.reported & set(plan.tasks) if resumed else set()
        # A resumed round is on disk already, with the devices that it asked. A second Opened would write and
        # announce it again, as if it were new.
        effects: list[Effect] = [] if resumed else [Opened(self.round, asked, plan.title)]
        for device in sorted(plan.tasks):
            effects += self._offer(device)
        return effects + self._close_if_complete()

    def _finish_if_over(self, present: list[DeviceId]) -> list[Effect]:
        """Finish the run if it is complete. That needs no devices: all may have left after the last report.

        An algorithm says so only by planning nothing, and a plan may be costly, so each state is asked once.
        """
        known = sorted(self.plan.tasks) or sorted(self.state.assignments) or present
        if not self._may_be_over or not known:
            return []
        self._may_be_over = False
        return self._finish() if self._server_half.plan(self.state, known) is None else []

    def _finish(self) -> list[Effect]:
        self._enter(Move.FINISHED)
        return [Finished(False, "the run is complete")]

    def _offer(self, device: DeviceId) -> list[Effect]:
        """Lease the open round's task to a device that is idle and still owes it."""
        session = self.sessions.get(device, Session())
        owes = self.stage is Stage.OPEN and device in self.plan.tasks and device not in self.reported
        if not owes or session.presence is not Presence.IDLE:
            return []
        session = self._heard_now(device, session.after(Step.OFFERED))
        # Without the attempt in it, so that a task done again after a crash gives the same bits.
        seed = derive(self._seed, "round", self.round, device)
        return [Offer(device, self.round, session.attempt, seed, self.plan.title, self.plan.tasks[device])]

    def _close_if_complete(self) -> list[Effect]:
        if self.stage is not Stage.OPEN:
            return []
        outstanding = self._outstanding()
        if len(self.reported) >= self._goal() or (not outstanding and len(self.reported) >= self._minimum()):
            return self._close()
        # A device that left may come back and report, so the round waits for it until the deadline. One that
        # has failed will not.
        if not outstanding and all(self._has_failed(device) for device in self.missing):
            return self._abandon("every device that is left has failed")
        return []

    def _deadline(self) -> list[Effect]:
        if len(self.reported) >= self._minimum():
            return self._close("it did not report before the deadline")
        return self._abandon(f"{len(self.reported)} of at least {self._minimum()} reports at the deadline")

    def _close(self, reason: str = "the round is full") -> list[Effect]:
        """Combine the reports that are in. reason: why those of other devices do not count."""
        self._enter(Move.CLOSED)
        effects = self._release(reason)
        # In device-id order and not as they came: float sums depend on their order.
        return [*effects, Reduce(self.round, tuple(sorted(self.reported)))]

    def _reduced(self, event: Reduced) -> list[Effect]:
        if event.round != self.round:
            raise IllegalEvent(f"round {event.round} was reduced, but the run is in round {self.round}")
        self._enter(Move.REDUCED)
        self.state, self._abandoned, self._may_be_over = event.state, 0, True
        return [self._next_round()]

    def _damaged(self, event: Damaged) -> list[Effect]:
        """Ask for reports again. A device that is not here is missing until it comes back."""
        if event.round != self.round or not {*event.devices} <= self.reported:
            raise IllegalEvent(f"reports of round {event.round} cannot be damaged: they do not count")
        if self.stage is not Stage.OPEN:
            self._enter(Move.REOPENED)
        self.reported -= {*event.devices}
        effects: list[Effect] = []
        for device in sorted(event.devices):
            if self._session(device).presence is Presence.ABSENT:
                self.missing[device] = event.reason
            effects += self._offer(device)
        return effects + self._close_if_complete()

    def _changed(self, event: Changed) -> list[Effect]:
        if self.stage is Stage.REDUCING:
            raise IllegalEvent("a run that is reducing cannot be changed")
        self._policy, self.state, self._may_be_over = event.policy, event.state, True
        return self._close_if_complete()

    def _rolled_back(self, event: RolledBack) -> list[Effect]:
        """End the round without a result, or take the place of one, and go on from the other state.

        A roll back uses up a round number. So reports of the open round that are still on their way are late,
        every state on disk keeps its own number, and a roll back can itself be rolled back.
        """
        was_open = self.stage is Stage.OPEN
        self._enter(Move.ROLLED_BACK)
        if not was_open:
            # The plan is the one of the round before, whose devices did nothing wrong: none is missing here.
            self.plan, self.reported, self.missing = Plan({}, ""), set(), {}
        effects = [*self._release(event.reason), Abandon(self.round, event.reason)]
        self.state, self._abandoned, self._may_be_over, self._resume = event.state, 0, True, ()
        effects.append(self._next_round())
        return effects

    def _abandon(self, reason: str) -> list[Effect]:
        given_up = self._abandoned + 1 >= self._policy.max_abandoned_rounds
        self._enter(Move.GIVEN_UP if given_up else Move.ABANDONED)
        # Before the tasks are taken back: the reasons are those of the devices that failed, and not that of
        # the round for those that were still at work.
        why = _reasons(self.missing)
        effects = self._release(reason)
        reason += f": {why}" if why else ""
        effects.append(Abandon(self.round, reason))
        self._abandoned += 1
        effects.append(self._next_round())
        if given_up:
            many = f"{self._abandoned} rounds in a row were abandoned, the last"
            what = many if self._abandoned > 1 else "a round was abandoned"
            effects.append(Finished(True, f"{what} because {reason}"))
        return effects

    def _next_round(self) -> Save:
        self.round, self._since = self.round + 1, self._now
        return Save(self.round, self.state, self._abandoned, dict(self.missing))

    def _release(self, reason: str) -> list[Effect]:
        """Withdraw the task from every device that still works on it."""
        effects: list[Effect] = []
        for device in sorted(set(self.plan.tasks) - self.reported):
            self.missing.setdefault(device, reason)
            if (session := self._session(device)).presence is Presence.WORKING:
                self.sessions[device] = session.after(Step.RELEASED)
                effects.append(Withdraw(device, self.round, reason))
        return effects

    def _enter(self, move: Move) -> None:
        """The only place where the stage changes. It comes first, so that an illegal move changes nothing."""
        self.stage = after(self.stage, move)

    # -- small questions --------------------------------------------------------------------------------

    def _session(self, device: DeviceId) -> Session:
        return self.sessions.get(device, Session())

    def _heard_now(self, device: DeviceId, session: Session) -> Session:
        self.sessions[device] = Session(session.presence, session.attempt, self._now)
        return self.sessions[device]

    def _present(self) -> list[DeviceId]:
        return sorted(d for d, session in self.sessions.items() if session.presence is not Presence.ABSENT)

    def _outstanding(self) -> list[DeviceId]:
        """Devices with a task whose reports may still come."""
        return [d for d in sorted(self.plan.tasks) if d not in self.reported and d not in self.missing]

    def _has_failed(self, device: DeviceId) -> bool:
        """Whether a missing device is still here: then it has failed, and its report will not come."""
        return self._session(device).presence is not Presence.ABSENT

    def _seconds_left(self, limit: float) -> float:
        return max(0.0, limit if math.isnan(self._since) else self._since + limit - self._now)

    def _pause_left(self) -> float:
        """Seconds until a round may open after one that was abandoned. A round that is open on disk need not
        wait."""
        pause = 0.0 if self._resume else self._policy.pause(self._abandoned)
        return self._seconds_left(pause) if pause else 0.0

    def _goal(self) -> int:
        return min(self._policy.devices or len(self.plan.tasks), len(self.plan.tasks))

    def _minimum(self) -> int:
        return min(self._policy.minimum, len(self.plan.tasks))

    def _wanted_to_open(self) -> int:
        return max(self._policy.devices, self._policy.minimum)

    def _sample(self, present: list[DeviceId]) -> list[DeviceId]:
        most = math.ceil(self._policy.devices * self._policy.oversample) or len(present)
        if len(present) <= most:
            return present
        chosen = generator(self._seed, "sample", self.round).choice(len(present), most, replace=False)
        return sorted(present[index] for index in chosen)


def _reasons(missing: Mapping[DeviceId, str]) -> str:
    """Why devices are missing: each reason once, with its first devices, bounded in length."""
    devices: dict[str, list[DeviceId]] = {}
    for device, reason in sorted(missing.items()):
        devices.setdefault(" ".join(reason.split()), []).append(device)
    parts = []
    for reason, named in list(devices.items())[:REASONS]:
        more = f" and {len(named) - NAMED} more" if len(named) > NAMED else ""
        cut = f"{reason[:LETTERS]}..." if len(reason) > LETTERS else reason
        parts.append(f"{', '.join(named[:NAMED])}{more}: {cut}")
    if len(devices) > REASONS:
        parts.append(f"and {len(devices) - REASONS} more reasons")
    return "; ".join(parts)
