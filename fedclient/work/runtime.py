"""Where a device's work is done: learner, data and network, loaded once, and one task after the other.

This is the part of the client that needs PyTorch. It runs in a process of its own (`worker.py`).
"""

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedclient.config import ComputeConfig, DataConfig, LearnerConfig, WorkConfig
from fedclient.faults import NoAlgorithm
from fedclient.identity.keyring import Keyring
from fedclient.light.session import open_encoder
from fedclient.store.blobs import BlobStore
from fedclient.store.ledger import Ledger
from fedclient.store.memory import Memory
from fedclient.store.trained import Trained
from fedclient.work import selfcheck
from fedclient.work.data import columns_named, open_views
from fedclient.work.failures import failure_of
from fedclient.work.pipes import WorkerInfo
from fedclient.work.settings import ledger_of
from shoal.core import algorithm
from shoal.core.algorithm import DeviceHalf
from shoal.core.data.arrays import network_input
from shoal.core.device_kit import standard, tracing, tuning
from shoal.core.device_kit.context import DeviceContext
from shoal.core.device_kit.learner import Learner, builtin, gpu_is_full
from shoal.core.device_kit.training.whole_run import whole_run
from shoal.core.errors import BadPayload, ConfigError, DiskFull, LearnerFault, Missing, near
from shoal.core.exchange import messages
from shoal.core.exchange.choosing.tuning import Tune
from shoal.core.exchange.encoding.messages import ENCODED
from shoal.core.exchange.link import Failure, Task
from shoal.core.exchange.messages import Build, Built, Message
from shoal.core.exchange.payload import Payload, decode, encode
from shoal.core.exchange.summing import SECURE
from shoal.core.exchange.wire import work_key
from shoal.core.identity.signing import Certified
from shoal.core.inference import newcomer
from shoal.core.privacy.asks import RunTerms, WholeRun, read_terms
from shoal.core.privacy.report import OPEN, left_open
from shoal.core.privacy.secure.cohort import Signer
from shoal.core.server_kit.history.figures import trains
from shoal.core.types import RunId, Tensors
from shoal.shell import learners
from shoal.shell.disk import check_room

RUNS = 16
"""The runs of which it is known what they cost in all: a process lives for months, and sees many."""
NO_FINDINGS: Mapping[str, Any] = {}


@dataclass(frozen=True)
class _Done:
    """A task that was performed, and what came of it. work: its key. series: of its run, if it was to train;
    else ""."""

    work: str
    reply: Message
    remembered: Tensors | None
    series: str


class Runtime:
    """One device's context, and the algorithms that may use it."""

    def __init__(
        self,
        context: DeviceContext,
        store: BlobStore,
        findings: Mapping[str, Any] = NO_FINDINGS,
        config: WorkConfig | None = None,
    ) -> None:
        self._file, self._data = (config.file, config.data) if config else (None, None)
        self._identity = config.identity if config else None
        self._context, self._store, self._memory = context, store, Memory.beside(store.folder)
        self._trained = Trained.beside(store.folder)
        self._halves, self._newcomer = halves(), config is not None and config.newcomer
        self._wholes: dict[RunId, tuple[str, WholeRun]] = {}
        self._unstored: _Done | None = None
        if self._newcomer:
            # What the learner can answer, too, is left to it.
            self._halves = {each.kind: (each, newcomer) for each in newcomer.QUESTIONS} | self._halves
            self._halves[Tune.kind] = (Tune, tuning)
        views = context.views
        examples = len(views.train) + len(views.held_out)
        self.info = WorkerInfo(examples, views.train.y is not None, context.device.type, findings)

    @classmethod
    def open(cls, config: WorkConfig) -> "Runtime":
        """Load everything, and run the self-check that the settings ask for.

        Raises ConfigError, DataFault, DeviceFault or LearnerFault, by what is at fault.
        """
        assert config.learner is not None  # otherwise `fedclient/light/runtime.py` does the work
        settle_torch(config.compute)
        learner, views = open_learner(config.learner), open_views(config)
        # Privacy noise is seeded by the operating system: anyone who knew the seed could subtract the noise.
        noise, device = np.random.default_rng(), config.compute.device
        context = DeviceContext(learner, views, device, 0, noise, account=ledger_of(config))
        context.open_encoder = partial(open_encoder, threads=config.compute.threads)
        findings: Mapping[str, Any] = NO_FINDINGS
        with columns_named(config.file, config.data, config.learner):
            if config.selfcheck == "quick":
                selfcheck.quick(context, config.learner.where)
            elif config.selfcheck == "full":
                findings = selfcheck.full(context, config.learner.where)
        return cls(context, BlobStore(config.blobs), findings, config)

    def perform(self, task: Task) -> Payload | Failure:
        """The answer to a task. Never raises: every error becomes a Failure."""
        try:
            return self._perform(task)
        except torch.cuda.OutOfMemoryError:  # outside of the author's code, as where weights are loaded
            return failure_of(gpu_is_full("this task"))
        except Exception as error:
            return failure_of(error)

    def _perform(self, task: Task) -> Payload:
        """What does not fit on the disk is kept: when the task is repeated, it is only stored. It may have
        been paid for, and would be paid again if it was made again."""
        done, self._unstored = self._unstored, None
        if done is None or done.work != work_key(task):
            done = self._done(task)
        try:
            return self._stored(task.run, done)
        except DiskFull:
            self._unstored = done
            raise

    def _stored(self, run: RunId, done: _Done) -> Payload:
        if isinstance(self._context.account, Ledger):
            self._context.account.unsettled.settle()
        if done.series:
            self._trained.note(done.series, run, self._context.version())
        answer = encode(done.reply, self._store.keep)
        if done.remembered is not None:
            self._memory.propose(run, done.work, done.remembered)
        return answer

    def _done(self, task: Task) -> _Done:
        kind, terms = task.payload.kind, read_terms(task.terms) if task.terms else None
        self._check_installed(kind, terms)
        cls, half = self._halves[kind]
        message, work = decode(task.payload, {kind: cls}, self._store.load), work_key(task)
        context = self._context.for_task(task.seed, self._memory.before(task.run, work), message)
        if isinstance(context.account, Ledger):
            context.account = context.account.of(task.run)
            if not isinstance(message, Build):  # initial weights have nothing of the data in them
                context.account.check_not_refused()
                if terms is not None and not self._newcomer:  # which takes part in no round
                    if terms.series and context.account.tells(OPEN["changes"], context.version()):
                        self._trained.check(terms.series, task.run, context.version())
                    self._agree(task, terms, context, context.account)
        if isinstance(message, SECURE) and self._identity is not None:
            context.signer = signer_of(self._identity)
        for what in left_open(message):
            context.unprotected(what)
        if getattr(message, "private", None) is not None:  # it is going to be paid: is there room for it?
            check_room(self._store.folder, sum(each.blob.size for each in task.payload.weights()))
        with columns_named(self._file, self._data):
            reply = half.perform(message, context)
        if isinstance(reply, Built) and self._data is not None:
            reply = with_graph(reply, context, self._data)
        series = terms.series if terms is not None and trains(message) else ""
        return _Done(work, reply, context.remembered, series)

    def _check_installed(self, kind: str, terms: RunTerms | None) -> None:
        """Before any task: can this device do it, and all that its run will ask for? A newcomer is only asked
        this. Raises NoAlgorithm; BadPayload where no one has said whose task it is."""
        own = terms.tasks if terms is not None else ()
        asked = dict.fromkeys([kind, *(() if self._newcomer else own)])
        missing = [each for each in asked if each not in self._halves]
        if kind in missing and kind not in own:
            raise BadPayload(
                f"no algorithm on this device can do a {kind!r} task",
                f"{near(kind, list(self._halves))}; install the run's algorithm on this device",
            )
        if terms is not None and missing:
            raise NoAlgorithm(terms.algorithm, terms.package, missing)

    def _agree(self, task: Task, terms: RunTerms, context: DeviceContext, account: Ledger) -> None:
        """Before a task that is about the data: does the owner allow all of its run, and is there room?"""
        text, whole = self._wholes.get(task.run, ("", None))
        if whole is None or text != task.terms:
            whole = whole_run(terms, context)
            self._wholes = {**dict(list(self._wholes.items())[1 - RUNS :]), task.run: (task.terms, whole)}
        account.agree(whole, context.version())


