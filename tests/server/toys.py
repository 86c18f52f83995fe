"""Devices without data: they answer by the rules below, so that a run's models are known exactly."""

import hashlib
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import replace
from typing import Self

import numpy as np

from shoal.core.exchange.link import Hello, Idle, Link, Outcome, Receipt, Report, Task
from shoal.core.exchange.messages import (
    STANDARD,
    Build,
    Built,
    Evaluate,
    Evaluated,
    Message,
    Summarize,
    Summarized,
    Train,
    Trained,
)
from shoal.core.exchange.payload import BlobRef, Payload, Weights, decode, encode
from shoal.core.exchange.tensors import manifest_of, pack, unpack
from shoal.core.types import DeviceId, Tensors

MESSAGES = {message.kind: message for message in STANDARD}
MODEL: Tensors = {
    "layer.weight": np.linspace(-1.0, 1.0, 12, dtype=np.float32).reshape(3, 4),
    "layer.bias": np.zeros(3, np.float32),
    "steps": np.array(0, np.int64),
}
Answer = Callable[[Message, int], Message]


def honest(number: int) -> Answer:
    """The device with that number: its answers follow from its number, the task and the seed."""

    def answer(message: Message, seed: int) -> Message:
        chance = np.random.default_rng((number, seed))
        if isinstance(message, Train):
            model = {
                name: (array + chance.normal(size=array.shape)).astype(array.dtype)
                for name, array in message.model.items()
            }
            return Trained(model, examples=10 + number, loss=float(chance.random()))
        if isinstance(message, Evaluate):
            return Evaluated(accuracy=float(chance.random()), loss=float(chance.random()), examples=5)
        if isinstance(message, Build):
            return Built(MODEL)
        if isinstance(message, Summarize):
            return Summarized((float(number), 1.0), (1.0, 0.0))
        raise AssertionError(f"a {message.kind} task")

    return answer


def fleet(count: int) -> dict[DeviceId, Answer]:
    return {f"d{number}": honest(number) for number in range(count)}


class Hands:
    """What a device does on its link, step by step. blobs: what it has fetched, or wants to send."""

    def __init__(self, link: Link) -> None:
        self.link = link
        self.blobs: dict[str, bytes] = {}

    async def hello(self) -> Self:
        await self.link.hello(Hello("toy"))
        return self

    async def join(self) -> None:
        """Enter the active runs. If there is a task already, it is given again."""
        found = await self.link.next_task(0.0)
        if isinstance(found, Task):
            self._taken(found)

    async def task(self, wait: float = 5.0) -> Task:
        """The next task, however long it takes to come. wait: seconds that one call waits for it."""
        while not isinstance(found := await self.link.next_task(wait), Task):
            assert not found.finished, found
        return self._taken(found)

    async def open(self, task: Task) -> Message:
        """The message of a task. Tensors that did not come with it are fetched."""
        for weights in self._taken(task).payload.weights():
            if weights.blob.sha256 not in self.blobs:
                await self.fetch(weights)
        return decode(task.payload, MESSAGES, self._load)

    async def fetch(self, weights: Weights) -> None:
        pieces = [piece async for piece in self.link.fetch(weights.blob, 0)]
        self.blobs[weights.blob.sha256] = b"".join(pieces)
        assert hashlib.sha256(self.blobs[weights.blob.sha256]).hexdigest() == weights.blob.sha256

    def _taken(self, task: Task) -> Task:
        """The task, after what it carries was put to the blobs."""
        self.blobs |= {name: bytes(data) for name, data in task.payload.blobs_in(task.inline).items()}
        return replace(task, inline=())

    def payload(self, message: Message) -> Payload:
        return encode(message, self.keep)

    def keep(self, tensors: Tensors) -> Weights:
        data = b"".join(pack(tensors))
        name = hashlib.sha256(data).hexdigest()
        self.blobs[name] = data
        return Weights(manifest_of(tensors), BlobRef(name, len(data)))

    async def upload(self, payload: Payload) -> None:
        for weights in payload.weights():
            held = await self.link.uploaded(weights.blob)
            if held < weights.blob.size:
                data = self.blobs[weights.blob.sha256][held:]
                assert await self.link.upload(weights.blob, held, pieces_of(data)) == weights.blob.size

    async def send(self, task: Task, payload: Payload) -> Receipt:
        await self.upload(payload)
        return await self.link.report(Report(task.run, task.round, task.attempt, payload))

    async def do(self, task: Task, answer: Answer) -> Receipt:
        return await self.send(task, self.payload(answer(await self.open(task), task.seed)))

    def _load(self, weights: Weights) -> Tensors:
        return unpack(weights.manifest, memoryview(self.blobs[weights.blob.sha256]))


async def pieces_of(data: bytes, size: int = 64) -> AsyncIterator[bytes]:
    for start in range(0, len(data), size):
        yield data[start : start + size]


async def serve(link: Link, answer: Answer) -> None:
    """Be a device until no run is left."""
    hands = await Hands(link).hello()
    while True:
        work = await link.next_task(5.0)
        if isinstance(work, Task):
            receipt = await hands.do(work, answer)
            assert receipt.outcome is Outcome.ACCEPTED, receipt
        elif isinstance(work, Idle) and work.finished:
            return


def same_models(first: Mapping[str, Tensors], second: Mapping[str, Tensors]) -> bool:
    """Bit by bit, in the same order."""
    return [
        (key, name, array.tobytes()) for key, model in first.items() for name, array in model.items()
    ] == [(key, name, array.tobytes()) for key, model in second.items() for name, array in model.items()]
