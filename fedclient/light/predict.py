"""Predictions without PyTorch: the graph and the model of `fedclient place`, in a process of its own."""

from dataclasses import replace
from pathlib import Path

import numpy as np

from fedclient.config import ClientConfig
from fedclient.light.messages import Open, Predict, Predicted
from fedclient.store.blobs import BlobStore
from fedclient.work.executor import Executor, Spawned, performed, stopped_after
from fedclient.work.predictions import Mixture, Prediction, graph_beside
from fedclient.work.settings import light_config
from shoal.core.exchange.link import Task
from shoal.core.exchange.messages import Message
from shoal.core.exchange.payload import decode, encode
from shoal.core.inference.graph.model import read_graph
from shoal.core.types import Tensors


def read_graph_file(path: Path, model: Path) -> Tensors:
    """A model's graph, in the form in which it travels. Raises NotFound, and DataFault if it is damaged."""
    return {"graph": np.frombuffer(graph_beside(path, model), np.uint8)}


async def predicted(
    settings: ClientConfig, file: Path | None, graph: Tensors, models: Mixture, folder: Path
) -> Prediction:
    """What the models say. Classes are named as the settings say, or else as the graph's author did."""
    store = BlobStore(folder / "blobs")
    executor = Spawned(light_config(settings, file, store.folder, folder))
    async with stopped_after(executor):
        await executor.start()
        await asked(executor, store, Open(graph))
        regression = settings.data is not None and settings.data.regression
        shares, tensors = zip(*models, strict=True)
        found = await asked(executor, store, Predict(tensors, shares, regression))
    assert isinstance(found, Predicted)
    own = settings.data.classes if settings.data is not None else ()
    said = np.array(found.outputs["said"])  # a copy: the file behind it goes away
    names = own or read_graph(graph["graph"].tobytes()).class_names
    return replace(Prediction.of(said, found.accuracy, regression), names=names)


async def asked(executor: Executor, store: BlobStore, message: Message) -> Message:
    """The answer of the process to one message of this device. Raises TaskFailed."""
    task = Task("local", 1, 0, 0, message.kind, encode(message, store.keep))
    return decode(await performed(executor, task), {message.reply.kind: message.reply}, store.load)
