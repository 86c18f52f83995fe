"""Asking a server by a process of its own, which ends with the answer.

On a device with little memory, gRPC and TLS are not to stay while models are tried, and the process that
tries them is not to stay while the server is asked: so there is one of them at a time.

`AskerApart` starts this module as that process. Its standard input carries the settings (JSON) and the
request, and stays open as long as the device waits. Its standard output carries what people may read
meanwhile, and then the answer or an error: messages that begin with a letter, each preceded by its length.
"""

import asyncio
import json
import os
import signal
import threading
from asyncio.subprocess import Process
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, BinaryIO

from fedclient.config import ClientConfig, LimitsConfig
from fedclient.faults import WorkerDied
from fedclient.work.executor import Executor
from fedclient.work.pipes import LENGTH, framed, length_of, take_pipes
from fedclient.work.spawning import end, spawn
from shoal.core.errors import BadPayload, ShoalError
from shoal.core.exchange.choosing import Wish
from shoal.core.exchange.link import Placement, Question
from shoal.core.exchange.parts import Evidence
from shoal.core.exchange.wire import (
    answer_from_bytes,
    answer_to_bytes,
    fault_from_bytes,
    fault_to_bytes,
    place_from_bytes,
    place_to_bytes,
)
from shoal.core.types import RunId

DOING, SAID, ANSWER, FAULT = b"d", b"s", b"a", b"f"
"""The first letter of a message of the process: progress, a line that stays, and how it ended."""


class AskerApart:
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

    async def ask(
        self, run: RunId, evidence: Evidence | Wish | None, accept_nearest: bool
    ) -> Question | Placement:
        """As `Asker.ask`. Raises WorkerDied, too."""
        await self._executor.stop()
        settings = self._settings
        given = {
            "state": str(settings.state),
            "server": settings.server,
            "device": settings.device,
            "insecure_loopback": settings.insecure_loopback,
            "blob_hosts": settings.blob_hosts,
            "limits": asdict(settings.limits),
            "give_up_after": self._give_up_after,
            "accept_nearest": accept_nearest,
        }
        process = await spawn("fedclient.placing.apart", 1, frugal=True)
        try:
            kind, data = await self._heard(process, json.dumps(given).encode(), place_to_bytes(run, evidence))
        finally:
            await end(process)
        if kind == FAULT:
            raise fault_from_bytes(data)
        self.received += int.from_bytes(data[:8], "big")
        return answer_from_bytes(data[8:])

    async def _heard(self, process: Process, *messages: bytes) -> tuple[bytes, bytes]:
        """How the process ended: ANSWER or FAULT, and its bytes."""
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(b"".join(map(framed, messages)))
            await process.stdin.drain()
            while True:
                size = length_of(await process.stdout.readexactly(LENGTH))
                message = await process.stdout.readexactly(size)
                kind, data = message[:1], message[1:]
                if kind in (ANSWER, FAULT):
                    return kind, data
                if kind not in self._listeners:
                    raise BadPayload(
                        "the process that asks the server says something unknown", "install the device again"
                    )
                self._listeners[kind](data.decode(errors="replace"))
        except (asyncio.IncompleteReadError, ConnectionError):
            code = await end(process)
            name = signal.Signals(-code).name if code < 0 else f"exit code {code}"
            raise WorkerDied(
                f"the process that asks the server ended with {name}", "look at what it printed"
            ) from None


def main() -> None:
    source, sink = take_pipes()
    given, request = (source.read(length_of(source.read(LENGTH))) for _ in range(2))
    threading.Thread(target=_ended_with, args=(source,), daemon=True).start()

    def put(kind: bytes, data: bytes) -> None:
        sink.write(framed(kind + data))
        sink.flush()

    try:
        received, answer = asyncio.run(_asked(json.loads(given), request, put))
    except ShoalError as error:
        put(FAULT, fault_to_bytes(error))
    else:
        put(ANSWER, received.to_bytes(8, "big") + answer)


async def _asked(given: Any, request: bytes, put: Any) -> tuple[int, bytes]:
    """Bytes received, and the answer. The link is closed on return."""
    # gRPC, and what needs it, is in this process only.
    from fedclient.identity.connection import endpoint
    from fedclient.identity.link import opened
    from fedclient.net.direct import Direct
    from fedclient.placing.asking import Asker
    from fedclient.store.blobs import BlobStore
    from fedclient.store.state import DeviceFolder

    settings = ClientConfig(
        state=Path(given["state"]),
        server=given["server"],
        device=given["device"],
        insecure_loopback=given["insecure_loopback"],
        blob_hosts=tuple(given["blob_hosts"]),
        limits=LimitsConfig(**given["limits"]),
    )
    folder, reached = DeviceFolder(settings.state), endpoint(settings)
    run, evidence = place_from_bytes(request)
    async with opened(reached, folder, lambda text: put(SAID, text.encode())) as link:
        link.direct = Direct(settings.blob_hosts)
        asker = Asker(
            link,
            BlobStore(folder.blobs),
            lambda text: put(DOING, text.encode()),
            settings.limits.allowance(given["give_up_after"]),
            light=True,
            check=settings.consents.check_not_refused,
        )
        answer = await asker.ask(run, evidence, given["accept_nearest"])
    return asker.received, answer_to_bytes(answer)


def _ended_with(source: BinaryIO) -> None:
    """Once the agent is gone, no one waits for the answer."""
    source.read(1)
    os._exit(0)


if __name__ == "__main__":
    main()
