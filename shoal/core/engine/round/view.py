"""What can be asked of a run at any time: questions that change nothing."""

import math
from collections.abc import Iterable

from shoal.core.algorithm import Plan, State
from shoal.core.engine.policy import RoundPolicy
from shoal.core.engine.round.open_round import OpenRound
from shoal.core.engine.round.opening import Opening
from shoal.core.engine.round.waiting import Waiting
from shoal.core.engine.sessions import Sessions
from shoal.core.engine.stages import Stage
from shoal.core.errors import StaleReport
from shoal.core.exchange.messages import Message
from shoal.core.types import DeviceId


class View:
    """The part of `shoal.core.engine.rounds.RoundEngine` that only reads.

    state: the algorithm's state. round: the one that is open or will open next. stage: where the run stands.
    sessions: its devices.
    """

    state: State
    round: int
    stage: Stage
    sessions: Sessions
    _resume: tuple[tuple[DeviceId, ...], ...]
    _tasks: OpenRound
    _opening: Opening
    _policy: RoundPolicy
    _abandoned: int
    _why: str
    _now: float
    _ends: float

    @property
    def plan(self) -> Plan:
        """The tasks of the round that is open, or of the last one."""
        return self._tasks.plan

    @property
    def reported(self) -> set[DeviceId]:
        """The devices whose reports count in that round."""
        return self._tasks.reported

    @property
    def lacks(self) -> int:
        """How many more reports that round takes before it is full."""
        return self._tasks.goal - len(self.reported)

    def expects(self, device: DeviceId, round: int, attempt: int) -> Message:
        """The task that a report of this device would answer.

        Raises StaleReport when there is none: the round is not open, the device has no task in it, or an
        earlier process of the device sent the report.
        """
        if self.stage is not Stage.OPEN or round != self.round:
            raise StaleReport(f"round {round} is not open", "ask for the next task")
        return self._tasks.expects(device, round, self.sessions.of(device), attempt)

    def progress(self) -> str:
        """What the run waits for, in a line that costs the same whatever the number of devices."""
        return {
            Stage.WAITING: f"{self.sessions.count} devices are here, and the next round has not opened yet",
            Stage.OPEN: f"{len(self.reported)} of {self._tasks.goal} reports are in",
            Stage.REDUCING: "the server is combining reports",
            Stage.OVER: "nothing: the run is over",
        }[self.stage]

    def waiting(self, known: Iterable[DeviceId] = ()) -> Waiting:
        """What an operator should know now. known: all devices that may take part, here or not."""
        if self.stage is Stage.WAITING:
            if pause := self._pause_left():
                return Waiting(f"{self._failing()}the next round opens after a pause", (), pause)
            return self._opening.waiting(known, self.state, self._now)
        if self.stage is Stage.OPEN:
            enough = len(self.reported) >= self._least()
            end = min(self._ends, self._opening.ends_for_the_slow(self._tasks)) if enough else self._ends
            whom = self._tasks.outstanding or self._tasks.silent
            text = f"{self._failing()}{self.progress()}"
            return Waiting(text, tuple(sorted(whom)), max(0.0, end - self._now))
        return Waiting(self.progress())

    def _failing(self) -> str:
        """That rounds are abandoned, and why the last one was: an operator may have to act. After a restart
        that is not known until the next one is."""
        if not self._abandoned:
            return ""
        many = "a round was" if self._abandoned == 1 else f"{self._abandoned} rounds in a row were"
        last = ", the last" if self._abandoned > 1 and self._why else ""
        return f"{many} abandoned{last}{f' because {self._why}' if self._why else ''}; "

    def _least(self) -> int:
        """How many reports the open round needs."""
        quorum = math.ceil(self.plan.quorum * self._tasks.drawn)
        waited = self._now >= min(self._tasks.began + self._policy.wait_for_devices, self._ends)
        minimum = self._policy.least(self.state) if waited else self._policy.minimum  # one may come back
        return max(min(minimum, len(self.plan.tasks)), quorum)

    def _pause_left(self) -> float:
        """Seconds until a round may open after one that was abandoned; one that is open on disk does not
        wait."""
        return 0.0 if self._resume[0] else self._opening.pause_left(self._abandoned, self._now)
