"""The process that asks a server once, started by `apart.py` and never by people.

Standard input carries the settings (JSON) and the request, and stays open as long as the device waits.
Standard output carries what people may read meanwhile, and then the answer or an error: messages that begin
with a letter, each preceded by its length.
"""

import asyncio
import json
import os
import threading
from pathlib import Path
from typing import Any, BinaryIO

from fedclient.config import ClientConfig, LimitsConfig
from fedclient.identity.connection import endpoint
from fedclient.identity.link import opened
from fedclient.placing.apart import ANSWER, DOING, FAULT, SAID
from fedclient.placing.asking import Asker
from fedclient.store.blobs import BlobStore
from fedclient.store.state import DeviceFolder
from fedclient.work.pipes import LENGTH, framed, length_of, take_pipes
from shoal.core.errors import ShoalError
from shoal.core.exchange.wire import answer_to_bytes, fault_to_bytes, place_from_bytes


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
    settings = ClientConfig(
        state=Path(given["state"]),
        server=given["server"],
        device=given["device"],
        insecure_loopback=given["insecure_loopback"],
        limits=LimitsConfig(**given["limits"]),
    )
    folder, reached = DeviceFolder(settings.state), endpoint(settings)
    run, evidence = place_from_bytes(request)
    async with opened(reached, folder, lambda text: put(SAID, text.encode())) as link:
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
