"""Predictions without PyTorch: the graph and the model of `fedclient place`, in a process of its own."""

import asyncio
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from fedclient.config import ClientConfig
from fedclient.faults import TaskFailed
from fedclient.light.messages import Open, Predict, Predicted
from fedclient.store.blobs import BlobStore
from fedclient.store.state import GRAPH
from fedclient.work.executor import Executor, Spawned
from fedclient.work.predictions import Mixture, Prediction, check_graph, read_mixture, read_model, write
from fedclient.work.settings import light_config
from shoal.core.errors import BadPayload, NotFound
from shoal.core.exchange.link import Failure, Task
from shoal.core.exchange.messages import Message
from shoal.core.exchange.payload import decode, encode
from shoal.core.inference.graph.model import read_graph
from shoal.core.types import Tensors


def classify(
    settings: ClientConfig, file: Path | None, model: Path, out: Path | None, together: bool = False
) -> Prediction:
    """What the model in `model` says of `file`, or of the file of the settings, written to `out`, too. Its
    graph is beside it. together: with the others of its mixture, if it has some."""
    graph = read_graph_file(model.with_name(GRAPH), model)
    models: Mixture = read_mixture(model) if together else [(1.0, read_model(model))]
    with TemporaryDirectory(prefix="fedclient-predict-") as folder:
        found = asyncio.run(predicted(settings, file, graph, models, Path(folder)))
    if out is not None:
        write(out, found)
    return found


def read_graph_file(path: Path, model: Path) -> Tensors:
    """A model's graph, in the form in which it travels. Raises NotFound, and DataFault if it is damaged."""
    try:
        data = path.read_bytes()
    except OSError:
        raise NotFound(
            f"there is no graph {path}", "set `learner`, or run `fedclient place` on a run with a graph first"
        ) from None
    check_graph(path, data, model)
    return {"graph": np.frombuffer(data, np.uint8)}


async def predicted(
    settings: ClientConfig, file: Path | None, graph: Tensors, models: Mixture, folder: Path
) -> Prediction:
    """What the models say. Classes are named as the settings say, or else as the graph's author did."""
    store = BlobStore(folder / "blobs")
    executor = Spawned(light_config(settings, file, store.folder, folder))
    try:
        await executor.start()
        await asked(executor, store, Open(graph))
        regression = settings.data is not None and settings.data.regression
        shares, tensors = zip(*models, strict=True)
        found = await asked(executor, store, Predict(tensors, shares, regression))
    finally:
        await executor.stop()
    assert isinstance(found, Predicted)
    own = settings.data.classes if settings.data is not None else ()
    return replace(prediction_of(found), names=own or read_graph(graph["graph"].tobytes()).class_names)


async def asked(executor: Executor, store: BlobStore, message: Message) -> Message:
    """The answer of the process to one message of this device. Raises TaskFailed."""
    task = Task("local", 1, 0, 0, message.kind, encode(message, store.keep))
    result = await executor.perform(task)
    if isinstance(result, Failure):
        raise TaskFailed(result)
    return decode(result, {message.reply.kind: message.reply}, store.load)


def prediction_of(found: Predicted) -> Prediction:
    """The same as on a device with PyTorch. Copies what it was given: files go away."""
    outputs = {name: np.array(array) for name, array in found.outputs.items()}
    if (values := outputs.get("values")) is not None:
        ones = np.ones((len(values), 1), np.float32)
        return Prediction(np.zeros(len(values), np.int64), ones, found.accuracy, values)
    if (probabilities := outputs.get("probabilities")) is None:
        raise BadPayload("the process gave no predictions", "update this device")
    return Prediction(probabilities.argmax(axis=1), probabilities, found.accuracy)
