"""The graph that came with a run's first weights, from the device that was asked for them.

With it, a run's models can be exported as ONNX without anybody having thought of it before. Devices without a
learner get only graphs that an operator gave: one device may have made this one to compute what it wants.
"""

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

from shoal.core.data.scale import RESERVED
from shoal.core.errors import BadPayload
from shoal.core.exchange.messages import Build, Built
from shoal.core.exchange.payload import Weights
from shoal.core.exchange.tensors import check_manifest
from shoal.core.inference.graph.model import MAX_BYTES, read_graph
from shoal.core.types import DeviceId
from shoal.shell import crash

if TYPE_CHECKING:
    from fedserver.coordinator.runs import Run

REASON = 500
"""How many characters of what a device says are logged."""


async def take(run: "Run", round: int) -> None:
    """Before the end of a round is stored that made the first weights: give the run their graph, or log why
    there is none. Repeated after a crash, it does the same."""
    if run.spec.lends_graph or not any(isinstance(task, Build) for task in run.engine.plan.tasks.values()):
        return
    for record in await run.storage.call(run.storage.reports.of_round, run.run, round):
        found = record.payload.parts
        if record.payload.kind != Built.kind or record.device not in run.engine.reported:
            continue
        graph, model = found.get("graph"), found.get("model")
        if isinstance(graph, Weights) and isinstance(model, Weights):
            await _take(run, record.device, graph, model)
        elif isinstance(why := found.get("untraced"), str):
            await run.note(f"there is no graph for ONNX files: {why[:REASON]}", record.device)


async def _take(run: "Run", device: DeviceId, graph: Weights, model: Weights) -> None:
    storage, blob = run.storage, graph.blob
    try:
        if blob.size > MAX_BYTES:
            raise BadPayload(f"it has {blob.size} bytes, and at most {MAX_BYTES} are taken")
        data = await storage.call(storage.blobs.read, graph)
        read = await asyncio.to_thread(read_graph, data["graph"].tobytes())
        own = tuple(spec for spec in model.manifest if spec.name not in RESERVED)
        check_manifest(own, read.weights, "the initial model")
    except BadPayload as bad:
        await run.note(f"its graph for ONNX files is not taken: {bad.message[:REASON]}", device)
        return
    spec = replace(run.spec, graph=blob.sha256, graph_bytes=blob.size, graph_by=device)
    await storage.when_space(storage.runs.take_graph, run.run, spec)
    crash.point("server.graph-taken")
    run.spec = spec
    await run.note("its graph came with the first weights: models can be exported as ONNX", device)
