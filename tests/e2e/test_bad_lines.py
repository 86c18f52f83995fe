"""Lines that are slow, silent or cut: the slow get through, the silent are let go, what is cut goes on.

Limits of a minute are two seconds here, and the lines are thirty times as fast as those that they stand for:
1 MB/s is to two seconds what 256 kbit/s is to a minute.
"""

import asyncio
import shutil
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from random import Random
from typing import Any

import grpc
import pytest
from grpc import aio

from fedclient.net.backoff import Backoff, patiently
from fedclient.net.rpc import RpcLink
from fedserver.coordinator.coordinator import Coordinator
from fedserver.coordinator.visits import transfer
from shoal.core.engine import timeouts
from shoal.core.errors import Unavailable
from shoal.core.exchange import wire
from shoal.core.exchange._pb.fed.v1 import blob_service_pb2 as blob_pb
from shoal.core.exchange._pb.fed.v1.blob_service_pb2_grpc import BlobServiceStub
from tests.e2e.visit_on_a_line import BLOB, DATA, fetch, leased, report, served, upload
from tests.relay import Relay, relay
from tests.server.toys import pieces_of
from tests.waiting import HANG, until

MINUTE, SLOW = 2.0, 1_000_000.0
Story = Callable[[RpcLink, Relay, Coordinator], Awaitable[None]]


@pytest.fixture(autouse=True)
def short_minutes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timeouts, "STALL", MINUTE)
    monkeypatch.setattr(timeouts, "ANSWER", MINUTE)


def on_a_line(story: Story, folder: Path, age: float = 1800.0) -> None:
    async def play() -> None:
        async with served(folder, age) as (coordinator, listeners), relay(listeners.address) as line:
            link = RpcLink(line.address, "d0")
            try:
                await asyncio.wait_for(story(link, line, coordinator), HANG)
            finally:
                await link.close()

    asyncio.run(play())


def test_a_slow_device_gets_five_megabytes_through_both_ways(tmp_path: Path) -> None:
    async def story(link: RpcLink, line: Relay, coordinator: Coordinator) -> None:
        task = await leased(link)
        line.rate = SLOW
        for moving in (fetch(link, task.payload.weights()[0].blob), upload(link)):
            began = time.monotonic()
            assert await moving == 0
            assert time.monotonic() - began > 2 * MINUTE  # a limit on the whole would have cut it
        assert line.sent < BLOB.size * 1.02
        await report(link, task)

    on_a_line(story, tmp_path / "s")


def test_the_kernel_makes_a_slow_line_too(tmp_path: Path) -> None:
    """In a network namespace of its own, whose loopback lets 8 Mbit/s through."""
    if not (shutil.which("unshare") and shutil.which("tc") and shutil.which("ip")):
        pytest.skip("unshare, ip or tc are not here")
    shaped = "ip link set lo mtu 1500 up && tc qdisc add dev lo root tbf rate 8mbit burst 16kb limit 64kb"
    namespace = ["unshare", "--map-root-user", "--net", "sh", "-c"]
    if subprocess.run([*namespace, shaped], capture_output=True).returncode:
        pytest.skip("no network namespace with a token bucket can be made here")
    program = f"{shaped} && exec {sys.executable} -m tests.e2e.visit_on_a_line {tmp_path}/s"
    done = subprocess.run([*namespace, program], capture_output=True, text=True, timeout=HANG)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("cut 0 times") == 2
    assert "reported" in done.stdout


