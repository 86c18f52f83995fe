"""Devices that fetch the models of a run from a bucket by themselves, beside one that does not."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import grpc
import pytest
from grpc import aio

from fedclient.net.direct import Direct
from fedclient.net.rpc import RpcLink
from fedserver.coordinator.coordinator import Coordinator
from fedserver.rpc.channel import SOCKET
from fedserver.rpc.server import listen
from fedserver.store.engines import Elsewhere
from shoal.core.errors import BucketAway, Unavailable
from shoal.core.exchange import wire
from shoal.core.exchange._pb.fed.v1 import blob_service_pb2 as blob_pb
from shoal.core.exchange._pb.fed.v1.blob_service_pb2_grpc import BlobServiceStub
from shoal.core.exchange.link import Idle, Task
from shoal.core.exchange.payload import BlobRef
from shoal.core.types import Bytes
from tests.buckets import Buckets
from tests.postgresql import Cluster
from tests.server.servers import DEVICES, expected, models, server, start
from tests.server.toys import Hands, honest, same_models, serve
from tests.server.wire_link import WireLink
from tests.waiting import free_port

pytest.importorskip("psycopg", reason="psycopg is not installed")


@pytest.fixture
def unsteady(buckets: Buckets) -> Iterator[Buckets]:
    """The server of the buckets, which the test may stop."""
    yield buckets
    if not buckets.is_running:
        buckets.start()


class Counted(Direct):
    """received: bytes that came from the bucket."""

    received = 0

    async def chunks(self, address: str, start: int) -> AsyncIterator[bytes]:
        async for chunk in super().chunks(address, start):
            self.received += len(chunk)
            yield chunk


class Patient(RpcLink):
    """Goes on where a fetch was cut, as an agent does. As if models were large, it fetches them all."""

    async def next_task(self, wait: float) -> Task | Idle:
        found = await super().next_task(wait)
        return found if isinstance(found, Idle) else replace(found, inline=(), inline_report=0)

    async def fetch(self, blob: BlobRef, start: int) -> AsyncIterator[Bytes]:
        while start < blob.size:
            with suppress(Unavailable):
                async for chunk in super().fetch(blob, start):
                    start += len(chunk)
                    yield chunk


async def task_for(hands: Hands) -> Task:
    while not isinstance(found := await hands.link.next_task(1.0), Task):
        pass
    return found


@asynccontextmanager
async def fleet(
    state: Path, elsewhere: Elsewhere
) -> AsyncIterator[tuple[Coordinator, list[RpcLink], list[Counted]]]:
    """A server, and devices of which the first allows no host."""
    async with server(state, elsewhere=elsewhere) as coordinator:
        listeners = await listen(coordinator, "127.0.0.1:0", state / SOCKET)
        links: list[RpcLink] = [Patient(listeners.address, f"d{number}") for number in range(DEVICES)]
        counted = [Counted(("127.0.0.1",) if number else ()) for number in range(DEVICES)]
        for link, each in zip(links, counted, strict=True):
            link.direct = each
        try:
            yield coordinator, links, counted
        finally:
            for link in links:
                await link.close()
            coordinator.stop_serving()
            await listeners.stop(1.0)


def play(state: Path, elsewhere: Elsewhere) -> list[int]:
    """Bytes that each device had from the bucket in a run, which ends with the expected models."""

    async def story() -> list[int]:
        async with fleet(state, elsewhere) as (coordinator, links, counted):
            await start(coordinator)
            await asyncio.gather(*(serve(link, honest(number)) for number, link in enumerate(links)))
            assert same_models(models(coordinator), expected())
        return [each.received for each in counted]

    return asyncio.run(story())


def test_devices_have_their_models_from_the_bucket(
    buckets: Buckets, postgresql: Cluster, tmp_path: Path
) -> None:
    address = replace(buckets.bucket(), devices_url=buckets.url)
    first, *others = play(tmp_path / "s", Elsewhere(postgresql.database(), address))
    assert first == 0
    assert min(others) > 0


def test_where_devices_cannot_reach_the_bucket_the_server_gives_the_models(
    buckets: Buckets, postgresql: Cluster, tmp_path: Path
) -> None:
    address = replace(buckets.bucket(), devices_url=f"http://127.0.0.1:{free_port()}")
    assert play(tmp_path / "s", Elsewhere(postgresql.database(), address)) == [0] * DEVICES


def test_while_the_bucket_is_away_the_server_gives_what_it_has_and_names_no_address(
    unsteady: Buckets, postgresql: Cluster, tmp_path: Path
) -> None:
    async def story() -> None:
        address = replace(unsteady.bucket(), devices_url=unsteady.url)
        async with fleet(tmp_path / "s", Elsewhere(postgresql.database(), address)) as (
            coordinator,
            links,
            _,
        ):
            await start(coordinator)
            async with aio.insecure_channel(links[0].address) as channel:
                found = [WireLink(channel, f"d{number}") for number in range(DEVICES)]
                hands = [await Hands(each).hello() for each in found]
                _, task, _ = await asyncio.gather(*(task_for(each) for each in hands))
                blob = task.payload.weights()[0].blob
                request = blob_pb.FetchRequest(blob=wire.blob_to_pb(blob), elsewhere=True)

                async def fetched() -> list[blob_pb.FetchResponse]:
                    ask = BlobServiceStub(channel).Fetch
                    return [each async for each in ask(request, metadata=found[1].metadata)]

                assert (await fetched())[0].address
                copies = coordinator.storage.blobs.copies
                await asyncio.to_thread(unsteady.stop)
                with pytest.raises(BucketAway):
                    await asyncio.to_thread(copies.probe)
                answers = await fetched()
                assert not any(each.address for each in answers)
                assert sum(len(each.chunk.data) for each in answers) == blob.size
                assert copies.away is not None

    asyncio.run(story())


def test_an_address_is_for_one_object_and_some_minutes_and_only_for_whom_the_model_is(
    buckets: Buckets, postgresql: Cluster, tmp_path: Path
) -> None:
    address = replace(buckets.bucket(), devices_url="https://s3.example.org")

    async def story() -> None:
        async with fleet(tmp_path / "s", Elsewhere(postgresql.database(), address)) as (
            coordinator,
            links,
            _,
        ):
            await start(coordinator)
            async with aio.insecure_channel(links[0].address) as channel:
                found = [WireLink(channel, f"d{number}") for number in range(DEVICES)]
                hands = [await Hands(each).hello() for each in found]
                _, task, _ = await asyncio.gather(*(task_for(each) for each in hands))
                blob = task.payload.weights()[0].blob
                ask = BlobServiceStub(channel).Fetch
                request = blob_pb.FetchRequest(blob=wire.blob_to_pb(blob), elsewhere=True)
                (answer,) = [each async for each in ask(request, metadata=found[1].metadata)]
                named = urlsplit(answer.address)
                assert not answer.HasField("chunk")
                assert (named.scheme, named.netloc) == ("https", "s3.example.org")
                assert any(named.path.endswith(key) for key in buckets.keys(address) if blob.sha256 in key)
                signed = parse_qs(named.query)
                assert signed["X-Amz-Expires"] == ["300"]
                assert signed["X-Amz-Algorithm"] == ["AWS4-HMAC-SHA256"]
                plain = blob_pb.FetchRequest(blob=wire.blob_to_pb(blob))
                assert not any([each.address async for each in ask(plain, metadata=found[1].metadata)])
                foreign = wire.blob_to_pb(BlobRef("ab" * 32, 4))
                request = blob_pb.FetchRequest(blob=foreign, elsewhere=True)
                with pytest.raises(aio.AioRpcError) as refused:
                    assert [each async for each in ask(request, metadata=found[1].metadata)]
                assert refused.value.code() is grpc.StatusCode.NOT_FOUND

    asyncio.run(story())
