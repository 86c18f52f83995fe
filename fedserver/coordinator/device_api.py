"""The coordinator's interface for devices: `shoal.core.exchange.link.Link` without a network in between."""

import logging
import re
import time
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import replace

import shoal
from fedserver.coordinator import placement, watching
from fedserver.coordinator.coordinator import Coordinator
from fedserver.coordinator.visits import cadence, inline, intake, transfer
from fedserver.coordinator.visits.visitor import Visitor, fired_within
from fedserver.store.content.frames import Frame
from fedserver.store.journal import released
from shoal.core.errors import BadPayload, SessionLost, WrongVersion
from shoal.core.exchange.choosing import Wish
from shoal.core.exchange.link import (
    PROTOCOL,
    Hello,
    Idle,
    Link,
    Placement,
    Question,
    Receipt,
    Report,
    Task,
    Welcome,
)
from shoal.core.exchange.parts import Ballot, Evidence
from shoal.core.exchange.payload import BlobRef
from shoal.core.exchange.seal import Signed
from shoal.core.types import Bytes, DeviceId, RunId

log = logging.getLogger("shoal.server")
SOFTWARE = f"fedserver {shoal.__version__}"
NAMED_SOFTWARE = re.compile(r"[ -~]{1,64}")
"""What a device may say that it runs; operators see it in a table."""


class DeviceApi(Link):
    """The calls of one device, in the session that its last hello opened or that `session` names."""

    def __init__(self, coordinator: Coordinator, device: DeviceId, session: str = "") -> None:
        self._coordinator, self._device, self._session = coordinator, device, session

    async def hello(self, hello: Hello) -> Welcome:
        self._coordinator.check_serving()
        if not hello.oldest_protocol <= PROTOCOL <= hello.newest_protocol:
            raise WrongVersion(
                f"this server speaks protocol version {PROTOCOL}, "
                f"but the device speaks versions {hello.oldest_protocol} to {hello.newest_protocol}",
                "update the older of the two",
            )
        if not NAMED_SOFTWARE.fullmatch(hello.software):
            raise BadPayload(
                "the name of the device's software is not 1 to 64 printable ASCII characters",
                "send a name and a version",
            )
        visitor = self._coordinator.visitor(self._device)
        visitor.seen()
        self._session = visitor.begin(hello.software)
        await self._coordinator.check_mark(self._device, hello.mark)
        fleet, heartbeat = self._coordinator.fleet(), self._coordinator.settings.heartbeat
        session, mark, spread = self._session, await self._mark(), cadence.spread(fleet)
        return Welcome(SOFTWARE, PROTOCOL, session, self._poll(), heartbeat, spread, mark=mark)

    def _poll(self) -> float:
        return cadence.poll(self._coordinator.fleet(), self._coordinator.settings)

    async def next_task(self, wait: float) -> Task | Idle:
        until = time.monotonic() + min(wait, self._poll())
        visitor = self._visitor()
        with visitor.waiting():
            while True:
                change = visitor.changed.next()
                self._coordinator.check_deciding()
                await self._coordinator.join(self._visitor())
                if task := self._coordinator.task_for(self._device):
                    visitor.given = task.run
                    return await inline.filled(self._coordinator, visitor, task)
                if not visitor.sent_finished and (idle := self._coordinator.idle()).finished:
                    visitor.sent_finished = True
                    return idle
                if not await fired_within(change, until - time.monotonic()):
                    return self._coordinator.idle()

    async def alive(self, run: RunId, round: int, attempt: int) -> bool:
        visitor = self._visitor()
        if self._coordinator.storage.full or self._coordinator.conflicts:
            self._coordinator.heard(visitor)  # its lease stays as it is, and nothing new is begun
        else:
            await self._coordinator.join(visitor)
        self._coordinator.runs.check_recovered(run)
        known = self._coordinator.runs.get(run)
        lease = known.lease(self._device) if known else None
        return lease is not None and (lease.task.round, lease.task.attempt) == (round, attempt)

    async def fetch(self, blob: BlobRef, start: int) -> AsyncIterator[Bytes]:
        async for frame in self.frames(blob, start):
            yield frame.data

    async def frames(self, blob: BlobRef, start: int) -> AsyncGenerator[Frame, None]:
        """The same in the messages in which they travel."""
        async for frame in transfer.fetch(self._coordinator, await self._fetching(), blob, start):
            yield frame

    async def _fetching(self) -> Visitor:
        """In a session a blob is for a task, which a restarted server leases again when the device joins.

        Who has not said hello or asked to be placed since the start is no visitor, and is granted nothing.
        """
        self._coordinator.check_serving()
        if self._session:
            await self._coordinator.join(self._visitor())
        return self._coordinator.visitors.get(self._device) or Visitor(self._device)

    async def uploaded(self, blob: BlobRef) -> int:
        self._coordinator.check_deciding()
        await self._coordinator.join(self._visitor())
        return await transfer.uploaded(self._coordinator, self._visitor(), blob)

    async def upload(self, blob: BlobRef, start: int, chunks: AsyncIterator[Bytes]) -> int:
        self._coordinator.check_deciding()
        await self._coordinator.join(self._visitor())
        return await transfer.upload(self._coordinator, self._visitor(), blob, start, chunks)

    async def report(self, report: Report) -> Receipt:
        self._coordinator.check_deciding()
        await self._coordinator.join(self._visitor())
        receipt = await intake.receive(self._coordinator, self._device, report)
        return replace(receipt, mark=await self._mark(receipt.mark))

    async def leave(self) -> None:
        self._coordinator.check_deciding()
        await self._coordinator.leave(self._visitor())

    async def place(
        self, run: RunId, evidence: Evidence | Wish | None, accept_nearest: bool = False
    ) -> Question | Placement:
        self._coordinator.check_serving()
        visitor = self._coordinator.visitor(self._device)
        visitor.seen()
        answer = await placement.place(self._coordinator, visitor, run, evidence, accept_nearest)
        if isinstance(evidence, Wish) and evidence.moved is not None:
            await watching.note(self._coordinator, self._device, evidence.moved)
        if isinstance(evidence, Evidence):
            storage, question = self._coordinator.storage, ""
            if isinstance(evidence, Ballot):
                question = await placement.voted_on(self._coordinator, answer.release or answer.run)
            await released.record_evidence(storage, answer.run, self._device, evidence, question)
        return answer

    async def seal(self, release: str) -> Signed | None:
        self._coordinator.check_serving()
        return await placement.seal(self._coordinator, release)

    async def _mark(self, known: str = "") -> str:
        """The current mark, or the one that is known already; "" during a conflict, so that a device keeps
        the mark that proves the conflict."""
        storage = self._coordinator.storage
        return "" if self._coordinator.conflicts else known or await storage.call(storage.history.mark)

    def _visitor(self) -> Visitor:
        """The state of the device. Raises SessionLost if this session is not the device's newest."""
        self._coordinator.check_serving()
        visitor = self._coordinator.visitors.get(self._device)
        if visitor is not None and self._session and self._session in visitor.replaced:
            visitor.called_late(self._session)
            log.warning("device %s: a session that was replaced is still in use", self._device)
            raise SessionLost(
                f"another process has replaced this one as device {self._device}",
                "each device needs its own name: stop one of the two processes",
            )
        if visitor is None or not self._session or visitor.session != self._session:
            raise SessionLost(f"device {self._device} has no session on this server", "say hello again")
        return visitor
