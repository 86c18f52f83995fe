"""From a join string to a certificate, over real TLS: what admits a device, and what does not."""

import asyncio
from pathlib import Path

from fedcore.identity.enrolled import Enrolled
from fedcore.link import Hello
from tests.server.authority.peers import world


def test_a_device_joins_and_says_hello(tmp_path: Path) -> None:
    async def play() -> None:
        async with world(tmp_path / "s") as found:
            device = await found.device("d0")
            assert isinstance(device.enrolled, Enrolled)
            async with device.channel() as channel:
                welcome = await device.link(channel).hello(Hello("toy"))
            assert welcome.renew_in is not None
            assert "d0" in found.coordinator.visitors

    asyncio.run(play())
