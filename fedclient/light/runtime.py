"""What a device's process can do without PyTorch: look at data with models that it was given.

The counterpart of `fedclient/work/runtime.py`, behind the same worker and executor.
"""

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from fedclient.config import WorkConfig
from fedclient.light.messages import Open, Opened, Predict, Predicted
from fedclient.light.session import OnnxNetwork, open_encoder, runtime
from fedclient.light.trial import TRIAL, limit_memory, try_runtime
from fedclient.store.blobs import BlobStore
from fedclient.work.data import columns_named, open_views, shown
from fedclient.work.failures import failure_of
from fedclient.work.pipes import WorkerInfo
from fedclient.work.settings import ledger_of
from shoal.core.errors import BadPayload
from shoal.core.exchange.link import Failure, Task
from shoal.core.exchange.messages import Message
from shoal.core.exchange.payload import Payload, decode, encode
from shoal.core.inference import newcomer
from shoal.core.inference.context import ALL, InferenceContext
from shoal.core.inference.graph.model import LATENT, read_graph
from shoal.core.inference.network import predicted
from shoal.core.privacy.report import left_open

KINDS: tuple[type[Message], ...] = (Open, Predict, *newcomer.QUESTIONS)
NO_GRAPH = "this device has no learner, and the run gives no graph to use instead"


class LightRuntime:
    """The data of one device, and the graph that it was given last."""

    def __init__(self, config: WorkConfig) -> None:
        """Load the data and try the runtime. Raises ConfigError, DataFault or DeviceFault."""
        limit_memory(config.memory_bytes)
        try_runtime()
        self._config, self._store = config, BlobStore(config.blobs)
        self._views = open_views(config)
        self._noise = np.random.default_rng()
        self._account = ledger_of(config)
        self._context: InferenceContext | None = None
        examples = len(self._views.train) + len(self._views.held_out)
        findings = self._findings() if config.selfcheck == "full" else {}
        self.info = WorkerInfo(examples, self._views.train.y is not None, "cpu", findings)

    def perform(self, task: Task) -> Payload | Failure:
        """The answer to a task. Never raises: every error becomes a Failure."""
        try:
            return self._perform(task)
        except MemoryError as error:
            most = self._config.memory_bytes
            needs = f"the graph needs more than the {most} bytes of memory that limits.memory_bytes allows"
            return replace(failure_of(error), message=needs)
        except Exception as error:
            return failure_of(error)

    def _perform(self, task: Task) -> Payload:
        kinds: dict[str, type[Message]] = {each.kind: each for each in KINDS}
        if task.payload.kind not in kinds:
            raise BadPayload(
                f"a device without a learner cannot answer {task.payload.kind!r}",
                "install PyTorch and set `learner`, or ask a run whose newcomers choose by its own models",
            )
        asked = decode(task.payload, kinds, self._store.load)
        with columns_named(self._config.file, self._config.data):
            answer = self._answer(asked, task.run)
        return encode(answer, self._store.keep)

    def _answer(self, asked: Message, run: str) -> Message:
        if isinstance(asked, Open):
            return self._open(asked)
        if self._context is None:
            raise BadPayload(NO_GRAPH, "set `learner`, or ask a run that was started with --graph")
        if isinstance(asked, Predict):
            models = list(zip(asked.shares, asked.models, strict=True))
            said, accuracy = predicted(self._context.network, models, self._views.train, asked.regression)
            return Predicted({"said": said}, accuracy)
        self._context.account = account = self._account.of(run)
        account.check_not_refused()
        for what in left_open(asked):
            self._context.unprotected(what)
        return newcomer.perform(asked, self._context)

    def _open(self, asked: Open) -> Opened:
        found = asked.graph.get("graph")
        if found is None or found.dtype != np.uint8:
            raise BadPayload("the run's graph is no file", "tell the run's operator")
        network = OnnxNetwork(read_graph(found.tobytes()), self._config.compute.threads)
        self._context = InferenceContext(network, self._views, self._noise, self._account)
        self._context.open_encoder = partial(open_encoder, threads=self._config.compute.threads)
        return Opened(network.name, LATENT in network.graph.outputs)

    def _findings(self) -> dict[str, Any]:
        """What `fedclient check` shows, as far as it is known without a model."""
        network = OnnxNetwork(read_graph(TRIAL), 1)
        x = InferenceContext(network, self._views, self._noise).inputs(ALL[:1])
        return {**shown(self._views, x), "runtime": f"ONNX Runtime {runtime().__version__}"}
