"""A server and its devices in one process without a network, so that a kill -9 takes all of them at once.

What survives is what is on the disk: of the server under `server`, of each device under its name.
"""

import asyncio
import itertools
import json
import os
import sys
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from fedclient.agent.agent import Agent, Until
from fedclient.agent.reporter import Reporter
from fedclient.store.blobs import BlobStore
from fedclient.store.memory import Memory
from fedclient.store.state import DeviceFolder, Outbox, Status
from fedclient.work.pipes import WorkerInfo
from fedserver.coordinator.coordinator import Coordinator
from fedserver.coordinator.device_api import DeviceApi
from fedserver.store.engines import Elsewhere
from shoal.core.engine.simulate import Device
from shoal.core.exchange.link import Idle, Outcome, Receipt, Report, Task
from shoal.core.exchange.messages import Built, Message, Trained
from shoal.core.exchange.payload import Payload, decode, encode
from shoal.core.exchange.tensors import digest
from shoal.core.exchange.wire import work_key
from shoal.core.types import DeviceId, ModelKey, Tensors
from shoal.shell import crash
from tests.client.visits import NoJitter
from tests.programs import FORKS
from tests.server.coordinator.test_graph import FITTING
from tests.server.servers import DEVICES, ROUNDS, models, server, simulated, start
from tests.server.toys import MESSAGES, MODEL, honest, same_models
from tests.waiting import HANG

PIECE = 64
"""Bytes of a chunk: the model of 136 bytes has three."""
INLINE, BUILT = "inline", "built"
"""A file in the root: models travel inside of tasks and reports."""
OWNERS: dict[str, Any] = {"os": os, "Path": Path}
Fault = tuple[str, str, int, int]
"""Whose call, its name, at which passage it fails, and with which error."""


class Noting(DeviceApi):
    """A device's link that writes down what was acknowledged, as soon as that is known."""

    def __init__(self, coordinator: Coordinator, device: str, acknowledged: Path) -> None:
        super().__init__(coordinator, device)
        self._name, self._acknowledged = device, acknowledged
        self._inline = (acknowledged.parent / INLINE).exists()

    async def next_task(self, wait: float) -> Task | Idle:
        """As if models were large, unless they are to travel inside of tasks and reports."""
        found = await super().next_task(wait)
        if isinstance(found, Idle) or self._inline:
            return found
        return replace(found, inline=(), inline_report=0)

    async def report(self, report: Report) -> Receipt:
        receipt = await super().report(report)
        if receipt.outcome is Outcome.ACCEPTED and isinstance(report.result, Payload):
            with self._acknowledged.open("a") as file:
                file.write(f"{report.round} {self._name}\n")
        return receipt


def counting(number: int, message: Message, seed: int, memory: Tensors | None) -> tuple[Message, Tensors]:
    """The honest answer of the device with that number, moved by how many tasks it remembers; what it
    remembers then."""
    answer, tasks = honest(number)(message, seed), 0 if memory is None else int(memory["tasks"])
    if isinstance(answer, Built):
        return replace(answer, graph={"graph": np.frombuffer(FITTING, np.uint8)}), {"tasks": np.array(tasks)}
    if isinstance(answer, Trained):
        moved = {name: (array + tasks).astype(array.dtype) for name, array in answer.model.items()}
        answer = replace(answer, model=moved)
    return answer, {"tasks": np.array(tasks + 1)}


def expected() -> dict[ModelKey, Tensors]:
    """The models of the lab's run in simulation."""
    memories: dict[DeviceId, Tensors] = {}

    def device(number: int) -> Device:
        def perform(message: Message, seed: int) -> Message:
            answer, memories[f"d{number}"] = counting(number, message, seed, memories.get(f"d{number}"))
            return answer

        return perform

    return simulated({f"d{number}": device(number) for number in range(DEVICES)})


class Toy:
    """In place of a training process: `counting`, with what it remembers on the disk."""

    def __init__(self, number: int, store: BlobStore) -> None:
        self._number, self._store, self._memory = number, store, Memory.beside(store.folder)

    async def start(self) -> WorkerInfo:
        return WorkerInfo(1, True, "cpu")

    async def perform(self, task: Task) -> Payload:
        message, work = decode(task.payload, MESSAGES, self._store.load), work_key(task)
        answer, left = counting(self._number, message, task.seed, self._memory.before(task.run, work))
        payload = encode(answer, self._store.keep)
        self._memory.propose(task.run, work, left)
        return payload

    async def stop(self) -> None:
        pass


