"""A real device process without PyTorch: `python -m tests.crash.device ADDRESS FOLDER NUMBER`."""

import asyncio
import sys
from pathlib import Path

import fedclient.store.blobs
from fedclient.agent.agent import Agent, Until
from fedclient.agent.reporter import Reporter
from fedclient.store.blobs import BlobStore
from fedclient.store.state import DeviceFolder, Outbox, Status
from tests.client.visits import NoJitter
from tests.crash.lab import PIECE, Toy
from tests.histories.devices import LargeLink


async def main(address: str, root: Path, number: int) -> None:
    """Serve until no run needs this device. Models travel by themselves, in chunks that can be cut."""
    folder = DeviceFolder(root)
    with folder.locked():
        name = folder.device(f"d{number}")
        store, link = BlobStore(folder.blobs), LargeLink(address, name)
        reporter = Reporter(Status(name, address), root, lambda text: None, lambda text: None)
        toy, outbox = Toy(number, store), Outbox(folder.outbox)
        try:
            agent = Agent(link, toy, store, outbox, folder.mark, reporter, chance=NoJitter())
            await agent.run(Until.FINISHED)
        finally:
            await link.close()


if __name__ == "__main__":
    fedclient.store.blobs.CHUNK = PIECE  # type: ignore[misc]
    asyncio.run(main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])))
