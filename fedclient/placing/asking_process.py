"""Asking a server by a process of its own, which ends with the answer.

On a device with little memory, gRPC and TLS are not to stay while models are tried, and the process that
tries them is not to stay while the server is asked: so there is one of them at a time.

`AskerProcess` starts this module as that process. Its standard input carries the settings (JSON) and the
request, and stays open as long as the device waits. Its standard output carries what people may read
meanwhile, and then the answer or an error: messages that begin with a letter, each preceded by its length.
"""

import asyncio
import json
import os
import threading
from collections.abc import Callable
from dataclasses import asdict
from typing import Any, BinaryIO

from fedclient.config import ClientConfig
from fedclient.placing.asking import asking
from fedclient.work.executor import Executor
from fedclient.work.pipes import receive, send, take_pipes
from fedclient.work.spawning import Child
from shoal.core.errors import ShoalError
from shoal.core.exchange.choosing import Wish
from shoal.core.exchange.link import Placement, Question
from shoal.core.exchange.parts import Evidence
from shoal.core.exchange.seal import Signed
from shoal.core.exchange.wire import (
    answer_from_bytes,
    answer_to_bytes,
    fault_from_bytes,
    fault_to_bytes,
    place_from_bytes,
    place_to_bytes,
    seal_from_bytes,
    seal_to_bytes,
)
from shoal.core.types import RunId
from shoal.shell.config import convert

DOING, SAID, SEAL, ANSWER, FAULT = b"d", b"s", b"r", b"a", b"f"
"""The first letter of a message of the process: progress, a line that stays, the seal of the release, and how
it ended."""


class AskerProcess:
    """What `fedclient.placing.asking.Asker` is, for a device without a learner. executor: stopped before each
    question. doing, say: tell people what the process waits for, and what stays true afterwards.
    """

    def __init__(
        self,
        settings: ClientConfig,
        executor: Executor,
        doing: Callable[[str], None],
        say: Callable[[str], None],
        give_up_after: float,
    ) -> None:
        self._settings, self._executor, self._give_up_after = settings, executor, give_up_after
        self._listeners = {DOING: doing, SAID: say}
        self.received = 0
        self.seal: Signed | None = None

    async def ask(
        self, run: RunId, evidence: Evidence | Wish | None, accept_nearest: bool
    ) -> Question | Placement:
        """As `Asker.ask`. Raises WorkerDied, too."""
        await self._executor.stop()
        given = {
            "settings": asdict(self._settings),
            "give_up_after": self._give_up_after,
            "accept_nearest": accept_nearest,
        }
        what = "the process that asks the server"
        process = await Child.start("fedclient.placing.asking_process", what, 1, frugal=True)
        try:
            message = await process.ask(
                json.dumps(given, default=str).encode(), place_to_bytes(run, evidence)
            )
            self.seal = None
            while (kind := message[:1]) in (*self._listeners, SEAL):
                if kind == SEAL:
                    self.seal = seal_from_bytes(message[1:])
                else:
                    self._listeners[kind](message[1:].decode(errors="replace"))
                message = await process.read()
        finally:
            await process.end()
        data = message[1:]
        if kind == FAULT:
            raise fault_from_bytes(data)
        self.received += int.from_bytes(data[:8], "big")
        return answer_from_bytes(data[8:])


def main() -> None:
    source, sink = take_pipes()
    given, request = receive(source), receive(source)
    assert given is not None
    assert request is not None
    threading.Thread(target=_ended_with, args=(source,), daemon=True).start()

    def put(kind: bytes, data: bytes) -> None:
        send(sink, kind + data)

    try:
        received, answer = asyncio.run(_asked(json.loads(given), request, put))
    except ShoalError as error:
        put(FAULT, fault_to_bytes(error))
    else:
        put(ANSWER, received.to_bytes(8, "big") + answer)


async def _asked(given: Any, request: bytes, put: Any) -> tuple[int, bytes]:
    """Bytes received, and the answer. The link is closed on return."""
    settings = convert(given["settings"], ClientConfig, "the settings")

    def doing(text: str) -> None:
        put(DOING, text.encode())

    def say(text: str) -> None:
        put(SAID, text.encode())

    run, evidence = place_from_bytes(request)
    async with asking(settings, doing, say, given["give_up_after"]) as asker:
        answer = await asker.ask(run, evidence, given["accept_nearest"])
        put(SEAL, seal_to_bytes(asker.seal))
    return asker.received, answer_to_bytes(answer)


def _ended_with(source: BinaryIO) -> None:
    """Once the agent is gone, no one waits for the answer."""
    source.read(1)
    os._exit(0)


if __name__ == "__main__":
    main()
