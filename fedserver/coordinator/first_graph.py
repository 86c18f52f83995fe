"""The graph that came with a run's first weights, from the devices that were asked for them.

With it, a run's models can be exported as ONNX without anybody having thought of it before. Devices without a
learner get only graphs that an operator gave: where no other device made the same one, it may compute
whatever its device wants.
"""

import asyncio
from collections.abc import Collection
from dataclasses import replace
from typing import TYPE_CHECKING

from shoal.core.errors import BadPayload
from shoal.core.exchange.messages import Build, Built
from shoal.core.exchange.payload import Weights
from shoal.core.exchange.tensors import Manifest, check_manifest, manifest_of, own_of
from shoal.core.inference.graph.model import MAX_BYTES, read_graph
from shoal.core.types import DeviceId, Tensors
from shoal.shell import crash

if TYPE_CHECKING:
    from fedserver.coordinator.runs import Run

REASON = 500
"""How many characters of what a device says are logged."""


async def take(run: "Run", round: int, models: Collection[Tensors]) -> None:
    """Before the end of a round is stored that made the first weights: give the run the graph that most
    devices made for a network of this shape, or log why there is none. Repeated after a crash, it does the
    same. models: of the state that the round made."""
    if run.spec.lends_graph or not any(isinstance(task, Build) for task in run.engine.plan.tasks.values()):
        return
    shapes = [own_of(manifest_of(model)) for model in models]
    graphs, untraced = list[tuple[DeviceId, Weights]](), dict[DeviceId, str]()
    for record in await run.storage.call(run.storage.reports.of_round, run.run, round):
        found = record.payload.parts
        if record.payload.kind != Built.kind or record.device not in run.engine.reported:
            continue
        graph, model, why = found.get("graph"), found.get("model"), found.get("untraced")
        if isinstance(graph, Weights) and isinstance(model, Weights):
            if own_of(model.manifest) in shapes:
                graphs.append((record.device, graph))
        elif isinstance(why, str):
            untraced[record.device] = why
    names = [graph.blob.sha256 for _, graph in graphs]
    if graphs:
        await _take(run, *max(graphs, key=lambda each: names.count(each[1].blob.sha256)), shapes[0])
    for device, why in untraced.items() if not graphs else ():
        await run.note(f"there is no graph for ONNX files: {why[:REASON]}", device)


async def _take(run: "Run", device: DeviceId, graph: Weights, shape: Manifest) -> None:
    storage, blob = run.storage, graph.blob
    try:
        if blob.size > MAX_BYTES:
            raise BadPayload(f"it has {blob.size} bytes, and at most {MAX_BYTES} are taken")
        data = await storage.call(storage.blobs.read, graph)
        read = await asyncio.to_thread(read_graph, data["graph"].tobytes())
        check_manifest(shape, read.weights, "the initial model")
    except BadPayload as bad:
        await run.note(f"its graph for ONNX files is not taken: {bad.message[:REASON]}", device)
        return
    spec = replace(run.spec, graph=blob.sha256, graph_bytes=blob.size, graph_by=device)
    await storage.when_space(storage.runs.take_graph, run.run, spec)
    crash.point("server.graph-taken")
    run.spec = spec
    await run.note("its graph came with the first weights: models can be exported as ONNX", device)
