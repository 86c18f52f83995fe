"""A whole run in one process: the same engine and the same halves as over gRPC, in virtual time.

With the same seeds it gives the same models, bit for bit, as the daemon does.
"""

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from itertools import chain, takewhile
from typing import Any

import numpy as np

from shoal.core.algorithm import Report, ServerHalf, State
from shoal.core.engine.events import (
    Abandon,
    Effect,
    Failed,
    Finished,
    Heard,
    Joined,
    Left,
    Offer,
    Reduce,
    Reduced,
    Reported,
    Save,
    Tick,
)
from shoal.core.engine.rounds import RoundEngine, RoundPolicy
from shoal.core.engine.sessions import Presence
from shoal.core.errors import ShoalError, Unavailable
from shoal.core.exchange.admit import admit_message
from shoal.core.exchange.messages import Message
from shoal.core.exchange.payload import TYPED_PARTS, fields_of, tensors_of
from shoal.core.exchange.tensors import nbytes
from shoal.core.types import DeviceId, Tensors

Device = Callable[[Message, int], Message]
"""A device as the simulator sees it: a task and its seed in, the answer out. It raises Unavailable to drop
out, and any other ShoalError to fail."""

Keep = Callable[[Tensors], Tensors]
"""Moves the tensors of a report off the heap (into a mapped file, for example) and returns the same values,
so that memory does not grow with the number of devices."""

Ahead = Callable[[DeviceId, Message, int], None]
"""Is given a device's next task and its seed before the device is called, as soon as the task is known, so
that devices can work beside each other. It is given each task once."""

CACHED = 4
"""A device is assumed to keep the tensor sets of this many tasks, and not to fetch them again."""
MAX_IDLE_TICKS = 1000
"""After this many ticks without an effect a simulation cannot go on: more time would not help."""


@dataclass
class Outcome:
    """How a simulated run ended. up, down: payload bytes of each device over the whole run, without framing.

    missing: for each round that went on without some device, which devices and why.
    """

    state: State
    failed: bool = False
    reason: str = ""
    rounds: int = 0
    up: dict[DeviceId, int] = field(default_factory=dict)
    down: dict[DeviceId, int] = field(default_factory=dict)
    missing: dict[int, Mapping[DeviceId, str]] = field(default_factory=dict)


def simulate(
    server_half: ServerHalf,
    state: State,
    devices: Mapping[DeviceId, Device],
    policy: RoundPolicy,
    seed: int,
    *,
    round: int = 1,
    keep: Keep = lambda tensors: tensors,
    watch: Callable[[Effect], None] = lambda effect: None,
    ahead: Ahead | None = None,
    outcome: Outcome | None = None,
) -> Outcome:
    """Run until the algorithm is done or the run has failed.

    server_half: the algorithm's server half. state: what `server_half.start` returned, or the state saved for
    `round`. devices: every device of the fleet; all are here from the beginning. seed: the seed of the run.
    keep: see `Keep`. watch: called with every effect before it is carried out; Opened has the title of a
    round, Save the state after one. ahead: see `Ahead`. outcome: filled in while the run goes on, and
    returned.

    Raises Unavailable when fewer devices are left than the policy needs.
    """
    engine = RoundEngine(server_half, policy, seed, state, round=round)
    return _Simulation(server_half, engine, devices, keep, watch, ahead, outcome or Outcome(state)).run()


