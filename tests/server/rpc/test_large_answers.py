"""What operators are answered about a large fleet: more than a message to a device may have."""

import asyncio
import time
from pathlib import Path

from fedserver.rpc.client import OperatorClient
from fedserver.store.identities.records import DeviceStanding, Registered
from shoal.core.identity.joining import Role
from tests.server.authority.peers import World, play

DEVICES = 20_000


def device(number: int) -> Registered:
    name, now = f"device-{number:06}", time.time()
    labels = {"site": "basel"}
    return Registered(name, Role.TRAIN, labels, DeviceStanding.APPROVED, now, f"{number:064x}", "t")


def test_operators_can_list_a_large_fleet(tmp_path: Path) -> None:
    def listed() -> list[str]:
        with OperatorClient(tmp_path / "s") as client:
            return [each.device for each in client.devices()]

    async def story(world: World) -> None:
        fleet = [device(number) for number in range(DEVICES)]
        for each in fleet:
            world.peers.learn(each)
        assert await asyncio.to_thread(listed) == [each.device for each in fleet]

    play(story, tmp_path / "s")
