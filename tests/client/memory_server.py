"""A server in memory with a link to it: sessions, leases with attempts, blobs by chunk, receipts.

It keeps the promises of `shoal.core.exchange.link` and nothing more, and does on demand what networks and
servers do: be away, forget sessions, cut transfers, take a round back.
"""

import hashlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace

from shoal.core.algorithm import find
from shoal.core.algorithm.asks import terms_of
from shoal.core.errors import BadPayload, NotFound, Refused, SessionLost, Unavailable
from shoal.core.exchange.choosing import Wish
from shoal.core.exchange.link import (
    Hello,
    Idle,
    Outcome,
    Placement,
    Question,
    Receipt,
    Report,
    Task,
    Welcome,
)
from shoal.core.exchange.parts import Evidence
from shoal.core.exchange.payload import INLINE, BlobRef, Payload, Weights
from shoal.core.exchange.seal import Signed
from shoal.core.exchange.tensors import manifest_of, pack
from shoal.core.types import Bytes, RunId, Tensors

FEDAVG, _ = find("fedavg")
TERMS = terms_of(FEDAVG, FEDAVG.configure("default"))
"""Of a run, as its tasks have them."""


@dataclass
class MemoryServer:
    """tasks: to give out, in order; one is over when its report came. log: calls and what became of them.

    away: this many of the next calls fail, of the kinds in `away_from` (all, when empty). forget: void the
    session at the next call. late: answers to the next reports, which do not count then. cut: bytes after
    which the next transfers end, one for each. lose: all uploads before the next report. mark: what it gives
    at hello; at a report, with the round after it. shown: the marks that devices brought. inline: small blobs
    come with tasks, and may come with reports. damage: the first byte of the next blob that comes so. seal:
    of the release that it gives.
    """

    tasks: list[Task]
    chunk: int = 1000
    log: list[str] = field(default_factory=list)
    away: int = 0
    away_from: tuple[str, ...] = ()
    forget: bool = False
    lose: bool = False
    cut: list[int] = field(default_factory=list)
    refuse_hello: bool = False
    outcomes: list[Receipt] = field(default_factory=list)
    late: list[Receipt] = field(default_factory=list)
    reports: list[Report] = field(default_factory=list)
    blobs: dict[str, bytes] = field(default_factory=dict)
    uploads: dict[str, bytes] = field(default_factory=dict)
    attempt: int = 0
    session: str = ""
    finished: bool = True
    going_on: tuple[RunId, ...] | None = None
    wanted: bool = True
    question: Question | None = None
    placement: Placement | None = None
    placed: list[Evidence] = field(default_factory=list)
    inline: bool = False
    damage: bool = False
    mark: str = ""
    shown: list[str] = field(default_factory=list)
    seal: Signed | None = None

    def keep(self, tensors: Tensors) -> Weights:
        data = b"".join(pack(tensors))
        blob = BlobRef(hashlib.sha256(data).hexdigest(), len(data))
        self.blobs[blob.sha256] = data
        return Weights(manifest_of(tensors), blob)

    def calls(self, *kinds: str) -> list[str]:
        return [line for line in self.log if line.split()[0] in kinds]