class _Simulation:
    def __init__(
        self,
        server_half: ServerHalf,
        engine: RoundEngine,
        devices: Mapping[DeviceId, Device],
        keep: Keep,
        watch: Callable[[Effect], None],
        ahead: Ahead | None,
        outcome: Outcome,
    ) -> None:
        self._server_half, self._engine, self._devices = server_half, engine, devices
        self._keep, self._watch, self._ahead = keep, watch, ahead
        self._announced = 0
        self._effects: deque[Effect] = deque()
        self._reports: dict[DeviceId, Message] = {}
        self._cached: dict[DeviceId, deque[list[Tensors]]] = {
            device: deque(maxlen=CACHED) for device in devices
        }
        self._outcome = outcome
        outcome.up.update(dict.fromkeys(devices, 0))
        outcome.down.update(dict.fromkeys(devices, 0))

    def run(self) -> Outcome:
        for device in sorted(self._devices):
            self._effects += self._engine.feed(Joined(device))
        now, idle = 0.0, 0
        while True:
            while self._effects:
                effect = self._effects.popleft()
                if isinstance(effect, Finished):
                    self._outcome.failed, self._outcome.reason = effect.failed, effect.reason
                    self._outcome.state, self._outcome.rounds = self._engine.state, self._engine.round - 1
                    return self._outcome
                self._carry_out(effect)
            for device, session in self._engine.sessions.items():
                if session.presence is not Presence.ABSENT:
                    self._engine.feed(Heard(device))
            self._effects += self._engine.feed(Tick(now))
            idle = 0 if self._effects else idle + 1
            now += 0.0 if self._effects else 1.0
            if idle > MAX_IDLE_TICKS:
                raise Unavailable(
                    f"the simulation cannot go on: {self._engine.waiting().text}",
                    "simulate with at least as many devices as the policy's minimum",
                )

    def _carry_out(self, effect: Effect) -> None:
        self._watch(effect)
        if isinstance(effect, Offer):
            self._perform(effect)
        elif isinstance(effect, Reduce):
            reports = [Report(device, self._reports[device]) for device in effect.devices]
            state = self._server_half.reduce(self._engine.state, reports)
            self._effects += self._engine.feed(Reduced(effect.round, state))
        elif isinstance(effect, Save | Abandon):
            self._reports.clear()
            if isinstance(effect, Save) and effect.missing:
                self._outcome.missing[effect.round - 1] = effect.missing

    def _perform(self, offer: Offer) -> None:
        self._announce(offer)
        device = offer.device
        self._outcome.down[device] += self._fetched(device, offer.message)
        try:
            reply = self._devices[device](offer.message, offer.seed)
            admit_message(offer.message, reply)
        except Unavailable as gone:
            self._effects += self._engine.feed(Left(device, gone.message))
            return
        except ShoalError as fault:
            self._effects += self._engine.feed(Failed(device, offer.round, offer.attempt, str(fault)))
            return
        self._outcome.up[device] += sum(nbytes(tensors) for _, tensors in tensors_of(reply)) + _numbers(reply)
        self._reports[device] = self._kept(reply)
        self._effects += self._engine.feed(Reported(device, offer.round, offer.attempt))

    def _announce(self, offer: Offer) -> None:
        """Tell of this offer and of all that follow it at once, unless they are known already."""
        if self._ahead is not None and not self._announced:
            for each in (offer, *takewhile(lambda effect: isinstance(effect, Offer), self._effects)):
                assert isinstance(each, Offer)
                self._ahead(each.device, each.message, each.seed)
                self._announced += 1
        self._announced -= self._ahead is not None

    def _fetched(self, device: DeviceId, message: Message) -> int:
        """Bytes of the tensor sets of a task that the device does not have yet; a repeated set counts
        once."""
        cached = self._cached[device]
        known = {id(tensors) for tensors in chain(*cached)}  # all of them live, so their numbers are theirs
        own = [tensors for _, tensors in tensors_of(message)]
        cached.append(own)
        fetched = {id(tensors): tensors for tensors in own if id(tensors) not in known}
        return sum(map(nbytes, fetched.values()))

    def _kept(self, message: Message) -> Message:
        changed: dict[str, Any] = {}
        for name in fields_of(type(message)):
            value = getattr(message, name)
            if isinstance(value, Mapping):
                changed[name] = self._keep(value)
            elif isinstance(value, tuple) and any(isinstance(item, Mapping) for item in value):
                changed[name] = tuple(map(self._keep, value))
        return replace(message, **changed) if changed else message  # type: ignore[type-var]


def _numbers(message: Message) -> int:
    """Bytes of the arrays of numbers in a message, such as those of a descriptor or of losses."""
    total = 0
    for name in fields_of(type(message)):
        value = getattr(message, name)
        if isinstance(value, TYPED_PARTS):
            total += _array_bytes(value)
        elif isinstance(value, tuple):
            total += sum(8 for number in value if isinstance(number, float))
    return total


def _array_bytes(value: Any) -> int:
    """Bytes of the arrays in a part, at any depth."""
    if isinstance(value, np.ndarray):
        return value.nbytes
    return (
        sum(_array_bytes(getattr(value, each.name)) for each in fields(value)) if is_dataclass(value) else 0
    )
