"""A newcomer that was given a model gets it, though the server is killed and restarted meanwhile."""

import asyncio
from pathlib import Path

from fedclient.agent.allowance import Allowance
from fedclient.placing.asking import Asker
from fedclient.placing.placement import Placer
from fedclient.store.blobs import BlobStore
from fedserver.coordinator.coordinator import Coordinator
from fedserver.coordinator.device_api import DeviceApi
from shoal.core.exchange.link import Placement, Question
from shoal.core.exchange.parts import Descriptor
from shoal.core.types import RunId
from tests.client.visits import Doubler
from tests.server.servers import SETTINGS, crash, expected, serve_all, start
from tests.server.toys import same_models


class Restarted(DeviceApi):
    """The newcomer's link to a server that is killed, and started again, after its first answer."""

    killed = 0
    state = Path()

    async def place(
        self, run: RunId, descriptor: Descriptor | None, accept_nearest: bool = False
    ) -> Question | Placement:
        answer = await super().place(run, descriptor, accept_nearest)
        if not self.killed:
            self.killed += 1
            await crash(self._coordinator)
            self._coordinator = await Coordinator.open(self.state, SETTINGS)
        return answer


def test_it_asks_once_again(tmp_path: Path) -> None:
    async def play() -> None:
        coordinator = await Coordinator.open(tmp_path / "server", SETTINGS)
        await start(coordinator)
        await serve_all(coordinator)
        link, store = Restarted(coordinator, "newcomer"), BlobStore(tmp_path / "blobs")
        link.state = tmp_path / "server"
        asker = Asker(link, store, lambda text: None, Allowance(1 << 20, give_up_after=1.0))
        found = await Placer(asker, Doubler(store), lambda text: None).place()
        assert link.killed == 1
        assert found.model is not None
        assert same_models({"global": dict(store.load(found.model))}, expected())
        await link._coordinator.close()

    asyncio.run(play())
