"""A server that stands by sends every device on, however many call, and whatever else they do there."""

import asyncio
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from grpc import aio
from grpc_health.v1 import health_pb2
from grpc_health.v1.health_pb2_grpc import HealthStub

from fedserver.ha.standby import stand_by
from fedserver.rpc.admission import connections
from fedserver.rpc.server import OPERATOR_CALLS
from shoal.core.exchange import wire
from shoal.core.exchange._pb.fed.v1.device_service_pb2_grpc import DeviceServiceStub
from shoal.core.exchange.link import Hello
from tests.server.authority.peers import OWN, refused
from tests.waiting import HANG

HELLO = wire.hello_to_pb(Hello("toy"))


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder with a short name, for a socket."""
    found = Path(tempfile.mkdtemp())
    yield found
    shutil.rmtree(found)


def test_devices_are_sent_on_however_many_call_and_wait(folder: Path) -> None:
    async def story() -> None:
        standby = await stand_by("127.0.0.1:0", "", folder / "s", None)
        channels = [aio.insecure_channel(f"127.0.0.1:{standby.port}", OWN) for _ in range(8)]
        try:
            for channel in channels:
                checked = await HealthStub(channel).Check(health_pb2.HealthCheckRequest())
                assert checked.status == health_pb2.HealthCheckResponse.SERVING
                for _ in range(OPERATOR_CALLS // 4):  # none of them lasts
                    await refused(HealthStub(channel).Watch(health_pb2.HealthCheckRequest()).read())
            hellos = (DeviceServiceStub(channel).Hello(HELLO) for channel in channels for _ in range(32))
            for error, fault in await asyncio.gather(*(refused(call) for call in hellos)):
                assert (error.code(), fault.code) == (grpc.StatusCode.UNAVAILABLE, "not-leader")
        finally:
            for channel in channels:
                await channel.close()
            await standby.stop()

    asyncio.run(story())


def test_strangers_do_not_take_the_descriptors_with_which_it_would_take_over(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        standby = await stand_by("127.0.0.1:0", "", folder / "s", None)
        try:
            async with aio.insecure_channel(f"127.0.0.1:{standby.port}", OWN) as idle:
                async with asyncio.timeout(HANG):
                    await idle.channel_ready()
                    monkeypatch.setattr(connections, "FULL", 0.0)
                    await idle.wait_for_state_change(grpc.ChannelConnectivity.READY)
        finally:
            await standby.stop()

    asyncio.run(story())