async def device(
    coordinator: Coordinator, root: Path, number: int, doing: Callable[[str], None] = lambda text: None
) -> None:
    """A device, until no run needs it. doing: called with what it does."""
    folder = DeviceFolder(root / f"d{number}")
    with folder.locked():
        name = folder.device(f"d{number}")
        store, link = BlobStore(folder.blobs), Noting(coordinator, name, root / "acknowledged")
        reporter = Reporter(Status(name, "lab"), folder.root, doing, lambda text: None)
        outbox = Outbox(folder.outbox)
        agent = Agent(link, Toy(number, store), store, outbox, folder.mark, reporter, chance=NoJitter())
        await agent.run(Until.FINISHED)


async def unless_broken(coordinator: Coordinator, *devices: Coroutine[Any, Any, None]) -> None:
    """All devices to their end. Raises what ended the server, or one of them, as it would end a process."""
    playing = asyncio.ensure_future(asyncio.gather(*devices))
    await asyncio.wait([playing, coordinator.broken], return_when=asyncio.FIRST_COMPLETED)
    if coordinator.broken.done():
        playing.cancel()
        await asyncio.gather(playing, return_exceptions=True)
        raise coordinator.broken.result()
    await playing


def elsewhere(root: Path) -> Elsewhere | None:
    """Where the server's store is, if a test has written it down."""
    path = root / "database"
    return Elsewhere(path.read_text(), root / "shared") if path.exists() else None


async def live(root: Path) -> None:
    """From a start to the end of the run; what came of it is left in `root`/end.json."""
    async with server(root / "server", elsewhere=elsewhere(root)) as coordinator:
        if "toy" not in coordinator.runs:
            await start(coordinator, None if (root / BUILT).exists() else MODEL)
        await unless_broken(coordinator, *(device(coordinator, root, number) for number in range(DEVICES)))
        storage = coordinator.storage
        rounds = await storage.call(storage.journal.timeline.read, "toy")
        end = {
            "standing": coordinator.runs["toy"].standing.value,
            "graph": coordinator.runs["toy"].spec.graph,
            "models": {key: digest(model) for key, model in models(coordinator).items()},
            "same": same_models(models(coordinator), expected()),
            "counted": [[each.reported, each.asked, each.abandoned] for each in rounds],
            "stored": [
                f"{each.round} {report.device}"
                for each in rounds
                for report in await storage.call(storage.reports.of_round, "toy", each.round)
            ],
        }
    (root / "end.json").write_text(json.dumps(end))


def life(root: str, point: str, fault: Fault | None = None) -> None:
    """In a process of its own: live, and die where `point` says. fault: a call that fails once."""
    import fedclient.store.blobs
    import fedserver.coordinator.visits.transfer
    import fedserver.store.content.copies

    for module in (
        fedclient.store.blobs,
        fedserver.store.content.copies,
        fedserver.coordinator.visits.transfer,
    ):
        module.CHUNK = PIECE  # type: ignore[misc]
    os.environ[crash.VARIABLE] = point
    if fault is not None:
        inject(*fault)
    asyncio.run(asyncio.wait_for(live(Path(root)), HANG))


def inject(whose: str, name: str, passage: int, number: int) -> None:
    """From here on the call `owner.name` fails at this passage, once, with this error."""
    owner = OWNERS[whose]
    real, passed = getattr(owner, name), itertools.count(1)

    def failing(*arguments: Any, **options: Any) -> Any:
        if next(passed) == passage:
            raise OSError(number, os.strerror(number))
        return real(*arguments, **options)

    setattr(owner, name, failing)


def lived(root: Path, point: str = "", fault: Fault | None = None) -> int:
    """The exit code of one life."""
    process = FORKS.Process(target=life, args=(str(root), point, fault))
    process.start()
    process.join()
    assert process.exitcode is not None
    return process.exitcode


def end(root: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((root / "end.json").read_text())
    return found


def acknowledged(root: Path) -> list[str]:
    """Round and device of every report that was confirmed to a device."""
    path = root / "acknowledged"
    return path.read_text().splitlines() if path.exists() else []


def check(root: Path) -> None:
    """The run ended as it would have without a crash, and the devices remember nothing of it."""
    found, confirmed = end(root), acknowledged(root)
    for number in range(DEVICES):
        assert not [path for path in (root / f"d{number}" / "memory").rglob("*") if path.is_file()]
    assert found["standing"] == "finished"
    assert found["same"]
    assert found["counted"] == [[DEVICES, DEVICES, ""]] * (ROUNDS + 1)
    assert len(found["stored"]) == DEVICES * (ROUNDS + 1)
    assert len(confirmed) == len(set(confirmed))
    assert set(confirmed) <= set(found["stored"])


if __name__ == "__main__":
    life(sys.argv[1], "")
