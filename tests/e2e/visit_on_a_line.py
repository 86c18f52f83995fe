"""One device with a model of five megabytes: what a slow or broken line makes of its visit.

As a program it makes the visit on this machine's loopback: `python -m tests.e2e.visit_on_a_line [FOLDER]`.
"""

import asyncio
import hashlib
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np

from fedclient.net.rpc import RpcLink
from fedserver.config import Settings
from fedserver.coordinator.coordinator import Coordinator
from fedserver.coordinator.operator_api import OperatorApi
from fedserver.rpc.server import Listeners, listen
from shoal.core.engine.rounds import RoundPolicy
from shoal.core.errors import Unavailable
from shoal.core.exchange import wire
from shoal.core.exchange.link import Hello, Outcome, Report, Task
from shoal.core.exchange.messages import Trained
from shoal.core.exchange.payload import BlobRef, Weights, encode
from shoal.core.exchange.tensors import manifest_of, pack
from tests.server.servers import spec
from tests.server.toys import Hands, pieces_of

MODEL = {"w": np.random.default_rng(0).random(1_310_720, dtype=np.float32)}
TRAINED = {"w": np.random.default_rng(1).random(1_310_720, dtype=np.float32)}
DATA = b"".join(pack(TRAINED))
BLOB = BlobRef(hashlib.sha256(DATA).hexdigest(), len(DATA))
ALONE = RoundPolicy(devices=1, minimum=1)


@asynccontextmanager
async def served(folder: Path, age: float = 1800.0) -> AsyncIterator[tuple[Coordinator, Listeners]]:
    """A server with a run that asks one device. age: seconds that a connection may last."""
    coordinator = await Coordinator.open(folder, Settings(tick=0.05, age=age))
    listeners = await listen(coordinator, "127.0.0.1:0", folder / "operator.sock")
    operator, hands = OperatorApi(coordinator), Hands(None)  # type: ignore[arg-type]
    initial = hands.keep(MODEL)
    await operator.upload(initial.blob, 0, pieces_of(hands.blobs[initial.blob.sha256], wire.CHUNK))
    await operator.start_run(spec(policy=ALONE), initial)
    try:
        yield coordinator, listeners
    finally:
        coordinator.stop_serving()
        await listeners.stop(0.2)
        await coordinator.close()


async def leased(link: RpcLink) -> Task:
    """The device's task."""
    await link.hello(Hello("a device on a bad line"))
    while not isinstance(task := await link.next_task(10.0), Task):
        pass
    return task


async def fetch(link: RpcLink, blob: BlobRef) -> int:
    """Fetch a blob; how many times that was cut."""
    sha, held, cuts = hashlib.sha256(), 0, 0
    while held < blob.size:
        try:
            async for chunk in link.fetch(blob, held):
                sha.update(chunk)
                held += len(chunk)
        except Unavailable:
            cuts += 1
            await asyncio.sleep(0.1)
    assert sha.hexdigest() == blob.sha256
    return cuts


async def upload(link: RpcLink) -> int:
    """Upload the result; how many times that was cut."""
    cuts = 0
    while (held := await again(lambda: link.uploaded(BLOB))) < BLOB.size:
        try:
            await link.upload(BLOB, held, pieces_of(DATA[held:], wire.CHUNK))
        except Unavailable:
            cuts += 1
            await asyncio.sleep(0.1)
    return cuts


async def again(call: Callable[[], Awaitable[int]]) -> int:
    """What a call gives as soon as it is answered."""
    while True:
        try:
            return await call()
        except Unavailable:
            await asyncio.sleep(0.1)


async def report(link: RpcLink, task: Task) -> None:
    result = encode(Trained({}, 1, 0.5), lambda tensors: Weights(manifest_of(TRAINED), BLOB))
    receipt = await link.report(Report(task.run, task.round, task.attempt, result))
    assert receipt.outcome is Outcome.ACCEPTED, receipt


async def visit(folder: Path) -> None:
    async with served(folder) as (_, listeners):
        link = RpcLink(listeners.address, "d0")
        try:
            task = await leased(link)
            began = time.monotonic()
            (weights,) = task.payload.weights()
            cuts = await fetch(link, weights.blob)
            print(f"{weights.blob.size} bytes fetched in {time.monotonic() - began:.1f} s, cut {cuts} times")
            began = time.monotonic()
            cuts = await upload(link)
            print(f"{BLOB.size} bytes uploaded in {time.monotonic() - began:.1f} s, cut {cuts} times")
            await report(link, task)
            print("reported")
        finally:
            await link.close()


if __name__ == "__main__":
    asyncio.run(visit(Path(sys.argv[1])))
