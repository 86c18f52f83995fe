"""A real device process without PyTorch: `python -m tests.crash.device ADDRESS FOLDER NUMBER`."""

import asyncio
import sys
from pathlib import Path

import fedclient.blobs
from fedclient.agent import Agent, Until
from fedclient.blobs import BlobStore
from fedclient.rpc import RpcLink
from fedclient.state import DeviceFolder, Outbox, Status
from fedclient.watcher import Watcher
from tests.client.visits import NoJitter
from tests.crash.lab import PIECE, Toy


async def main(address: str, root: Path, number: int) -> None:
    """Serve until no run needs this device."""
    folder = DeviceFolder(root)
    with folder.locked():
        name = folder.device(f"d{number}")
        store, link = BlobStore(folder.blobs), RpcLink(address, name)
        watcher = Watcher(Status(name, address), root, lambda text: None, lambda text: None)
        toy, outbox = Toy(number, store), Outbox(folder.outbox)
        try:
            agent = Agent(link, toy, store, outbox, folder.mark, watcher, chance=NoJitter())
            await agent.run(Until.FINISHED)
        finally:
            await link.close()


if __name__ == "__main__":
    fedclient.blobs.CHUNK = PIECE  # type: ignore[misc]
    asyncio.run(main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])))
