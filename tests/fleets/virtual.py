"""A fleet in virtual time, and a server that may stop at any point and start again from what it stored."""

import heapq
import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any

from shoal.core.algorithm import Report, State
from shoal.core.engine.events import (
    Abandon,
    Effect,
    Event,
    Finished,
    Heard,
    Joined,
    Offer,
    Opened,
    Reduce,
    Reduced,
    Reported,
    Save,
    SteppedIn,
    Tick,
    Withdraw,
)
from shoal.core.engine.round.attendance import Memory
from shoal.core.engine.rounds import RoundEngine, RoundPolicy, Stage
from shoal.core.errors import StaleReport
from shoal.core.exchange.messages import Message
from shoal.core.types import DeviceId

TICK, HEARTBEAT = 1.0, 10.0
"""Seconds between two ticks of the engine, and between two signs of life of a device."""
RETURN = 45.0
"""Seconds within which a device that has lost the server calls again."""

Answer = Callable[[DeviceId, Message, int], Message]
"""What a device answers to a task with this seed."""


class Stopped(Exception):
    """The server's process ends here."""


@dataclass
class Device:
    """work: how many seconds the task of a round takes; None if it never answers. here: whether its process
    runs."""

    name: DeviceId
    work: Callable[[int], float | None]
    here: bool = True
    lease: tuple[int, int] = (0, 0)
    done: dict[int, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Round:
    """A round that is over. at: when it ended."""

    number: int
    asked: int
    reported: tuple[DeviceId, ...]
    abandoned: str
    at: float
    missing: Mapping[DeviceId, str]


class VirtualFleet:
    """One run with its devices. rounds: those that are over. now: the virtual time, in seconds.

    stop_at: the number of the step before which the server stops, once; steps: how many there were. A step is
    anything that the server does: it stores a report, or carries an effect out.
    """

    def __init__(
        self,
        server_half: Any,
        state: State,
        policy: RoundPolicy,
        devices: list[Device],
        answer: Answer,
        seed: int,
        stop_at: int | None = None,
    ) -> None:
        self._server_half, self._policy, self._seed, self._answer = server_half, policy, seed, answer
        self.devices = {device.name: device for device in devices}
        self.chance = Random(f"fleet {seed}")
        self.now, self.steps, self.stop_at = 0.0, 0, stop_at
        self.rounds: list[Round] = []
        self.failed: bool | None = None
        self._order = itertools.count()
        self._agenda: list[tuple[float, int, Callable[[], None]]] = []
        # What the server has on disk.
        self._state, self._round, self._opened = state, 1, 0.0
        self._asked: tuple[DeviceId, ...] = ()
        self._groups: list[tuple[DeviceId, ...]] = []
        self._stored: dict[DeviceId, Message] = {}
        self._abandoned_in_a_row, self._memory, self._why = 0, Memory(), ""
        self.on_restart: Callable[[], None] = lambda: None
        self._start()
        self._memory = Memory(tuple(sorted(self.devices)))  # as the server stores it when a run begins

    # -- the server -------------------------------------------------------------------------------------

    @property
    def state(self) -> State:
        return self.engine.state

    def _start(self) -> None:
        self.engine = RoundEngine(
            self._server_half,
            self._policy,
            self._seed,
            self._state,
            round=self._round,
            asked=self._asked,
            stepped_in=self._groups,
            reported=self._stored,
            elapsed=self.now - self._opened if self._asked else 0.0,
            abandoned_in_a_row=self._abandoned_in_a_row,
            memory=self._memory,
        )

    def restart(self, down: float = 1.0) -> None:
        """The server is away for some seconds; its devices return one after another."""
        self.now += down
        self._start()
        self.on_restart()
        for device in self.devices.values():
            device.lease = (0, 0)
            if device.here:
                self._later(self.chance.uniform(0.0, RETURN), lambda device=device: self._join(device))  # type: ignore[misc]

    def _feed(self, event: Event) -> None:
        for effect in self.engine.feed(event):
            self._step()
            self._carry_out(effect)

    def _step(self) -> None:
        self.steps += 1
        if self.steps == self.stop_at:
            raise Stopped

    def _carry_out(self, effect: Effect) -> None:
        match effect:
            case Opened():
                self._asked, self._groups, self._stored, self._opened = effect.devices, [], {}, self.now
            case SteppedIn():
                self._groups.append(effect.devices)
            case Offer():
                self._work(effect)
            case Withdraw():
                self.devices[effect.device].lease = (0, 0)
            case Reduce():
                reports = [Report(device, self._stored[device]) for device in effect.devices]
                following = self._server_half.reduce(self.engine.state, reports)
                self._step()
                self._feed(Reduced(effect.round, following))
            case Abandon():
                self._why = effect.reason
            case Save():
                asked = len(self.engine.plan.tasks)
                reported = () if self._why else tuple(sorted(self.engine.reported))
                self.rounds.append(
                    Round(effect.round - 1, asked, reported, self._why, self.now, effect.missing)
                )
                self._state, self._round = effect.state, effect.round
                self._asked, self._groups, self._stored, self._why = (), [], {}, ""
                self._abandoned_in_a_row, self._memory = effect.abandoned_in_a_row, effect.memory
            case Finished():
                self.failed = effect.failed

    # -- devices ----------------------------------------------------------------------------------------

    def _join(self, device: Device) -> None:
        if device.here:
            self._feed(Joined(device.name))

    def _work(self, offer: Offer) -> None:
        """A device begins its task, or goes on with it; what it has done before is in its outbox."""
        device = self.devices[offer.device]
        device.lease = (offer.round, offer.attempt)
        if offer.round not in device.done:
            seconds = device.work(offer.round)
            device.done = {offer.round: float("inf") if seconds is None else self.now + seconds}
        if (at := device.done[offer.round]) < float("inf"):
            answer = self._answer(offer.device, offer.message, offer.seed)
            self._later(max(0.0, at - self.now), lambda: self._report(device, offer, answer))

    def _report(self, device: Device, offer: Offer, answer: Message) -> None:
        if not device.here or device.lease != (offer.round, offer.attempt):
            return
        try:
            self.engine.expects(device.name, offer.round, offer.attempt)
        except StaleReport:
            return
        self._stored[device.name] = answer
        self._step()
        device.lease = (0, 0)
        self._feed(Reported(device.name, offer.round, offer.attempt))

    # -- time -------------------------------------------------------------------------------------------

    def _later(self, seconds: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._agenda, (self.now + seconds, next(self._order), action))

    def run(self, most: float = 1e7) -> "VirtualFleet":
        """Until the run is over, or for this many seconds."""
        for device in self.devices.values():
            self._later(0.0, lambda device=device: self._join(device))  # type: ignore[misc]
        beat = 0.0
        while self.engine.stage is not Stage.OVER and self.now < most:
            try:
                while self._agenda and self._agenda[0][0] <= self.now:
                    heapq.heappop(self._agenda)[2]()
                if self.now >= beat:
                    self._beat()
                    beat = self.now + HEARTBEAT
                self._feed(Tick(self.now))
            except Stopped:
                self.restart()
            self.now += TICK
        return self

    def _beat(self) -> None:
        for device in self.devices.values():
            if device.here:
                self._feed(Heard(device.name))
