"""A device of the world: the real agent, with a training process that is quick and can be computed again."""

import asyncio
import hashlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random

import numpy as np

from fedclient.agent.agent import Agent, Until
from fedclient.agent.allowance import Allowance
from fedclient.agent.reporter import Reporter
from fedclient.net.rpc import RpcLink
from fedclient.store.blobs import BlobStore
from fedclient.store.memory import Memory
from fedclient.store.state import DeviceFolder, Outbox, Status
from fedclient.work.pipes import WorkerInfo
from shoal.core.algorithms.flux.messages import TrainMixture
from shoal.core.device_kit import summing
from shoal.core.errors import ShoalError
from shoal.core.exchange.link import Failure, Idle, Task
from shoal.core.exchange.messages import (
    STANDARD,
    Build,
    Built,
    Describe,
    Described,
    Evaluate,
    Evaluated,
    Message,
    Summarize,
    Summarized,
    Train,
    Trained,
)
from shoal.core.exchange.parts import Descriptor, LatentBounds, Moments
from shoal.core.exchange.payload import Payload, decode, encode
from shoal.core.exchange.summing import SECURE
from shoal.core.exchange.tensors import digest
from shoal.core.exchange.wire import work_key
from shoal.core.privacy.accountant import MaskedUpdate
from shoal.core.privacy.noise.chance import Entropy
from shoal.core.privacy.secure.cohort import Unsigned
from shoal.core.types import DeviceId, Tensors

MESSAGES = {message.kind: message for message in (*STANDARD, *SECURE, TrainMixture)}
LATENTS = 6
KEPT = 1 << 20
"""Bytes of models and results that a device keeps."""

Performed = Callable[[DeviceId, Task, Message, Payload, Message], None]
"""Called with each result: the device, the task and its message, the result and its message."""


def model_of(values: int) -> Tensors:
    return {"w": np.linspace(-1.0, 1.0, values, dtype=np.float32), "steps": np.array(0, np.int64)}


def answer(number: int, message: Message, seed: int, salt: int, values: int) -> Message:
    """What device `number` answers: it follows only from the arguments. Even and odd numbers differ."""
    chance = np.random.default_rng((number, seed, salt))
    if isinstance(message, Build):
        return Built(model_of(values))
    if isinstance(message, Evaluate):
        bounds = LatentBounds(np.array([-100.0]), np.array([100.0])) if message.bounds else None
        accuracy, loss = float(chance.random()), float(chance.random())
        return Evaluated(accuracy, loss, 5, bounds, LATENTS if bounds else 0)
    if isinstance(message, Describe):
        return Described(_descriptor(number, message.projector, message.classes), 10 + number)
    if isinstance(message, Summarize):
        return Summarized((float(number), 1.0), (1.0, 0.0))
    assert isinstance(message, Train), message
    model = {
        name: (array + chance.normal(size=array.shape)).astype(array.dtype)
        for name, array in message.model.items()
    }
    descriptor = _descriptor(number, message.projector, message.classes) if message.projector else None
    return Trained(model, 10 + number, float(chance.random()), descriptor)


class Context:
    """What a device half of secure aggregation is given, without data and PyTorch."""

    signer = Unsigned()

    def __init__(self, memory: Tensors | None, secret: Entropy) -> None:
        self.memory, self.secret = memory, secret
        self.remembered: Tensors | None = None

    def remember(self, tensors: Tensors) -> None:
        self.remembered = tensors

    def version(self) -> str:
        return ""

    def summed(self, update: MaskedUpdate) -> None:
        pass


def summed(number: int, message: Message, seed: int, salt: int, values: int, context: Context) -> Message:
    """What device `number` answers in an exchange of secure aggregation. The answers follow from the keys,
    which are others each time; their sum follows from the arguments."""

    def train(task: Train, _: object) -> Trained:
        found = answer(number, task, seed, salt, values)
        assert isinstance(found, Trained)
        return found

    return summing.perform(message, context, train)  # type: ignore[arg-type]


def _descriptor(number: int, projector: Tensors, classes: int) -> Descriptor:
    dims = projector["components"].shape[0]
    chance, groups = np.random.default_rng((number, 7)), np.arange(classes + 1)[:, None] * (number % 2)
    means = 10.0 * groups + chance.normal(scale=0.01, size=(classes + 1, dims))
    counts = np.array([30.0 * classes, *[30.0] * classes])
    return Descriptor(Moments(means, np.ones_like(means), counts), digest(projector))


class Worker:
    """Instead of the training process. salt: makes every performance another; 0 for none."""

    def __init__(
        self,
        number: int,
        store: BlobStore,
        chance: Random,
        performed: Performed,
        *,
        seconds: float,
        failing: Callable[[], float],
        fresh: bool,
        values: int,
    ) -> None:
        self._number, self._store, self._chance, self._performed = number, store, chance, performed
        self._memory = Memory.beside(store.folder)
        self._seconds, self._failing, self._fresh, self._values = seconds, failing, fresh, values

    async def start(self) -> WorkerInfo:
        return WorkerInfo(1, True, "cpu")

    async def stop(self) -> None:
        pass

    async def perform(self, task: Task) -> Payload | Failure:
        await asyncio.sleep(self._chance.random() * self._seconds)
        if self._chance.random() < self._failing():
            return Failure("learner-failed", "the author's code failed", "Traceback: ...")
        try:
            message = decode(task.payload, MESSAGES, self._store.load)
            salt = self._chance.getrandbits(32) if self._fresh else 0
            reply = self._reply(task, message, salt)
            payload = encode(reply, self._store.keep)
        except ShoalError as error:
            return Failure(error.code, str(error))
        self._performed(f"d{self._number}", task, message, payload, reply)
        return payload

    def _reply(self, task: Task, message: Message, salt: int) -> Message:
        if not isinstance(message, SECURE):
            return answer(self._number, message, task.seed, salt, self._values)
        work = work_key(task)
        context = Context(self._memory.before(task.run, work), self._chance.randbytes)
        reply = summed(self._number, message, task.seed, salt, self._values, context)
        if context.remembered is not None:
            self._memory.propose(task.run, work, context.remembered)
        return reply


class LargeLink(RpcLink):
    """As if models were large: they are fetched and uploaded."""

    async def next_task(self, wait: float) -> Task | Idle:
        found = await super().next_task(wait)
        return found if isinstance(found, Idle) else replace(found, inline=(), inline_report=0)


async def serve(
    root: Path,
    number: int,
    chance: Random,
    make: Callable[[BlobStore], Worker],
    says: Callable[[str], None],
    inline: bool,
) -> None:
    """Be a device, as `fedclient run` is one, until canceled."""
    folder = DeviceFolder(root)
    with folder.locked():
        name = folder.device(f"d{number}")
        store, outbox, mark = BlobStore(folder.blobs), Outbox(folder.outbox), folder.mark
        reporter = Reporter(Status(name, "server"), folder.root, lambda text: None, says)
        link = (RpcLink if inline else LargeLink)("server:50051", name)
        try:
            allowance = Allowance(kept_bytes=KEPT)
            agent = Agent(link, make(store), store, outbox, mark, reporter, allowance, chance)
            await agent.run(Until.STOPPED)
        finally:
            await link.close()


def base_of(message: Message) -> str:
    """Which models a task is about: what a result of it was made from."""
    models = [getattr(message, "model", None), getattr(message, "encoder", None)]
    return hashlib.sha256("".join(digest(model) for model in models if model).encode()).hexdigest()
