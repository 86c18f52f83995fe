"""One run of the fleet with faults in it: when they strike, and what was seen meanwhile."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from random import Random
from typing import Any

from fedserver.coordinator.status_types import RunStatus
from fedserver.rpc.client import OperatorClient
from shoal.core.errors import ConfigError, ShoalError, Unavailable
from tests.chaos import work
from tests.chaos.fleet import Device, Fleet
from tests.chaos.programs import LOOK
from tests.chaos.proxy import DOWN, UP
from tests.waiting import HANG

GLANCE = 0.2
"""Seconds from one question to the server, whether the run is over, to the next."""
OPENED, DONE = ": open: ", ": done: "
"""How the server's log says that a round begins and ends."""


@dataclass(frozen=True)
class Moment:
    """An instant of a run: `delay` seconds after something was seen.

    seen: "start" of the run; "opened" or "closed": round number `amount`; "up" or "down": that many bytes of
    `device` have passed since the run began.
    """

    seen: str
    amount: int = 0
    device: str = ""
    delay: float = 0.0


@dataclass
class Strike:
    """A fault. whom: programs that it hit. at, healed: when it began and ended, by the monotonic clock."""

    what: str
    whom: tuple[str, ...]
    moment: Moment | None
    details: dict[str, Any] = field(default_factory=dict)
    at: float = field(default_factory=time.monotonic)
    healed: float = 0.0

    def heal(self) -> None:
        self.healed = time.monotonic()

    def facts(self) -> dict[str, Any]:
        moment = asdict(self.moment) if self.moment else None
        return {"what": self.what, "whom": self.whom, "moment": moment, **self.details}


class Trial:
    """expected: exit codes that this kind of fault may bring about, for each program.

    wrong: what a fault itself found to be so that must not be.
    """

    def __init__(self, fleet: Fleet, kind: str, seed: int) -> None:
        self.fleet, self.kind, self.seed = fleet, kind, seed
        self.chance = Random(f"{kind}:{seed}")
        self.algorithm = self.chance.choice(["fedavg", "fedavg", "flux"])
        self.run = f"{kind.replace(':', '.')}-{seed}"
        self.model_seed = self.chance.randrange(1 << 31)
        self.strikes: list[Strike] = []
        self.expected: dict[str, set[int]] = {}
        self.notes: list[str] = []
        self.wrong: list[str] = []
        self.over = asyncio.Event()
        self.status: RunStatus | None = None
        self.ended = 0.0
        self._watching: asyncio.Task[None] | None = None
        self._before = self._marks()
        self.began = time.monotonic()

    # -- the run ------------------------------------------------------------------------------------------

    async def begin(self) -> None:
        """Start the run; from here on its moments count. A server that dies over it is asked again."""
        self._before, self.began = self._marks(), time.monotonic()
        spec = work.spec(self.run, self.algorithm, self.model_seed)
        while True:
            try:
                await self.fleet.ask(lambda operator: operator.start_run(spec, None))
                break
            except ConfigError:  # it is there: an earlier call came through without its answer
                break
            except ShoalError:
                await self.fleet.answering()
        self._watching = asyncio.create_task(self._watch())

    async def end(self) -> None:
        """The faults are over: wait until the run is. Raises Unavailable when it never is."""
        assert self._watching is not None
        for device in self.fleet.devices.values():
            device.proxy.heal()
        try:
            await asyncio.wait_for(self.over.wait(), HANG)
        except TimeoutError:
            waiting = self.status.summary.waiting_for if self.status else "an unknown cause"
            raise Unavailable(f"{self.run} is not over after {HANG:.0f} s: {waiting}") from None
        finally:
            self._watching.cancel()

    async def _watch(self) -> None:
        def show(operator: OperatorClient) -> RunStatus:
            return operator.show(self.run)

        while not self.over.is_set():
            try:
                self.status = await self.fleet.ask(show)
                if self.status.summary.over:
                    self.ended = time.monotonic()
                    self.over.set()
            except ShoalError:
                pass  # the server is away: that is the point
            await asyncio.sleep(GLANCE)

    # -- moments ------------------------------------------------------------------------------------------

    def moment(self, *devices: str) -> Moment:
        """A random instant in a random phase of the run, as seen from one of these devices."""
        chance = self.chance
        device, number = chance.choice(devices or work.NAMES), chance.randint(1, 3)
        whole, model = int(chance.uniform(0.0, 0.95) * 3 * work.MODEL), number * work.MODEL
        return chance.choice(
            [
                Moment("start", delay=chance.uniform(0.0, 1.0)),
                Moment("opened", number, delay=chance.uniform(0.0, 0.1)),
                Moment(DOWN, whole, device),
                Moment(DOWN, model, device, chance.uniform(0.0, 0.3)),  # it trains
                Moment(UP, whole, device),
                Moment(UP, model, device, chance.uniform(0.0, 0.1)),  # it reports
                Moment("closed", number, delay=chance.uniform(0.0, 0.1)),
            ]
        )

    async def until(self, moment: Moment) -> bool:
        """Wait for a moment. False if the run was over before it came."""
        while not self._seen(moment):
            if self.over.is_set():
                self.notes.append(f"{moment.seen} {moment.amount} was never seen")
                return False
            await asyncio.sleep(LOOK / 2)
        await asyncio.sleep(moment.delay)
        return not self.over.is_set()

    async def until_over(self, unless: Callable[[], bool]) -> None:
        """Wait for the end of the run, or for something else."""
        while not self.over.is_set() and not unless():  # noqa: ASYNC110 - it is seen by looking
            await asyncio.sleep(LOOK)

    def struck(
        self, what: str, whom: tuple[str, ...], moment: Moment | None = None, **details: Any
    ) -> Strike:
        """A fault begins."""
        strike = Strike(what, whom, moment, details)
        self.strikes.append(strike)
        return strike

    def expect(self, program: str, *codes: int) -> None:
        self.expected.setdefault(program, set()).update(codes)

    # -- what was seen --------------------------------------------------------------------------------------

    def carried(self, device: Device, way: str) -> int:
        """Bytes that passed since the run began."""
        return device.proxy.carried[way] - self._before[device.name][way]

    def at(self, device: Device, way: str, amount: int) -> int:
        """The number that a trap takes for the byte `amount` of this run."""
        return self._before[device.name][way] + amount

    def pick(self) -> Device:
        return self.fleet.devices[self.chance.choice(work.NAMES)]

    def _seen(self, moment: Moment) -> bool:
        if moment.seen in (UP, DOWN):
            return self.carried(self.fleet.devices[moment.device], moment.seen) >= moment.amount
        if moment.seen == "start":
            return True
        said = OPENED if moment.seen == "opened" else DONE
        return self._log().count(f"run {self.run}{said}".encode()) >= moment.amount

    def _log(self) -> bytes:
        with self.fleet.server.log.open("rb") as file:
            file.seek(self._before["server"]["log"])
            return file.read()

    def _marks(self) -> dict[str, dict[str, int]]:
        devices = self.fleet.devices.values()
        log = {"log": self.fleet.server.log.stat().st_size}
        return {**{each.name: dict(each.proxy.carried) for each in devices}, "server": log}
