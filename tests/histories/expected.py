"""What a run must come to, computed beside the server from the reports that count and nothing else."""

import functools
import json
from secrets import token_bytes
from typing import Any

from fedserver.coordinator.recipe import recipe_of
from fedserver.store.records import RunSpec
from shoal.core.algorithm import Plan, Report, State
from shoal.core.engine import checkpoint
from shoal.core.engine.rounds import RoundPolicy
from shoal.core.engine.simulate import simulate
from shoal.core.exchange.messages import Message
from shoal.core.exchange.payload import BlobRef, Weights
from shoal.core.exchange.summing import SECURE
from shoal.core.exchange.tensors import digest, manifest_of, nbytes
from shoal.core.types import DeviceId, Tensors
from tests.histories.devices import Context, answer, summed


class Expected:
    """One run. plan, groups, rows, reports: of the round that is open: its tasks, how many groups of devices
    it has asked, and its reports, as they stand in the database and as messages."""

    def __init__(self, spec: RunSpec, initial: Tensors | None) -> None:
        recipe = recipe_of(spec)
        self._spec, self._server_half, self._hint = spec, recipe.server_half, recipe.state
        self._first: State = recipe.start(initial)
        self._bootstraps = initial is None
        self._reporters: list[tuple[DeviceId, ...]] = []
        self.state, self.round, self.standing = self._first, 1, "active"
        self.plan, self.groups = Plan({}, ""), 0
        self.rows: dict[DeviceId, bytes] = {}
        self.reports: dict[DeviceId, Message] = {}

    def structure(self) -> str:
        """The checkpoint that the server must have."""
        return _structure(self._hint, self.state)

    def ask(self, group: list[DeviceId]) -> None:
        """The open round asks these devices: first those that it opened with, then each group that steps
        in."""
        plan = self._server_half.plan(self.state, group)
        assert plan is not None
        self.groups += 1
        self.plan = Plan({**plan.tasks, **self.plan.tasks}, plan.title)

    def close(self, abandoned: bool) -> None:
        if not abandoned:
            reports = [Report(device, message) for device, message in sorted(self.reports.items())]
            self.state = self._server_half.reduce(self.state, reports)
        self._reporters.append(() if abandoned else tuple(sorted(self.reports)))
        self.round, self.plan, self.groups = self.round + 1, Plan({}, ""), 0
        self.rows, self.reports = {}, {}

    @property
    def abandoned_in_a_row(self) -> int:
        return next((n for n, found in enumerate(reversed(self._reporters)) if found), len(self._reporters))

    def simulated(self, values: int) -> str | None:
        """How the run ends in simulation; None where not all rounds had the same devices."""
        same = self._reporters[-1]
        wanted = [same] * len(self._reporters)
        if self._bootstraps:
            wanted[0] = same[:1]
        if not same or self._reporters != wanted:
            return None
        memories: dict[DeviceId, Tensors] = {}
        devices = {device: functools.partial(_answer, device, memories, values) for device in same}
        policy = RoundPolicy(minimum=len(same))
        outcome = simulate(self._server_half, self._first, devices, policy, self._spec.seed)
        return _structure(self._hint, outcome.state)


def _answer(
    device: DeviceId, memories: dict[DeviceId, Tensors], values: int, message: Message, seed: int
) -> Message:
    number = int(device[1:])
    if not isinstance(message, SECURE):
        return answer(number, message, seed, 0, values)
    context = Context(memories.get(device), token_bytes)  # whatever the keys are, they cancel
    found = summed(number, message, seed, 0, values, context)
    if context.remembered is not None:
        memories[device] = context.remembered
    return found


def _structure(hint: Any, state: State) -> str:
    def named(tensors: Tensors) -> Weights:
        return Weights(manifest_of(tensors), BlobRef(digest(tensors), nbytes(tensors)))

    return json.dumps(checkpoint.encode(hint, state, named), sort_keys=True)
