"""Ways through the real client: its training process by itself, and the whole program over gRPC.

Every release has a ledger of its own, since a second one of the same data would be the same bytes.
"""

import asyncio
import shutil
import sys
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any, ClassVar, Protocol

import yaml

from fedclient.config import DataConfig, LearnerConfig, WorkConfig
from fedclient.store.blobs import BlobStore
from fedclient.work.executor import Spawned
from shoal.core.exchange.link import Placement, Question, Task
from shoal.core.exchange.messages import Message
from shoal.core.exchange.parts import ClusterAssignment, Descriptor
from shoal.core.exchange.payload import Payload, decode, encode
from tests.audit.world import OPTIONS, World
from tests.client.bridge import serving
from tests.client.memory_server import MemoryServer


class Auditable(Protocol):
    """Two data sets, a question about them, and what the answers tell; see `World`."""

    classes: int
    held_out: ClassVar[float]
    options: ClassVar[Mapping[str, object]]

    @property
    def question(self) -> Message: ...

    @property
    def claimed(self) -> float: ...

    def save(self, path: Path, present: bool) -> None: ...

    def released(self, reply: Message) -> Any: ...

    def statistic(self, released: Any) -> float: ...


async def from_worker(
    world: Auditable, present: bool, folder: Path, keep: bool = False
) -> AsyncIterator[Any]:
    """Releases of one training process, without end: as the agent starts it, and asks it.

    keep: let the ledger be the one that is there.
    """
    world.save(folder / "data.npz", present)
    work = WorkConfig(
        folder / "blobs",
        folder / "privacy",
        LearnerConfig(builtin="mlp", options=world.options),
        DataConfig(npz=folder / "data.npz", held_out=world.held_out),
        labels=world.classes > 0,
    )
    store, executor = BlobStore(work.blobs), Spawned(work)
    task = Task("audit", 1, 1, 0, "", encode(world.question, store.keep))
    try:
        await executor.start()
        while True:
            if not keep:
                shutil.rmtree(work.account, ignore_errors=True)
            answer = await executor.perform(task)
            assert isinstance(answer, Payload), answer
            reply = type(world.question).reply
            yield world.released(decode(answer, {reply.kind: reply}, store.load))
    finally:
        await executor.stop()


async def from_program(world: World, present: bool, folder: Path) -> AsyncIterator[Descriptor]:
    """Releases of `fedclient place`, endlessly: a process, a ledger and calls over gRPC for each of them. The
    auditor serves."""
    world.save(folder / "data.npz", present)
    server = MemoryServer([])
    server.question = Question("audit", encode(world.question, server.keep))
    server.placement = Placement("audit", ClusterAssignment("c0"), server.keep(world.encoder))
    async with serving(server) as (link, _):
        settings = {
            "server": link.address,
            "insecure_loopback": True,
            "learner": {"builtin": "mlp", "options": OPTIONS},
            "data": {"npz": "data.npz"},
        }
        (folder / "device.yaml").write_text(yaml.safe_dump(settings))
        while True:
            shutil.rmtree(folder / "state", ignore_errors=True)
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "fedclient", "place", "--config", str(folder / "device.yaml")),
                "--json",
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
            )
            out, progress = await process.communicate()
            assert process.returncode == 0, out + progress
            yield server.placed[-1]
