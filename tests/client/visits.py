"""A device for tests of the agent: its folder, a stand-in for its training process, and agents on it."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from fedclient.agent.agent import Agent, Until
from fedclient.agent.allowance import Allowance
from fedclient.agent.reporter import Reporter
from fedclient.store.blobs import BlobStore
from fedclient.store.consent import Consents
from fedclient.store.state import Mark, Outbox, Status
from fedclient.work.pipes import WorkerInfo
from shoal.core.exchange.link import Failure, Task
from shoal.core.exchange.messages import Evaluate, Evaluated, Train, Trained, TrainingSettings
from shoal.core.exchange.payload import Payload, decode, encode
from tests.client.memory_server import TERMS, MemoryLink, MemoryServer
from tests.waiting import HANG


class NoJitter(Random):
    """Waits as short as the window allows."""

    def uniform(self, a: float, b: float) -> float:
        return a


class Doubler:
    """In place of a training process: twice the weights. before: what happens first, task by task."""

    def __init__(self, store: BlobStore) -> None:
        self.store = store
        self.performed: list[int] = []
        self.abandoned = 0
        self.before: list[Callable[[], Any]] = []

    async def start(self) -> WorkerInfo:
        return WorkerInfo(1, True, "cpu")

    async def perform(self, task: Task) -> Payload | Failure:
        self.performed.append(task.round)
        try:
            if self.before:
                happened = self.before.pop(0)()
                if isinstance(happened, Failure):
                    return happened
                if happened is not None:
                    await happened
        except asyncio.CancelledError:
            self.abandoned += 1
            raise
        message = decode(task.payload, {"train": Train, "evaluate": Evaluate}, self.store.load)
        if isinstance(message, Evaluate):
            return encode(Evaluated(0.5, 1.0, 10), self.store.keep)
        assert isinstance(message, Train)
        doubled = {name: array * 2 for name, array in message.model.items()}
        return encode(Trained(doubled, 1, 0.0), self.store.keep)

    async def stop(self) -> None:
        pass


class Device:
    """A device's folder, and agents on it: a new agent is the device after a restart."""

    def __init__(self, root: Path, server: MemoryServer) -> None:
        self.root, self.server = root, server
        self.said: list[str] = []
        self.doing: list[str] = []
        self.executor = Doubler(BlobStore(root / "blobs"))
        self.outbox = Outbox(root / "outbox")
        self.note_failure: Callable[[str, str], None] = lambda run, code: None
        self.consents = Consents(root / "consent")

    def agent(self, link: MemoryLink | None = None, **allowance: Any) -> Agent:
        self.reporter = Reporter(Status("pi", "memory"), self.root, self.doing.append, self.said.append)
        store, limits = BlobStore(self.root / "blobs"), Allowance(**allowance)
        mark = Mark(self.root / "mark")
        return Agent(
            link or MemoryLink(self.server),
            self.executor,
            store,
            self.outbox,
            mark,
            self.reporter,
            limits,
            NoJitter(),
            self.note_failure,
            self.consents.check_since,
            waiting=self.consents.waiting,
        )

    def run(self, until: Until = Until.FINISHED, **allowance: Any) -> None:
        asyncio.run(asyncio.wait_for(self.agent(**allowance).run(until), HANG))


MODEL = {"w": np.arange(1000, dtype=np.float32)}


def train(server: MemoryServer, round: int, value: float = 1.0) -> Task:
    message = Train({"w": MODEL["w"] * np.float32(value)}, TrainingSettings(), cluster="c1")
    return Task("r1", round, 0, 7, f"round {round}", encode(message, server.keep), TERMS)


def trained(server: MemoryServer, index: int) -> list[float]:
    """The first weights of a report, out of what was uploaded."""
    result = server.reports[index].result
    assert isinstance(result, Payload)
    data = server.uploads[result.weights()[0].blob.sha256]
    return np.frombuffer(data, np.float32)[:3].tolist()
