"""The round engine: the one place where a run moves on. Events in, effects out; no I/O, no clock, no chance.

A run goes through the stages of `shoal.core.engine.stages`, and each of its devices through the states of
`shoal.core.engine.sessions`. `opening` says when a round may open and which devices it asks, `open_round`
what has become of its tasks, and `attendance` which devices can be counted on. The same events always give
the same effects, whether the simulator, the coordinator called directly, or devices over gRPC feed them.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from shoal.core.algorithm import Plan, ServerHalf, State
from shoal.core.data.seeds import derive
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
    SteppedIn,
    Tick,
    Withdraw,
)
from shoal.core.engine.policy import RoundPolicy
from shoal.core.engine.round.attendance import Attendance, Memory
from shoal.core.engine.round.open_round import OpenRound
from shoal.core.engine.round.opening import STEP_IN_SECONDS, Opening
from shoal.core.engine.round.view import View
from shoal.core.engine.round.waiting import Waiting, reasons
from shoal.core.engine.sessions import Presence, Sessions, Step
from shoal.core.engine.stages import Move, Stage, after
from shoal.core.errors import IllegalEvent
from shoal.core.exchange.messages import Message
from shoal.core.types import DeviceId

__all__ = ["RoundEngine", "RoundPolicy", "Stage", "Waiting"]


class RoundEngine(View):
    """One run. `feed` it events; carry out the effects that it returns, in order.

    policy: when rounds open, close and are given up. seed: what sampling and the seeds of tasks derive from.
    state: the algorithm's state that round `round` opens with.

    The other arguments restore a run after a restart. asked: the devices that the open round asks, if one is
    open; stepped_in: the groups of devices that it asked later; reported: those whose reports are stored;
    elapsed: for how many seconds it has been open. abandoned_in_a_row: how many rounds before it were
    abandoned. memory: what the last `Save` had.

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
        stepped_in: Iterable[Sequence[DeviceId]] = (),
        reported: Iterable[DeviceId] = (),
        elapsed: float = 0.0,
        abandoned_in_a_row: int = 0,
        memory: Memory | None = None,
    ) -> None:
        self._server_half, self._policy, self._seed = server_half, policy, seed
        self.state, self.round, self.stage = state, round, Stage.WAITING  # after this, only _enter sets stage
        self.sessions = Sessions()
        self._resume, self._elapsed = (tuple(asked), *map(tuple, stepped_in)), elapsed
        memory = memory or Memory()
        self._typical: Mapping[str, float] = memory.typical
        self._attendance = Attendance(memory, (device for group in self._resume for device in group))
        self._tasks, self._stored = OpenRound(Plan({}, "")), frozenset(reported)
        self._abandoned, self._why = abandoned_in_a_row, ""
        # In how many of them owners were asked is not stored. With none, the run would have failed by now.
        too_many = abandoned_in_a_row >= policy.max_abandoned_rounds
        self._excused = abandoned_in_a_row if too_many else 0
        self._may_be_over = True
        # The clock is whatever the ticks say, so the time that a run waits counts from its first tick: a
        # monotonic clock may start anywhere.
        self._opening = Opening(policy, seed, self.sessions, self._attendance)
        self._now, self._ends, self._looked = 0.0, math.inf, -math.inf
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

    def without_devices(self) -> "RoundEngine":
        """The same run with no device and no task, as after a restart: what a run that is over needs."""
        return RoundEngine(
            self._server_half,
            self._policy,
            self._seed,
            self.state,
            round=self.round,
            abandoned_in_a_row=self._abandoned,
            memory=self._attendance.memory(self._typical),
        )

    # -- devices ----------------------------------------------------------------------------------------

    def _joined(self, event: Joined) -> list[Effect]:
        self.sessions.take(event.device, Step.JOINED)
        self.sessions.hear(event.device, self._now)
        self._attendance.joined(event.device)
        # A device that left while it owed a report gets the same task again, with the attempt after the last.
        self._tasks.joined(event.device)
        return self._offer(event.device)

    def _heard(self, event: Heard) -> list[Effect]:
        self._now = max(self._now, event.now)
        self.sessions.hear(event.device, self._now)
        return []

    def _left(self, event: Left) -> list[Effect]:
        if event.for_good:
            self._opening.revoked(event.device)
        if self.sessions.is_here(event.device) or not event.for_good:
            self.sessions.take(event.device, Step.LEFT)
        self._attendance.said_goodbye(event.device, for_good=event.for_good)
        self._tasks.lost(event.device, event.reason)
        return self._close_if_complete()

    def _on_reported(self, event: Reported) -> list[Effect]:
        self.expects(event.device, event.round, event.attempt)
        self.sessions.take(event.device, Step.REPORTED)
        self.sessions.hear(event.device, self._now)
        self._tasks.answered(event.device, self._now)
        self._attendance.answered(event.device)
        return self._close_if_complete()

    def _failed(self, event: Failed) -> list[Effect]:
        self.expects(event.device, event.round, event.attempt)
        self.sessions.take(event.device, Step.FAILED)
        self.sessions.hear(event.device, self._now)
        self._tasks.lost(event.device, event.reason, asks=event.asks)
        return self._close_if_complete()

    # -- time -------------------------------------------------------------------------------------------

    def _tick(self, event: Tick) -> list[Effect]:
        self._now = max(self._now, event.now)
        self._opening.began(self._now)
        # Silent devices go first: a round must not open with a device that is gone already.
        effects = self._drop_silent()
        if self.stage is Stage.WAITING:
            return effects + self._open_if_ready()
        if self.stage is Stage.OPEN:
            effects += self._step_in() + self._time_is_up()
        # The devices that could step in may have no task in this phase: then no other event closes the round.
        return effects or self._close_if_complete()

    def _drop_silent(self) -> list[Effect]:
        """Devices that are not heard from are gone, and so are those that do not return after a restart."""
        timeout = self._policy.device_timeout
        silent = self.sessions.silent(self._now - timeout)
        for device in silent:
            self.sessions.take(device, Step.LEFT)
            self._tasks.lost(device, f"not heard from for {timeout:g} s", silent=True)
        gone = self._opening.returned(self._now)
        for device in gone:
            self._tasks.lost(device, "not heard from since the server's restart", silent=True)
        return self._close_if_complete() if silent or gone else []

    # -- the round --------------------------------------------------------------------------------------

    def _open_if_ready(self) -> list[Effect]:
        # Only a tick opens a round, never a join. Between two ticks all devices that are here count together,
        # and the sample is drawn from their sorted ids: so neither the order in which devices arrive nor a
        # race between two of them changes who is asked, and three drivers give the same models.
        if self._pause_left():
            return []
        resumed = bool(self._resume[0])
        first = self._resume[0] or self._opening.asks(self.round, self.state, self._now)
        if not first:
            return self._finish_if_over()
        plan = self._server_half.plan(self.state, first)
        if plan and not plan.tasks and len(first) < self.sessions.count:
            # None of those drawn has a part in this round, as when devices without a cluster are drawn for
            # the final evaluation. The same would be drawn again and again, so others are.
            able = self._server_half.plan(self.state, self.sessions.present)
            first = self._opening.drawn_again(able.tasks if able else (), self.round)
            plan = self._server_half.plan(self.state, first) if first else plan
        if plan is None:
            return self._finish()
        if not plan.tasks or (not resumed and self._opening.lacks_quorum(plan, first, self._now)):
            return []
        return self._open(plan, first)

    def _open(self, plan: Plan, first: tuple[DeviceId, ...]) -> list[Effect]:
        self._enter(Move.OPENED)
        resumed, (_, *others) = bool(self._resume[0]), self._resume
        self._looked, self._resume = self._now, ((),)
        self._ends = self._now + self._policy.deadline
        if resumed:  # it is not begun again, but the devices have the time to return
            self._ends = max(self._ends - self._elapsed, self._opening.returned_by())
        if not self._policy.devices:  # it asks all anyway
            plan = replace(plan, others=None)
        self._tasks = OpenRound(
            plan, self._now, self._policy, self._typical, self._stored if resumed else (), timed=not resumed
        )
        self._stored = frozenset()
        for group in others:
            self._ask(group)
        for device in self._attendance.gone & self._tasks.outstanding:  # while the server was away
            self._tasks.lost(device, "it was revoked")
        # A resumed round is on disk already, with the devices that it asked. A second Opened would write and
        # announce it again, as if it were new.
        effects: list[Effect] = [] if resumed else [Opened(self.round, first, plan.title)]
        asks_all = plan.others is not None and not resumed
        rest = self._opening.not_drawn(first, self.round) if asks_all else ()
        if rest and self._ask(rest):
            effects.append(SteppedIn(self.round, rest))
        if len(self.reported) < self._tasks.goal:
            effects += [offer for device in sorted(self.plan.tasks) for offer in self._offer(device)]
        return effects + self._close_if_complete()

    def _step_in(self) -> list[Effect]:
        """Ask idle devices in place of those that are missing or late; on a tick, as a round is opened."""
        if self._now - self._looked < STEP_IN_SECONDS:
            return []
        self._looked = self._now
        chosen = self._opening.step_in(self._tasks, self.round, self.state, self._now)
        offers = [offer for device in self._ask(chosen) for offer in self._offer(device)] if chosen else []
        return [SteppedIn(self.round, chosen), *offers] if offers else []

    def _ask(self, group: tuple[DeviceId, ...]) -> list[DeviceId]:
        """Plan tasks for devices that were not drawn. Returns those that have one now, sorted."""
        self._tasks.tried.update(group)
        new = tuple(device for device in group if device not in self.plan.tasks)
        if self.plan.others is not None:
            tasks: Mapping[DeviceId, Message] = dict.fromkeys(new, self.plan.others)
        else:
            plan = self._server_half.plan(self.state, group)
            tasks = {device: plan.tasks[device] for device in new if device in plan.tasks} if plan else {}
        self._tasks.add(tasks, self._now)
        return sorted(tasks)

    def _finish_if_over(self) -> list[Effect]:
        """Finish the run if it is complete. That needs no devices: all may have left after the last report.

        An algorithm says so only by planning nothing, and a plan may be costly, so each state is asked once.
        """
        known = sorted(self.plan.tasks) or sorted(self.state.assignments) or self.sessions.present
        if not self._may_be_over or not known:
            return []
        self._may_be_over = False
        return self._finish() if self._server_half.plan(self.state, known) is None else []

    def _finish(self) -> list[Effect]:
        self._enter(Move.FINISHED)
        return [Finished(False, "the run is complete")]

    def _offer(self, device: DeviceId) -> list[Effect]:
        """Lease the open round's task to a device that is idle and still owes it."""
        owes = self.stage is Stage.OPEN and device in self.plan.tasks and device not in self.reported
        if not owes or self.sessions.of(device).presence is not Presence.IDLE:
            return []
        session = self.sessions.take(device, Step.OFFERED)
        self._tasks.offered(device, self._now)
        # Without the attempt in it, so that a task done again after a crash gives the same bits.
        task = self.plan.tasks[device]
        seed = derive(self._seed, "round", self.round, "" if task.one_seed else device)
        return [Offer(device, self.round, session.attempt, seed, self.plan.title, task)]

    def _close_if_complete(self) -> list[Effect]:
        if self.stage is not Stage.OPEN:
            return []
        tasks, reported = self._tasks, len(self.reported)
        if reported >= tasks.goal:
            return self._close("the round is full")
        if tasks.outstanding:
            return []
        if self._opening.idle(tasks, self.round, self.state):
            self._looked = -math.inf  # the next tick asks them
            return []
        # If most devices have gone silent, it is more likely that the network has failed than that all of
        # them have: the round waits for them until the deadline, and does not go on with a few.
        if reported >= self._least() and reported >= len(tasks.silent):
            return self._close("the round is full")
        # A device that left may come back and report, so the round waits for it until the deadline. One that
        # has failed, or was revoked, will not.
        gone = self._attendance.gone
        if all(self.sessions.is_here(device) or device in gone for device in tasks.missing):
            # Those that are gone for good have not failed: others may come, and do what was asked of them.
            # Nor have those that ask their owners, who take their time: the run asks again. Where these are
            # enough for a round, one that another device has failed is no reason to give up.
            failed, asking = {*tasks.missing} - gone - tasks.asking, tasks.asking - gone
            counts = bool(failed) and reported + len(asking) < self._least()
            why = "no device is left that takes part" if asking else "every device that is left has failed"
            return self._abandon(why, counts=counts, asking=bool(asking))
        return []

    def _time_is_up(self) -> list[Effect]:
        """Go on without the devices that have run out of time, or abandon the round at its deadline."""
        over, least = self._now >= self._ends, self._least()
        if len(self.reported) >= least and over:
            return self._close("it did not report before the deadline")
        if len(self.reported) >= least and self._now >= self._opening.ends_for_the_slow(self._tasks):
            times = f"{self._policy.straggler_factor:g} times"
            return self._close(f"it did not report within {times} what the others needed")
        reason = f"{len(self.reported)} of at least {least} reports at the deadline"
        return self._abandon(reason) if over else []

    def _close(self, reason: str) -> list[Effect]:
        """Combine the reports that are in. reason: why those of other devices do not count."""
        self._enter(Move.CLOSED)
        effects = self._release(reason)
        # In device-id order and not as they came: float sums depend on their order.
        return [*effects, Reduce(self.round, tuple(sorted(self.reported)))]

    def _reduced(self, event: Reduced) -> list[Effect]:
        if event.round != self.round:
            raise IllegalEvent(f"round {event.round} was reduced, but the run is in round {self.round}")
        self._enter(Move.REDUCED)
        self.state, self._excused, self._may_be_over = event.state, 0, True
        # What has to begin again needs devices that took no part: at once, it would fail as it did.
        self._abandoned = getattr(event.state, "begun_again", 0)
        self._why = "too few devices took part to complete it"
        return [self._next_round()]

    def _damaged(self, event: Damaged) -> list[Effect]:
        """Ask for reports again. A device that is not here is missing until it comes back."""
        if event.round != self.round or not {*event.devices} <= self.reported:
            raise IllegalEvent(f"reports of round {event.round} cannot be damaged: they do not count")
        if self.stage is not Stage.OPEN:
            self._enter(Move.REOPENED)
        effects: list[Effect] = []
        for device in sorted(event.devices):
            self._tasks.withdrawn(device)
            if not self.sessions.is_here(device):
                self._tasks.lost(device, event.reason)
            effects += self._offer(device)
        return effects + self._close_if_complete()

    def _changed(self, event: Changed) -> list[Effect]:
        if self.stage is Stage.REDUCING:
            raise IllegalEvent("a run that is reducing cannot be changed")
        former, deadline = self._policy.deadline, event.policy.deadline
        self._ends = self._ends + deadline - former if math.isfinite(former) else self._now + deadline
        self._policy, self.state, self._may_be_over = event.policy, event.state, True
        self._opening.policy = event.policy
        self._tasks.change(event.policy)
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
            self._tasks = OpenRound(Plan({}, ""))
        effects = [*self._release(event.reason), Abandon(self.round, event.reason)]
        self.state, self._abandoned, self._excused = event.state, 0, 0
        self._may_be_over, self._resume = True, ((),)
        effects.append(self._next_round())
        return effects

    def _abandon(self, reason: str, counts: bool = True, asking: bool = False) -> list[Effect]:
        failed = self._abandoned - self._excused + 1
        given_up = counts and failed >= self._policy.max_abandoned_rounds
        self._enter(Move.GIVEN_UP if given_up else Move.ABANDONED)
        # Before the tasks are taken back: the reasons are those of the devices that failed, and not that of
        # the round for those that were still at work.
        why = reasons(self._tasks.missing)
        effects = self._release(reason)
        reason = self._why = reason + (f": {why}" if why else "")
        effects.append(Abandon(self.round, reason))
        self._abandoned += counts or asking
        self._excused += asking and not counts
        effects.append(self._next_round())
        if given_up:
            many = f"{self._abandoned} rounds in a row were abandoned, the last"
            what = many if self._abandoned > 1 else "a round was abandoned"
            effects.append(Finished(True, f"{what} because {reason}"))
        return effects

    def _next_round(self) -> Save:
        self._attendance.ended({*self.sessions.present, *self.reported})
        self._typical = {**self._typical, **self._tasks.taken()}
        self.round, self._opening.since = self.round + 1, self._now
        memory = self._attendance.memory(self._typical)
        return Save(self.round, self.state, self._abandoned, dict(self._tasks.missing), memory)

    def _release(self, reason: str) -> list[Effect]:
        """Withdraw the task from every device that still works on it."""
        effects: list[Effect] = []
        missed = partial(self._attendance.missed, round=self.round)
        for device in self._tasks.end(reason, missed, self._now):
            if self.sessions.of(device).presence is Presence.WORKING:
                self.sessions.take(device, Step.RELEASED)
                effects.append(Withdraw(device, self.round, reason))
        return effects

    def _enter(self, move: Move) -> None:
        """The only place where the stage changes. It comes first, so that an illegal move changes nothing."""
        self.stage = after(self.stage, move)
