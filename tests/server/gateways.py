"""A gateway in this process, between devices and a server of `tests.server.authority.peers`."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from grpc import aio

from fedserver.rpc.gateway.folder import GatewayFolder
from fedserver.rpc.gateway.process import Gateway
from shoal.core.exchange import wire
from shoal.core.exchange._pb.fed.v1 import device_service_pb2 as device_pb
from shoal.core.exchange._pb.fed.v1.device_service_pb2_grpc import DeviceServiceStub
from shoal.core.exchange.link import Hello
from shoal.core.identity.certificates import request
from shoal.core.identity.joining import IssuedIdentity, Role
from tests.server.authority.peers import HOST, Peer, World
from tests.waiting import HANG, until

HELLO = wire.hello_to_pb(Hello("toy"))


async def added(world: World, path: Path, name: str = "gate") -> GatewayFolder:
    """The folder of a gateway of this server."""
    folder = GatewayFolder(path)
    key = folder.key()
    folder.fill(key, await world.api.add_gateway(name, (HOST,), request(key)), f"{HOST}:0")
    return folder


async def gateway_peer(world: World) -> Peer:
    """A gateway that calls the server as a device does."""
    peer = Peer(await world.token(), "gateway", world.listeners.address)
    added = await world.api.add_gateway(peer.name, (HOST,), peer.csr)
    names = world.peers.federation, peer.name, Role.GATEWAY, peer.address
    peer.issued = IssuedIdentity(added.certificate, added.authorities, *names, 3600.0)
    return peer


@asynccontextmanager
async def gateway(folder: GatewayFolder) -> AsyncIterator[Gateway]:
    """The gateway of a folder, once it has found its server."""
    found = Gateway(folder, folder.settings())
    await found.open()
    try:
        await asyncio.wait_for(found.brain.here.wait(), HANG)
        yield found
    finally:
        await found.close(0.0)


def behind(peer: Peer, found: Gateway) -> Peer:
    """The same device, which calls the gateway from now on."""
    peer.address = f"{HOST}:{found.port}"
    return peer


async def hello(peer: Peer, **metadata: bytes) -> device_pb.HelloResponse:
    """What a device is answered where it calls."""
    async with peer.channel() as channel:
        entries = tuple((name.replace("_", "-"), value) for name, value in metadata.items())
        answer: device_pb.HelloResponse = await DeviceServiceStub(channel).Hello(HELLO, metadata=entries)
        return answer


@asynccontextmanager
async def waiting_behind(world: World, device: Peer, found: Gateway) -> AsyncIterator["asyncio.Future[Any]"]:
    """The call of a device behind a gateway, once it waits for a task at the server."""
    session = (await hello(behind(device, found))).session
    async with device.channel() as channel:
        waiting = asyncio.ensure_future(_waits(channel, session))
        await until(lambda: world.coordinator.visitors[device.name].polling == 1)
        yield waiting


async def _waits(channel: aio.Channel, session: str) -> Any:
    """A call of a device that waits for a task."""
    asking = device_pb.NextTaskRequest(session=session, wait=wire.seconds_to_pb(60.0))
    return await DeviceServiceStub(channel).NextTask(asking)
