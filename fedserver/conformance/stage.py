"""The server of `fedserver conformance`: a real one on loopback, with a state folder that is thrown away."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from fedserver.authority import setup
from fedserver.authority.authority import Authority
from fedserver.config import Settings, read_server
from fedserver.coordinator.coordinator import Coordinator
from fedserver.daemon import access_of
from fedserver.rpc.channel import SOCKET
from fedserver.rpc.client import OperatorClient
from fedserver.rpc.edge import Call, Edge
from fedserver.rpc.server import listen
from fedserver.store.identities.records import Terms
from fedserver.store.records import RunSpec
from shoal.core.engine.rounds import RoundPolicy
from shoal.core.identity.joining import Role
from shoal.core.types import RunId, Tensors

T = TypeVar("T")

CADENCE = Settings(poll=2.0, heartbeat=1.0, tick=0.05, grace=1.0)
PATIENCE = 60.0
"""Seconds until something that a device ought to do counts as not done."""
LOOK = 0.02
"""Seconds between two looks at what the device has done."""
POLICY = RoundPolicy(devices=1, minimum=1, max_abandoned_rounds=1)
"""Of the runs of one device: one that fails once is over."""
AT_LEISURE = RoundPolicy(devices=2, minimum=2, wait_for_devices=1e6)
"""Of a run that opens no round for one device: as long as it goes on, the device is not asked to leave."""


class NotSeenError(Exception):
    """The device did not do, in time, what a situation is about."""


@dataclass
class Stage:
    """edge: where the device's calls are seen. model: what the runs start from; None until the device has
    made one."""

    edge: Edge
    coordinator: Coordinator
    operator: OperatorClient
    line: str
    model: Tensors | None = None
    _runs: int = 0

    async def begin(
        self, algorithm: str = "fedavg", policy: RoundPolicy = POLICY, **parameters: Any
    ) -> RunId:
        """Start a run. Its model is never one that the device has seen, so that the device fetches it."""
        self._runs += 1
        spec = RunSpec(f"{algorithm}-{self._runs}", algorithm, parameters=parameters, policy=policy)
        initial, factor = None, 1.0 - self._runs / 1024
        if self.model is not None:
            initial = {name: (factor * each).astype(each.dtype) for name, each in self.model.items()}
        return (await asyncio.to_thread(self.operator.start_run, spec, initial)).run

    async def one_task(self) -> RunId:
        """Start a run in which the device trains once, and nothing else."""
        return await self.begin(rounds=1, inputs="raw", evaluate=False)

    async def end(self, run: RunId) -> str:
        """How a run ends: finished, failed or stopped."""

        def over() -> str | None:
            found = self.coordinator.runs[run].standing
            return None if found.value == "active" else found.value

        return await self.until(over)

    async def until(self, found: Callable[[], T | None], seconds: float | None = PATIENCE) -> T:
        """What `found` gives once it gives something. seconds: None: however long that takes.

        Raises NotSeenError.
        """
        try:
            async with asyncio.timeout(seconds):
                while (value := found()) is None:  # noqa: ASYNC110 -- looks at what no event tells
                    await asyncio.sleep(LOOK)
                return value
        except TimeoutError:
            raise NotSeenError from None

    async def call(
        self, name: str, since: int = 0, where: Callable[[Call], bool] = lambda call: True
    ) -> Call:
        """The first call of this name, from number `since` on, that is answered or has failed."""

        def over() -> Call | None:
            calls = (
                each for each in self.edge.calls[since:] if each.name == name and each.over < float("inf")
            )
            return next(filter(where, calls), None)

        return await self.until(over)

    def silent(self) -> float:
        """Seconds since the last call of the device."""
        latest = max((each.at for each in self.edge.calls), default=-PATIENCE)
        return asyncio.get_running_loop().time() - latest

    @property
    def number(self) -> int:
        """Of the next call."""
        return len(self.edge.calls)


@asynccontextmanager
async def opened(folder: Path) -> AsyncIterator[Stage]:
    """A server in this folder, until the end of the block. Raises ShoalErrors."""
    setup.init(folder, ["127.0.0.1"], "127.0.0.1:0", "127.0.0.1:0", "conformance")
    config = replace(read_server({"state": folder}), cadence=CADENCE)
    coordinator, listeners, edge = await Coordinator.open(folder, CADENCE), None, Edge()
    try:
        access = await access_of(coordinator.storage, Authority.open(folder), config)
        listeners = await listen(coordinator, config.listen, folder / SOCKET, access, within=(edge,))
        with OperatorClient(folder) as operator:
            _, line = await asyncio.to_thread(operator.create_token, Terms(Role.TRAIN, uses=1))
            yield Stage(edge, coordinator, operator, line)
    finally:
        edge.leave_alone()
        coordinator.stop_serving()
        if listeners is not None:
            await listeners.stop_accepting()
            await listeners.stop(CADENCE.grace)
        await coordinator.close()
