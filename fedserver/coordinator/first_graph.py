"""The graph that came with a run's first weights, from the devices that were asked for them.

With it, a run's models can be exported as ONNX without anybody having thought of it before. Devices without a
learner get only graphs that an operator gave: where no other device made the same one, it may compute
whatever its device wants.
"""

import asyncio
from collections.abc import Collection
from dataclasses import replace

from fedserver.store.records import RunSpec
from fedserver.store.store import Storage
from shoal.core.errors import BadPayload
from shoal.core.exchange.messages import Built
from shoal.core.exchange.payload import Weights
from shoal.core.exchange.tensors import Manifest, check_manifest, manifest_of, own_of
from shoal.core.inference.graph.model import MAX_BYTES, read_graph
from shoal.core.types import DeviceId, Tensors
from shoal.shell import crash

REASON = 500
"""How many characters of what a device says are logged."""


Said = list[tuple[str, DeviceId]]
"""Lines for the run's log, and whose they are; "" for no device."""


async def take(
    storage: Storage, spec: RunSpec, round: int, reported: Collection[DeviceId], models: Collection[Tensors]
) -> tuple[RunSpec, Said]:
    """Before the end of a round is stored that made the first weights: the run with the graph that most
    devices made for a network of this shape, which is stored, and what to log, as why there is none. Repeated
    after a crash, it does the same. models: of the state that the round made."""
    shapes = [own_of(manifest_of(model)) for model in models]
    graphs, untraced = list[tuple[DeviceId, Weights]](), Said()
    for record in await storage.call(storage.reports.of_round, spec.name, round):
        found = record.payload.parts
        if record.payload.kind != Built.kind or record.device not in reported:
            continue
        graph, model, why = found.get("graph"), found.get("model"), found.get("untraced")
        if isinstance(graph, Weights) and isinstance(model, Weights):
            if own_of(model.manifest) in shapes:
                graphs.append((record.device, graph))
        elif isinstance(why, str):
            untraced.append((f"there is no graph for ONNX files: {why[:REASON]}", record.device))
    if not graphs:
        return spec, untraced
    names = [graph.blob.sha256 for _, graph in graphs]
    device, graph = max(graphs, key=lambda each: names.count(each[1].blob.sha256))
    try:
        await _check(storage, graph, shapes[0])
    except BadPayload as bad:
        return spec, [(f"its graph for ONNX files is not taken: {bad.message[:REASON]}", device)]
    spec = replace(spec, graph=graph.blob.sha256, graph_bytes=graph.blob.size, graph_by=device)
    await storage.when_space(storage.runs.take_graph, spec.name, spec)
    crash.point("server.graph-taken")
    return spec, [("its graph came with the first weights: models can be exported as ONNX", device)]


async def _check(storage: Storage, graph: Weights, shape: Manifest) -> None:
    """Raises BadPayload for a graph that is not one of this network."""
    if graph.blob.size > MAX_BYTES:
        raise BadPayload(f"it has {graph.blob.size} bytes, and at most {MAX_BYTES} are taken")
    data = await storage.call(storage.blobs.read, graph)
    read = await asyncio.to_thread(read_graph, data["graph"].tobytes())
    check_manifest(shape, read.weights, "the initial model")
