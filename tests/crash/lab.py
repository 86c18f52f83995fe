"""A server and its devices in one process without a network, so that a kill -9 takes all of them at once.

What survives is what is on the disk: of the server under `server`, of each device under its name.
"""

import asyncio
import json
import multiprocessing
import os
from pathlib import Path
from typing import Any

from fedclient.agent import Agent, Until
from fedclient.blobs import BlobStore
from fedclient.performer import Facts
from fedclient.state import DeviceFolder, Outbox, Status
from fedclient.watcher import Watcher
from fedcore.link import Outcome, Receipt, Report, Task
from fedcore.payload import Payload, decode, encode
from fedcore.shell import crash
from fedserver.coordinator import Coordinator
from fedserver.link import DeviceLink
from fedserver.store import Store
from tests.client.visits import NoJitter
from tests.server.servers import DEVICES, expected, models, server, start
from tests.server.toys import MESSAGES, MODEL, honest, same_models

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["tests.crash.lab", "fedcore.algorithms.fedavg.central"])
PIECE = 64
"""Bytes of a chunk: the model of 136 bytes has three."""
LONG = 60.0
"""Seconds after which a life has hung."""


class Noting(DeviceLink):
    """A device's link that writes down what was acknowledged, as soon as that is known."""

    def __init__(self, coordinator: Coordinator, device: str, acknowledged: Path) -> None:
        super().__init__(coordinator, device)
        self._name, self._acknowledged = device, acknowledged

    async def report(self, report: Report) -> Receipt:
        receipt = await super().report(report)
        if receipt.outcome is Outcome.ACCEPTED:
            with self._acknowledged.open("a") as file:
                file.write(f"{report.round} {self._name}\n")
        return receipt


class Toy:
    """In the place of a training process: the honest answers of the device with that number."""

    def __init__(self, number: int, store: BlobStore) -> None:
        self._answer, self._store = honest(number), store

    async def start(self) -> Facts:
        return Facts(1, True, "cpu")

    async def perform(self, task: Task) -> Payload:
        message = decode(task.payload, MESSAGES, self._store.load)
        return encode(self._answer(message, task.seed), self._store.keep)

    async def stop(self) -> None:
        pass


async def device(coordinator: Coordinator, root: Path, number: int) -> None:
    """A device, until no run needs it."""
    folder = DeviceFolder(root / f"d{number}")
    with folder.locked():
        name = folder.device(f"d{number}")
        store, link = BlobStore(folder.blobs), Noting(coordinator, name, root / "acknowledged")
        watcher = Watcher(Status(name, "lab"), folder.root, lambda text: None, lambda text: None)
        outbox = Outbox(folder.outbox)
        agent = Agent(link, Toy(number, store), store, outbox, folder.mark, watcher, chance=NoJitter())
        await agent.run(Until.FINISHED)


async def live(root: Path) -> None:
    """From a start to the end of the run; what came of it is left in `root`/end.json."""
    async with server(root / "server") as coordinator:
        if "toy" not in coordinator.runs:
            await start(coordinator, MODEL)
        await asyncio.gather(*(device(coordinator, root, number) for number in range(DEVICES)))
        storage = coordinator.storage
        rounds = await storage(Store.rounds, "toy")
        end = {
            "standing": coordinator.runs["toy"].standing.value,
            "same": same_models(models(coordinator), expected()),
            "counted": [[each.reported, each.asked, each.abandoned] for each in rounds],
            "stored": [
                f"{each.round} {report.device}"
                for each in rounds
                for report in await storage(Store.reports, "toy", each.round)
            ],
        }
    (root / "end.json").write_text(json.dumps(end))


def life(root: str, point: str) -> None:
    """In a process of its own: live, and die where `point` says."""
    import fedclient.blobs
    import fedserver.blobs
    import fedserver.transfer

    for module in (fedclient.blobs, fedserver.blobs, fedserver.transfer):
        module.CHUNK = PIECE  # type: ignore[misc]
    os.environ[crash.VARIABLE] = point
    asyncio.run(asyncio.wait_for(live(Path(root)), LONG))


def lived(root: Path, point: str = "") -> int:
    """The exit code of one life."""
    process = FORKS.Process(target=life, args=(str(root), point))
    process.start()
    process.join()
    assert process.exitcode is not None
    return process.exitcode


def end(root: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((root / "end.json").read_text())
    return found


def acknowledged(root: Path) -> list[str]:
    """Round and device of every report that a device was told counts."""
    path = root / "acknowledged"
    return path.read_text().splitlines() if path.exists() else []
