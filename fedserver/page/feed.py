"""What the server says, asked for once for all who look, and only while someone looks.

The server is asked at intervals and never followed event by event: whatever happens in a run a thousand times
a second, the page costs the server the same. After a call that took long the next one comes later, so that
the page takes at most `MAX_BUSY` of the server's time.
"""

import asyncio
import json
import secrets
import time
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from fedserver.page.source import Answer, Source
from fedserver.page.views.texts import words
from shoal.core.errors import NotFound, ShoalError
from shoal.core.types import RunId

INTERVAL = 0.5
"""Seconds between two looks at the server."""
MAX_BUSY = 0.05
"""The largest part of the time in which a call of the page is open."""
HEARTBEAT = 15.0
"""Seconds after which a viewer hears that the page is still there, although nothing has changed."""
UNWATCHED = 60.0
"""Seconds for which the page remembers a run that no one looks at any more."""
FLEET = ""
"""The topic that is not a run."""


@dataclass
class Topic:
    """What is known of the fleet or of one run.

    rows: its rounds, which only become more. Where earlier ones change all the same, `edition` does, too.
    """

    documents: dict[str, bytes] = field(default_factory=dict)
    rows: list[bytes] = field(default_factory=list)
    edition: int = field(default_factory=lambda: secrets.randbelow(1 << 30))
    viewers: int = 0
    left: float = 0.0


@dataclass(frozen=True)
class Event:
    """A server-sent event. id: where to go on after a lost connection; "" for a document, which is whole."""

    name: str
    data: bytes
    id: str = ""

    def encoded(self) -> bytes:
        head = f"event: {self.name}\n" + (f"id: {self.id}\n" if self.id else "")
        return head.encode() + b"data: " + self.data + b"\n\n"


class Feed:
    """Asks a source, and gives each viewer what it has not seen yet."""

    def __init__(self, source: Source, interval: float = INTERVAL) -> None:
        self._source, self._interval = source, interval
        self._topics: dict[RunId, Topic] = {}
        self._changed, self._wanted = asyncio.Event(), asyncio.Event()
        self._server = b""
        self._thread = ThreadPoolExecutor(1, "page-asks")  # one is enough, and each has memory of its own

    async def follow(self, run: RunId = FLEET, last: str = "") -> AsyncIterator[Event]:
        """The server, and the fleet or one run: now, and after each change. It never ends by itself.

        last: the id of the last event that the viewer has, if it had any. A viewer that reads slowly misses
        what was outdated meanwhile, and nothing waits for it.
        """
        with self._viewing(run) as topic:
            seen: dict[str, bytes] = {}
            edition, at = _position(last)
            while True:
                changed = self._changed
                if self._server and seen.get("server") != self._server:
                    seen["server"] = self._server
                    yield Event("server", self._server)
                for name, document in list(topic.documents.items()):
                    if seen.get(name) != document:
                        seen[name] = document
                        yield Event(name, document)
                if edition != topic.edition or at > len(topic.rows):
                    edition, at = topic.edition, 0
                if at < len(topic.rows) or (at == 0 and "rounds" not in seen and topic.documents):
                    seen["rounds"], start, at = b"", at, len(topic.rows)
                    data = b'{"from":%d,"rows":[%s]}' % (start, b",".join(topic.rows[start:at]))
                    yield Event("rounds", data, f"{edition}.{at}")
                try:
                    await asyncio.wait_for(changed.wait(), HEARTBEAT)
                except TimeoutError:
                    yield Event("alive", b"{}")

    async def ask(self) -> None:
        """Ask the server as long as this process lives; it may be away, and come back."""
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            took = await self._look()
            self._forget(time.monotonic())
            if any(topic.viewers for topic in self._topics.values()):
                with suppress(TimeoutError):  # a viewer of something else does not wait for the next look
                    await asyncio.wait_for(self._wanted.wait(), max(self._interval, took / MAX_BUSY))
                self._wanted.set()

    async def _look(self) -> float:
        """Look at all that is viewed. Returns how many seconds the calls took that belong to each look."""
        took = 0.0
        for run, topic in list(self._topics.items()):
            if not topic.viewers:
                continue
            loop = asyncio.get_running_loop()
            try:
                answer = await loop.run_in_executor(self._thread, self._source.look, run, len(topic.rows))
            except NotFound as error:
                self._publish(topic, {"run": {"gone": words(error.message)}})
            except ShoalError as error:
                self._tell({"reachable": False, "why": words(error.message)})
            else:
                took += answer.took
                self._take(topic, answer)
                if answer.more:
                    self._wanted.set()
        return took

    def _take(self, topic: Topic, answer: Answer) -> None:
        self._tell({"reachable": True, **answer.server})
        if answer.start < len(topic.rows):
            topic.rows, topic.edition = topic.rows[: answer.start], topic.edition + 1
        if answer.rows:
            topic.rows += map(_encoded, answer.rows)
            self._fire()
        self._publish(topic, answer.documents)

    def _tell(self, server: dict[str, Any]) -> None:
        if (data := _encoded(server)) != self._server:
            self._server = data
            self._fire()

    def _publish(self, topic: Topic, documents: dict[str, Any]) -> None:
        for name, document in documents.items():
            if (data := _encoded(document)) != topic.documents.get(name):
                topic.documents[name] = data
                self._fire()

    def _fire(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    @contextmanager
    def _viewing(self, run: RunId) -> Iterator[Topic]:
        topic = self._topics.setdefault(run, Topic())
        topic.viewers += 1
        if topic.viewers == 1:
            self._wanted.set()
        try:
            yield topic
        finally:
            topic.viewers -= 1
            topic.left = time.monotonic()

    def _forget(self, now: float) -> None:
        for run, topic in list(self._topics.items()):
            if not topic.viewers and now - topic.left > UNWATCHED:
                del self._topics[run]
                self._source.forget(run)


def _position(last: str) -> tuple[int, int]:
    edition, _, at = last.partition(".")
    return (int(edition), int(at)) if edition.isdecimal() and at.isdecimal() and len(last) < 20 else (0, 0)


def _encoded(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