@pytest.mark.parametrize("silent", [False, True])
def test_what_is_cut_goes_on_at_the_last_chunk(tmp_path: Path, silent: bool) -> None:
    async def story(link: RpcLink, line: Relay, coordinator: Coordinator) -> None:
        def trouble() -> None:
            line.fall_silent() if silent else line.cut()

        async def trouble_for_a_fetch() -> None:
            await until(lambda: line.received > BLOB.size // 3)
            trouble()

        async def trouble_for_an_upload() -> None:
            before = line.sent
            await until(lambda: line.sent - before > BLOB.size // 3)
            line.open.clear()  # what was sent until now reaches the server, and it takes every whole chunk
            taking = coordinator.visitor("d0").uploads[BLOB.sha256]
            await until(lambda: taking.held + wire.CHUNK > (line.sent - before) / 1.02)
            trouble()
            line.open.set()

        task = await leased(link)
        line.rate = SLOW
        for moving, troubling in (
            (fetch(link, task.payload.weights()[0].blob), trouble_for_a_fetch()),
            (upload(link), trouble_for_an_upload()),
        ):
            troubled = asyncio.create_task(troubling)
            assert await moving == 1
            await troubled
        assert line.sent < BLOB.size * 1.02 + wire.CHUNK  # at most one chunk came twice
        await report(link, task)

    on_a_line(story, tmp_path / "s")


def test_a_connection_that_is_too_old_breaks_no_transfer(tmp_path: Path) -> None:
    async def story(link: RpcLink, line: Relay, coordinator: Coordinator) -> None:
        task = await leased(link)
        line.rate = SLOW
        cuts = await fetch(link, task.payload.weights()[0].blob) + await upload(link)
        assert cuts >= 2
        assert line.accepted > cuts
        await report(link, task)

    on_a_line(story, tmp_path / "s", age=1.5)


def test_a_half_open_connection_is_left_for_a_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first call on it finds out, and the one after that is answered."""

    async def story(link: RpcLink, line: Relay, coordinator: Coordinator) -> None:
        task = await leased(link)
        line.fall_silent()
        with pytest.raises(Unavailable):
            await link.alive(task.run, task.round, task.attempt)
        monkeypatch.setattr(timeouts, "ANSWER", HANG)  # a busy machine may need longer than MINUTE
        assert await link.alive(task.run, task.round, task.attempt)
        assert line.accepted == 2

    on_a_line(story, tmp_path / "s")


def test_after_a_partition_the_second_try_is_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(link: RpcLink, line: Relay, coordinator: Coordinator) -> None:
        async def counted() -> None:
            tries.append(time.monotonic())
            await leased(link)

        tries: list[float] = []
        line.open.clear()  # connections are accepted, and nothing comes of them
        waiting = asyncio.create_task(patiently(counted, Backoff(Random(1)), HANG, lambda text: None))
        await until(lambda: len(tries) == 2)
        monkeypatch.setattr(timeouts, "ANSWER", HANG)  # a busy machine may need longer than MINUTE
        line.open.set()
        healed = time.monotonic()
        await waiting
        assert len([began for began in tries if began > healed]) <= 2

    on_a_line(story, tmp_path / "s")


def test_who_drips_loses_its_place(tmp_path: Path) -> None:
    async def dripping() -> AsyncIterator[bytes]:
        async for byte in pieces_of(DATA, 1):
            yield byte
            await asyncio.sleep(0.01)

    async def story(link: RpcLink, line: Relay, coordinator: Coordinator) -> None:
        task = await leased(link)
        for _ in range(2):  # a place that was not freed would be missing the next time
            drips = [link.upload(BLOB, 0, dripping()) for _ in range(4)]
            for found in await asyncio.gather(*drips, return_exceptions=True):
                assert isinstance(found, Unavailable), found
        assert await upload(link) == 0
        await report(link, task)

    on_a_line(story, tmp_path / "s")


def test_who_takes_nothing_is_let_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    let_go, real = asyncio.Event(), transfer.fetch

    async def watched(*arguments: Any) -> AsyncIterator[bytes]:
        try:
            async for chunk in real(*arguments):
                yield chunk
        finally:
            let_go.set()

    monkeypatch.setattr(transfer, "fetch", watched)

    async def story(link: RpcLink, line: Relay, coordinator: Coordinator) -> None:
        task = await leased(link)
        request = blob_pb.FetchRequest(blob=wire.blob_to_pb(task.payload.weights()[0].blob))
        async with aio.insecure_channel(line.address, options=(("grpc.http2.bdp_probe", 0),)) as channel:
            call = BlobServiceStub(channel).Fetch(request, metadata=(("shoal-device", "d0"),))
            assert await call.read() != aio.EOF
            await let_go.wait()
            with pytest.raises(aio.AioRpcError) as caught:
                await _to_the_end(call)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        assert "nothing was taken" in (caught.value.details() or "")
        assert await fetch(link, task.payload.weights()[0].blob) == 0

    on_a_line(story, tmp_path / "s")


async def _to_the_end(call: "aio.UnaryStreamCall[blob_pb.FetchRequest, blob_pb.FetchResponse]") -> None:
    while await call.read() != aio.EOF:
        pass