def halves() -> dict[str, tuple[type[Message], DeviceHalf]]:
    """The message type and the device half for each kind of task, over all installed algorithms.

    All algorithms share the standard tasks. Raises ConfigError if two algorithms claim the same kind.
    """
    found: dict[str, tuple[type[Message], DeviceHalf]] = {
        message.kind: (message, standard)
        for message in (*messages.STANDARD, *SECURE, *ENCODED)
        if hasattr(message, "reply")
    }
    for card in algorithm.discover().values():
        for message in card.messages:
            if found.get(message.kind, (message, None))[0] is not message:
                raise ConfigError(
                    f"algorithm {card.name} claims the task {message.kind!r}, which another algorithm has",
                    "uninstall one of the two",
                )
            if hasattr(message, "reply"):
                found[message.kind] = (message, card.device())
    return found


def with_graph(built: Built, context: DeviceContext, data: DataConfig) -> Built:
    """First weights with the network as a graph, or why there is none: the run goes on without it. Also with
    the learner's frozen encoder, where it has one that can be traced: all devices can embed by that."""
    x = torch.from_numpy(network_input(context.views.train.x[:2]))
    with suppress(LearnerFault, Missing):
        encoder = tracing.encoder(context.learner, x)
        built = replace(built, encoder={"graph": np.frombuffer(encoder.data, np.uint8)}) if encoder else built
    try:
        graph = tracing.export(
            context.learner,
            x,
            tracing.noted(data.divide_by, data.columns, data.classes),
            older_only=True,
        )
    except (LearnerFault, Missing) as fault:
        return replace(built, untraced=str(fault))
    return replace(built, graph={"graph": np.frombuffer(graph.data, np.uint8)})


def open_learner(config: LearnerConfig) -> Learner:
    """The author's learner, or a built-in one."""
    if config.file is not None:
        return learners.from_file(config.file)
    if config.module is not None:
        return learners.from_module(config.module)
    assert config.builtin is not None  # the settings were checked
    return builtin(config.builtin, config.options)


def signer_of(folder: Path) -> Signer:
    """What signs for the device whose identity is in `folder`. It is read for each task, since it may have
    changed, and the server's certificate with it. Raises ConfigError, StorageFault."""
    own = Keyring(folder).identity()
    if own is None:
        raise ConfigError(f"{folder} has no identity any more", "join again, with: fedclient join")
    return Certified(own.key, own.certificate, own.authority)


def settle_torch(compute: ComputeConfig) -> None:
    """Set the number of threads, and on a GPU choose operations that give the same bits every time."""
    torch.set_num_threads(compute.threads)
    if compute.device != "cpu" and torch.cuda.is_available():
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True, warn_only=True)