class MemoryLink:
    """One device's link to a MemoryServer; a new one is a new process of the same device."""

    def __init__(self, server: MemoryServer) -> None:
        self._server, self._session = server, ""

    def _call(self, kind: str, detail: object = "", session: bool = True) -> None:
        server = self._server
        server.log.append(f"{kind} {detail}".strip())
        if server.away and (not server.away_from or kind in server.away_from):
            server.away -= 1
            raise Unavailable("no one there")
        if server.forget:
            server.session, server.forget = "", False
        if session and (not self._session or self._session != server.session):
            raise SessionLost("no such session", "say hello")

    async def hello(self, hello: Hello) -> Welcome:
        self._call("hello", session=False)
        if self._server.refuse_hello:
            raise Refused("this device may not", "ask the operator")
        self._server.shown.append(hello.mark)
        self._server.attempt += 1
        self._session = self._server.session = f"session {self._server.attempt}"
        mark = self._server.mark
        return Welcome("memory", hello.newest_protocol, self._session, 0.0, 0.01, mark=mark)

    async def next_task(self, wait: float) -> Task | Idle:
        self._call("next_task")
        if self._server.tasks:
            return self._filled(replace(self._server.tasks[0], attempt=self._server.attempt))
        return Idle("nothing to do", 0.0, 0.0, self._server.finished, self._server.going_on)

    def _filled(self, task: Task) -> Task:
        if not self._server.inline:
            return task
        names = [blob.sha256 for blob in task.payload.small_blobs(INLINE)]
        inline = tuple(self._arriving(self._server.blobs[name]) for name in names)
        return replace(task, inline=inline, inline_report=INLINE)

    def _arriving(self, data: Bytes) -> bytes:
        damaged, self._server.damage = self._server.damage, False
        return bytes([data[0] ^ 1]) + bytes(data[1:]) if damaged else bytes(data)

    async def alive(self, run: RunId, round: int, attempt: int) -> bool:
        self._call("alive", attempt)
        return self._server.wanted

    async def fetch(self, blob: BlobRef, start: int) -> AsyncIterator[bytes]:
        self._call("fetch", start, session=False)
        if blob.sha256 not in self._server.blobs:
            raise NotFound("no such blob")
        data = self._server.blobs[blob.sha256]
        most = self._server.cut.pop(0) if self._server.cut else len(data)
        for position in range(start, len(data), self._server.chunk):
            if position - start >= most:
                raise Unavailable("the line was cut")
            yield data[position : position + self._server.chunk]

    async def uploaded(self, blob: BlobRef) -> int:
        self._call("uploaded")
        return len(self._server.uploads.get(blob.sha256, b""))

    async def upload(self, blob: BlobRef, start: int, chunks: AsyncIterator[bytes]) -> int:
        self._call("upload", start)
        held = self._server.uploads.get(blob.sha256, b"")
        assert start <= len(held)
        held = held[:start]
        most = self._server.cut.pop(0) if self._server.cut else blob.size + 1
        async for chunk in chunks:
            held += chunk
            if len(held) - start >= most:
                self._server.uploads[blob.sha256] = held[: start + most]
                raise Unavailable("the line was cut")
        if hashlib.sha256(held).hexdigest() != blob.sha256:
            self._server.uploads.pop(blob.sha256, None)
            raise BadPayload("these are not the bytes")
        self._server.uploads[blob.sha256] = held
        return len(held)

    async def report(self, report: Report) -> Receipt:
        self._call("report", f"{report.round} {report.attempt}")
        if self._server.late:
            return self._server.late.pop(0)
        if any((report.run, report.round) == (known.run, known.round) for known in self._server.reports):
            return Receipt(Outcome.DUPLICATE)
        due = self._server.tasks[0] if self._server.tasks else None
        if due is None or (report.run, report.round) != (due.run, due.round):
            return Receipt(Outcome.LATE, "that round is over")
        if self._server.lose:
            self._server.uploads, self._server.lose = {}, False
        if isinstance(report.result, Payload):
            assert not report.inline or self._server.inline
            pieces = [self._arriving(piece) for piece in report.inline]
            for name, data in report.result.blobs_in(pieces).items():
                self._server.uploads[name] = bytes(data)
            for weights in report.result.weights():
                if len(self._server.uploads.get(weights.blob.sha256, b"")) != weights.blob.size:
                    raise NotFound("a blob is not here", "upload it first")
        self._server.reports.append(report)
        self._server.tasks.pop(0)
        if self._server.outcomes:
            return self._server.outcomes.pop(0)
        return Receipt(Outcome.ACCEPTED, mark=self._server.mark and f"{self._server.mark}.{report.round}")

    async def leave(self) -> None:
        self._call("leave")

    async def place(
        self, run: RunId, evidence: Evidence | Wish | None, accept_nearest: bool = False
    ) -> Question | Placement:
        self._call("place", run, session=False)
        if isinstance(evidence, Wish | None) and self._server.question is not None:
            return self._server.question
        if isinstance(evidence, Evidence):
            self._server.placed.append(evidence)
        if self._server.placement is None:
            raise Refused("the run has no model yet", "try again after its first round")
        return self._server.placement

    async def seal(self, release: str) -> Signed | None:
        self._call("seal", release, session=False)
        return self._server.seal


def quiet(text: str) -> None:
    """Tells no one."""
