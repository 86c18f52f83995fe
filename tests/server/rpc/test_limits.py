"""Over gRPC: who asks for too much is asked to come again later, and devices at work do not notice."""

import asyncio
import gc
import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc import aio

from fedserver.coordinator.coordinator import Coordinator
from fedserver.rpc.admission import limits
from fedserver.rpc.admission.limits import OWN_AT_ONCE, WAITS
from shoal.core.errors import Busy, TooOften, Unavailable
from shoal.core.exchange import wire
from shoal.core.exchange.link import Hello
from tests.server import servers
from tests.server.rpc.test_rpc import fault_of, over_grpc
from tests.server.servers import start
from tests.server.toys import Hands
from tests.server.wire_link import WireLink
from tests.waiting import until


async def refused(call: Any) -> Unavailable:
    with pytest.raises(aio.AioRpcError) as caught:
        await call
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    found = wire.fault_from_pb(fault_of(caught.value))
    assert isinstance(found, Unavailable)
    assert found.window is not None
    assert 0.0 < found.window[0] < found.window[1] <= 60.0
    return found


def test_a_device_that_arrives_too_often_is_told_when_to_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "OWN_ARRIVALS", 0.05)  # however long the calls take on a busy machine

    async def story(coordinator: Coordinator, channel: aio.Channel) -> None:
        for _ in range(int(OWN_AT_ONCE)):
            await WireLink(channel, "d0").hello(Hello("toy"))
        found = await refused(WireLink(channel, "d0").hello(Hello("toy")))
        assert isinstance(found, TooOften)
        await WireLink(channel, "d1").hello(Hello("toy"))  # the others are let in

    over_grpc(story, tmp_path)


def test_a_crowd_is_paced_and_those_who_work_are_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "AT_ONCE", 2.0)
    monkeypatch.setattr(servers, "SETTINGS", replace(servers.SETTINGS, arrivals=0.1))

    async def story(coordinator: Coordinator, channel: aio.Channel) -> None:
        await start(coordinator)
        working = await Hands(WireLink(channel, "d0")).hello()
        await WireLink(channel, "d1").hello(Hello("toy"))
        found = [await refused(WireLink(channel, f"n{number}").hello(Hello("toy"))) for number in range(3)]
        assert all(isinstance(each, Busy) for each in found)
        earliest = [each.window[0] for each in found if each.window]
        assert earliest == sorted(set(earliest))  # each has a moment of its own
        for _ in range(50):
            await working.link.next_task(0.0)

    over_grpc(story, tmp_path)


def test_the_last_of_a_large_fleet_is_told_when_its_turn_comes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "AT_ONCE", 1.0)
    monkeypatch.setattr(servers, "SETTINGS", replace(servers.SETTINGS, arrivals=0.1))

    async def story(coordinator: Coordinator, channel: aio.Channel) -> None:
        coordinator.known = 5  # who arrive in 50 s
        await WireLink(channel, "d0").hello(Hello("toy"))
        found = [await refused(WireLink(channel, f"n{number}").hello(Hello("toy"))) for number in range(5)]
        latest = [each.window[0] for each in found if each.window][-1]
        assert limits.FURTHEST < latest <= 50.0

    over_grpc(story, tmp_path)


def test_one_device_waits_in_so_many_calls_at_a_time(tmp_path: Path) -> None:
    async def story(coordinator: Coordinator, channel: aio.Channel) -> None:
        device, other = WireLink(channel, "d0"), WireLink(channel, "d1")
        await device.hello(Hello("toy"))
        await other.hello(Hello("toy"))
        polls = [asyncio.create_task(device.next_task(10.0)) for _ in range(WAITS)]
        await until(lambda: coordinator.visitors["d0"].polling == WAITS)
        assert isinstance(await refused(device.next_task(0.0)), TooOften)
        await other.next_task(0.0)
        for poll in polls:
            poll.cancel()
        await asyncio.gather(*polls, return_exceptions=True)
        await until(lambda: not coordinator.visitors["d0"].polling)
        await device.next_task(0.0)  # its places are free again

    over_grpc(story, tmp_path)


def test_devices_that_wait_take_no_place_of_those_that_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(servers, "SETTINGS", replace(servers.SETTINGS, waiting=2))
    monkeypatch.setattr(limits, "CROWDED_CALLS", 2)
    monkeypatch.setattr(limits, "ALL_CALLS", 3)

    async def story(coordinator: Coordinator, channel: aio.Channel) -> None:
        devices = [WireLink(channel, f"d{number}") for number in range(3)]
        for device in devices:
            await device.hello(Hello("toy"))
        polls = [asyncio.create_task(device.next_task(10.0)) for device in devices[:2]]
        await until(lambda: sum(visitor.polling for visitor in coordinator.visitors.values()) == 2)
        for _ in range(4):  # more than all calls together, if those that wait counted
            assert not await devices[0].alive("toy", 1, 1)
        assert isinstance(await refused(devices[2].next_task(0.0)), Busy)
        polls[0].cancel()
        await until(lambda: not coordinator.visitors["d0"].polling)
        await devices[2].next_task(0.0)
        for poll in polls:
            poll.cancel()
        await asyncio.gather(*polls, return_exceptions=True)

    over_grpc(story, tmp_path)


def test_a_refused_request_is_let_go_before_any_collection_of_garbage(tmp_path: Path) -> None:
    size, times = 3 << 20, 8

    async def story(coordinator: Coordinator, channel: aio.Channel) -> None:
        link = WireLink(channel, "d0")
        call: Any = channel.unary_unary("/fed.v1.DeviceService/Report")
        junk = b"\x0b" + bytes(size)  # a group, which the contract has none of

        async def send() -> None:
            with pytest.raises(aio.AioRpcError) as caught:
                await call(junk, metadata=link.metadata)
            assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT

        await send()
        before, _ = tracemalloc.get_traced_memory()
        for _ in range(times):
            await send()
        # Of the last one, gRPC may still be sending the answer.
        assert tracemalloc.get_traced_memory()[0] - before < 2 * size

    gc.disable()
    tracemalloc.start()
    try:
        over_grpc(story, tmp_path)
    finally:
        tracemalloc.stop()
        gc.enable()
