"""The round engine: the one place where a run moves on. Events in, effects out; no I/O, no clock, no chance.

    WAITING --tick, enough devices--> OPEN --enough reports--> REDUCING --reduced--> WAITING (next round)
                                      OPEN --deadline, too few reports--> WAITING (planned again)
    WAITING, OPEN --rolled back--> WAITING (planned from the earlier state)
    WAITING --the algorithm has no further plan--> OVER

A round opens on a tick and never on a join, and reports are reduced in device-id order: so the order in
which devices arrive changes nothing in the models. That there is no further plan needs no devices at all.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from shoal.core.algorithm import Plan, ServerHalf, State
from shoal.core.engine.events import (
    Abandon,
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
from shoal.core.engine.sessions import Presence, Session, Step
from shoal.core.engine.timeouts import DEVICE_TIMEOUT
from shoal.core.errors import ConfigError, IllegalEvent, StaleReport
from shoal.core.exchange.messages import Message
from shoal.core.seeds import derive, generator
from shoal.core.types import DeviceId

REASONS, NAMED, LETTERS = 3, 3, 200
"""How much of why devices failed goes into the reason of a round: reasons, devices with each, characters."""


@dataclass(frozen=True)
class RoundPolicy:
    """When a round opens, closes, and is given up. Times in seconds.

    devices: reports that close a round; 0: as many as were asked, and all present are asked.
    minimum: devices to open with, and reports to go on with at the deadline.
    oversample: how many times `devices` are asked, against drop-outs.
    wait_for_devices: how long to wait for `devices` before opening with at least `minimum`.
    deadline: how long a round may take. device_timeout: a device not heard of for this long counts as gone.
    max_abandoned_rounds: abandoned rounds in a row after which the run has failed.
    """

    devices: int = 0
    minimum: int = 1
    oversample: float = 1.0
    wait_for_devices: float = 30.0
    deadline: float = 3600.0
    device_timeout: float = DEVICE_TIMEOUT
    max_abandoned_rounds: int = 5

    def __post_init__(self) -> None:
        if self.devices < 0 or self.minimum < 1 or (self.devices and self.minimum > self.devices):
            raise ConfigError(
                f"a round of {self.devices} devices cannot have a minimum of {self.minimum}",
                "minimum is at least 1 and at most devices",
            )
        if not 1.0 <= self.oversample <= 10.0 or self.max_abandoned_rounds < 1:
            raise ConfigError("oversample is 1 to 10 and max_abandoned_rounds at least 1")
        if min(self.wait_for_devices, self.deadline, self.device_timeout) < 0.0:
            raise ConfigError("wait_for_devices, deadline and device_timeout are seconds, 0 or more")


class Stage(Enum):
    WAITING = "waiting"
    OPEN = "open"
    REDUCING = "reducing"
    OVER = "over"


@dataclass(frozen=True)
class Waiting:
    """What a run waits for, from whom, and for how many more seconds (None: no limit)."""

    text: str
    devices: tuple[DeviceId, ...] = ()
    seconds: float | None = None


class RoundEngine:
    """One run. `feed` it events; carry out the effects that it returns, in order.

    `round`, `asked` and `reported` restore a run: the round that was open, whom it had asked, and whose
    reports are already stored.
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
        self.state, self.round, self.stage = state, round, Stage.WAITING
        self.plan = Plan({}, "")
        self.sessions: dict[DeviceId, Session] = {}
        self.reported: set[DeviceId] = set(reported)
        self.missing: dict[DeviceId, str] = {}
        self._resume = tuple(asked)
        self._abandoned = abandoned_in_a_row
        self._may_be_over = True
        self._now, self._since = 0.0, math.nan
        self._handlers: dict[type, Callable[[Any], list[Effect]]] = {
            Joined: self._joined,
            Heard: self._heard,
            Left: self._left,
            Reported: self._on_reported,
            Failed: self._failed,
            Reduced: self._reduced,
            RolledBack: self._rolled_back,
            Tick: self._tick,
        }

    def feed(self, event: Event) -> list[Effect]:
        """Take one event. Raises IllegalEvent or StaleReport for one that does not fit, changing nothing."""
        return self._handlers[type(event)](event)

    def expects(self, device: DeviceId, round: int, attempt: int) -> Message:
        """The task that a report of this device would answer; StaleReport, saying why, when there is none."""
        if self.stage is not Stage.OPEN or round != self.round:
            raise StaleReport(f"round {round} is not open", "ask for the next task")
        if device not in self.plan.tasks:
            raise StaleReport(f"device {device} has no task in round {round}", "ask for the next task")
        session = self.sessions.get(device, Session())
        if attempt != session.attempt:
            raise StaleReport(
                f"attempt {attempt} of device {device} was replaced by attempt {session.attempt}",
                "one process for each device: stop the other one",
            )
        if device in self.reported or session.presence is not Presence.WORKING:
            raise StaleReport(f"device {device} has no open task in round {round}", "ask for the next task")
        return self.plan.tasks[device]

    def waiting(self, known: Iterable[DeviceId] = ()) -> Waiting:
        """What an operator should know now. known: devices that may take part, here or not."""
        if self.stage is Stage.WAITING:
            present, wanted = self._present(), self._wanted_to_open()
            absent = tuple(sorted({*known} - {*present}))
            lacking = wanted - len(present) - len(absent)
            left = (
                self._seconds_left(self._policy.wait_for_devices) if wanted != self._policy.minimum else None
            )
            text = f"{len(present)} of {wanted} devices are here"
            more = f", and {lacking} more must join" if known and lacking > 0 else ""
            return Waiting(text + more, absent if len(present) < wanted else (), left)
        if self.stage is Stage.OPEN:
            text = f"{len(self.reported)} of {self._goal()} reports are in"
            return Waiting(text, tuple(self._owing()), self._seconds_left(self._policy.deadline))
        if self.stage is Stage.REDUCING:
            return Waiting("the server is combining reports")
        return Waiting("nothing: it is over")

    # -- devices ----------------------------------------------------------------------------------------

    def _joined(self, event: Joined) -> list[Effect]:
        session = self.sessions.get(event.device, Session())
        self._note(event.device, session.after(Step.JOINED))
        self.missing.pop(event.device, None)
        return self._offer(event.device)

    def _heard(self, event: Heard) -> list[Effect]:
        self._note(event.device, self._session(event.device))
        return []

    def _left(self, event: Left) -> list[Effect]:
        self._note(event.device, self._session(event.device).after(Step.LEFT))
        if self.stage is Stage.OPEN and event.device in self.plan.tasks and event.device not in self.reported:
            self.missing[event.device] = event.reason
        return self._close_if_due()

    def _on_reported(self, event: Reported) -> list[Effect]:
        self.expects(event.device, event.round, event.attempt)
        self._note(event.device, self._session(event.device).after(Step.REPORTED))
        self.reported.add(event.device)
        return self._close_if_due()

    def _failed(self, event: Failed) -> list[Effect]:
        self.expects(event.device, event.round, event.attempt)
        self._note(event.device, self._session(event.device).after(Step.FAILED))
        self.missing[event.device] = event.reason
        return self._close_if_due()

    # -- the round --------------------------------------------------------------------------------------

    def _tick(self, event: Tick) -> list[Effect]:
        self._now = max(self._now, event.now)
        if math.isnan(self._since):
            self._since = self._now
        effects: list[Effect] = []
        for device in self._present():
            if self._now - self.sessions[device].seen > self._policy.device_timeout:
                effects += self._left(Left(device, f"not heard of for {self._policy.device_timeout:g} s"))
        if self.stage is Stage.WAITING:
            effects += self._open_if_due()
        elif self.stage is Stage.OPEN and self._now - self._since >= self._policy.deadline:
            effects += self._deadline()
        return effects

    def _open_if_due(self) -> list[Effect]:
        asked, resumed = self._resume, bool(self._resume)
        if not resumed:
            present = self._present()
            patient = self._now - self._since < self._policy.wait_for_devices
            if len(present) < (self._wanted_to_open() if patient else self._policy.minimum):
                return self._finish_if_over(present)
            asked = tuple(self._sample(present))
        plan = self._server_half.plan(self.state, asked)
        if plan is None:
            return self._finish()
        if not plan.tasks:
            return []
        self.plan, self.stage, self._since, self._resume = plan, Stage.OPEN, self._now, ()
        self.missing = {}
        self.reported = self.reported & set(plan.tasks) if resumed else set()
        effects: list[Effect] = [] if resumed else [Opened(self.round, asked, plan.title)]
        for device in sorted(plan.tasks):
            effects += self._offer(device)
        return effects + self._close_if_due()

    def _finish_if_over(self, present: list[DeviceId]) -> list[Effect]:
        """Ask, once for each state, whether there is a further plan for the devices that are known."""
        known = sorted(self.plan.tasks) or sorted(self.state.assignments) or present
        if not self._may_be_over or not known:
            return []
        self._may_be_over = False
        return self._finish() if self._server_half.plan(self.state, known) is None else []

    def _finish(self) -> list[Effect]:
        self.stage = Stage.OVER
        return [Finished(False, "the run is complete")]

    def _offer(self, device: DeviceId) -> list[Effect]:
        """Lease the open round's task to a device that is idle and still owes it."""
        session = self.sessions.get(device, Session())
        owes = self.stage is Stage.OPEN and device in self.plan.tasks and device not in self.reported
        if not owes or session.presence is not Presence.IDLE:
            return []
        session = self._note(device, session.after(Step.OFFERED))
        seed = derive(self._seed, "round", self.round, device)
        return [Offer(device, self.round, session.attempt, seed, self.plan.title, self.plan.tasks[device])]

    def _close_if_due(self) -> list[Effect]:
        if self.stage is not Stage.OPEN:
            return []
        owing = self._owing()
        if len(self.reported) >= self._goal() or (not owing and len(self.reported) >= self._minimum()):
            return self._close()
        if not owing and all(self._has_failed(device) for device in self.missing):
            return self._abandon("every device that is left has failed")
        return []

    def _deadline(self) -> list[Effect]:
        if len(self.reported) >= self._minimum():
            return self._close("it did not report before the deadline")
        return self._abandon(f"{len(self.reported)} of at least {self._minimum()} reports at the deadline")

    def _close(self, reason: str = "the round is full") -> list[Effect]:
        """Combine what is there. reason: why the others do not count."""
        effects = self._release(reason)
        self.stage = Stage.REDUCING
        return [*effects, Reduce(self.round, tuple(sorted(self.reported)))]

    def _reduced(self, event: Reduced) -> list[Effect]:
        if self.stage is not Stage.REDUCING or event.round != self.round:
            raise IllegalEvent(
                f"round {event.round} was reduced, but round {self.round} is {self.stage.value}"
            )
        self.state, self._abandoned, self._may_be_over = event.state, 0, True
        return [self._next_round()]

    def _rolled_back(self, event: RolledBack) -> list[Effect]:
        """End the round without a result, or stand in for one, and go on from the other state.

        This takes a round's number of its own: what is still on its way is late, and going back can be undone
        in the same way. A run that is over stays over.
        """
        if self.stage is Stage.REDUCING:
            raise IllegalEvent(f"round {self.round} is being combined: its state is about to change")
        following = Stage.OVER if self.stage is Stage.OVER else Stage.WAITING
        if self.stage is not Stage.OPEN:
            self.plan, self.reported, self.missing = Plan({}, ""), set(), {}
        effects = [*self._release(event.reason), Abandon(self.round, event.reason)]
        self.state, self._abandoned, self._may_be_over, self._resume = event.state, 0, True, ()
        effects.append(self._next_round())
        self.stage = following
        return effects

    def _abandon(self, reason: str) -> list[Effect]:
        why = _reasons(self.missing)
        effects = self._release(reason)
        reason += f": {why}" if why else ""
        effects.append(Abandon(self.round, reason))
        self._abandoned += 1
        effects.append(self._next_round())
        if self._abandoned >= self._policy.max_abandoned_rounds:
            self.stage = Stage.OVER
            many = f"{self._abandoned} rounds in a row were abandoned, the last"
            what = many if self._abandoned > 1 else "a round was abandoned"
            effects.append(Finished(True, f"{what} because {reason}"))
        return effects

    def _next_round(self) -> Save:
        self.round, self.stage, self._since = self.round + 1, Stage.WAITING, self._now
        return Save(self.round, self.state, self._abandoned, dict(self.missing))

    def _release(self, reason: str) -> list[Effect]:
        """Take the task back from everyone who still works on it."""
        effects: list[Effect] = []
        for device in sorted(set(self.plan.tasks) - self.reported):
            self.missing.setdefault(device, reason)
            if (session := self._session(device)).presence is Presence.WORKING:
                self.sessions[device] = session.after(Step.RELEASED)
                effects.append(Withdraw(device, self.round, reason))
        return effects

    # -- small questions --------------------------------------------------------------------------------

    def _session(self, device: DeviceId) -> Session:
        return self.sessions.get(device, Session())

    def _note(self, device: DeviceId, session: Session) -> Session:
        self.sessions[device] = Session(session.presence, session.attempt, self._now)
        return self.sessions[device]

    def _present(self) -> list[DeviceId]:
        return sorted(d for d, session in self.sessions.items() if session.presence is not Presence.ABSENT)

    def _owing(self) -> list[DeviceId]:
        """Devices whose report may still come."""
        return [d for d in sorted(self.plan.tasks) if d not in self.reported and d not in self.missing]

    def _has_failed(self, device: DeviceId) -> bool:
        """Whether a missing device is there all the same: it failed, and will not bring its report."""
        return self._session(device).presence is not Presence.ABSENT

    def _seconds_left(self, limit: float) -> float:
        return max(0.0, limit if math.isnan(self._since) else self._since + limit - self._now)

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
    """Why devices are missing: each reason once with the first of its devices, bounded in length."""
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
