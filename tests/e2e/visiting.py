"""Devices with real agents, in this process, which do the work of a server that is reached over gRPC."""

from pathlib import Path

import numpy as np

from fedclient.agent.agent import Agent, Until
from fedclient.agent.reporter import Reporter
from fedclient.net.rpc import RpcLink
from fedclient.store.blobs import BlobStore
from fedclient.store.state import DeviceFolder, Outbox, Status
from fedclient.work.runtime import Runtime
from shoal.core.data.views import Views
from shoal.core.device_kit.context import DeviceContext
from tests.client.in_process import InProcess
from tests.client.visits import NoJitter
from tests.fleet import data, learner


def context(number: int) -> DeviceContext:
    """The learner and the data of device `number`."""
    return DeviceContext(learner(), Views.of(data(number)), "cpu", 0, np.random.default_rng(number))


async def visit(address: str, root: Path, number: int) -> None:
    """Be device `number`, with its folder in `root`, until no run is left."""
    folder, link = DeviceFolder(root / f"d{number}"), RpcLink(address, f"d{number}")
    store, outbox = BlobStore(folder.blobs), Outbox(folder.outbox)
    reporter = Reporter(Status(f"d{number}", "here"), folder.root, lambda text: None, lambda text: None)
    executor = InProcess(Runtime(context(number), store))
    agent = Agent(link, executor, store, outbox, folder.mark, reporter, chance=NoJitter())
    try:
        await agent.run(Until.FINISHED)
    finally:
        await link.close()
