"""Whatever devices do, operators see how the server, its devices and its runs stand."""

import asyncio
import logging
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from grpc import aio

from fedserver.authority.permissions import ALLOWED
from fedserver.cli import text
from fedserver.coordinator.status_types import (
    DeviceFigures,
    DeviceStatus,
    RunStatus,
    RunSummary,
    ServerStatus,
)
from fedserver.page.views import run as run_view
from fedserver.rpc.client import OperatorClient
from fedserver.rpc.wire import operator_wire
from fedserver.rpc.wire.converter import MAX_SECONDS, span_from_pb, span_to_pb
from shoal.core.exchange.link import Failure, Hello, Report
from shoal.core.exchange.payload import BlobRef
from shoal.core.identity.joining import Role
from shoal.core.verdict import DEVICE, Verdict
from tests.server.authority.peers import Peer, World, world
from tests.server.servers import spec, start
from tests.server.wire_link import WireLink

BLOB = BlobRef("ab" * 32, 8)
Call = Callable[[aio.Channel, WireLink], Awaitable[object]]


async def _fetch(channel: aio.Channel, link: WireLink) -> None:
    async for _ in link.fetch(BLOB, 0):
        pass


async def _bytes() -> AsyncIterator[bytes]:
    yield b"\0" * 8


CALLS: Mapping[str, tuple[Call, ...]] = {
    "/fed.v1.DeviceService/NextTask": (lambda channel, link: link.next_task(0.0),),
    "/fed.v1.DeviceService/Alive": (lambda channel, link: link.alive("toy", 1, 1),),
    "/fed.v1.DeviceService/Report": (
        lambda channel, link: link.report(Report("toy", 1, 1, Failure("failed", "it failed"))),
    ),
    "/fed.v1.DeviceService/Leave": (lambda channel, link: link.leave(),),
    "/fed.v1.PlacementService/GetSeal": (lambda channel, link: link.seal("first"),),
    "/fed.v1.BlobService/Fetch": (_fetch,),
    "/fed.v1.BlobService/Uploaded": (lambda channel, link: link.uploaded(BLOB),),
    "/fed.v1.BlobService/Upload": (lambda channel, link: link.upload(BLOB, 0, _bytes()),),
}
"""Every call of a device that trains, but those that begin its visit."""
BEGIN = {"/fed.v1.DeviceService/Hello", "/fed.v1.PlacementService/Place", "/grpc.health.v1.Health/Check"}


def test_no_call_without_a_hello_hides_anything(tmp_path: Path) -> None:
    assert {*CALLS, *BEGIN} == {call for call, roles in ALLOWED.items() if Role.TRAIN in roles}

    async def first_life() -> tuple[Peer, str]:
        async with world(tmp_path / "s") as found:
            await start(found.coordinator)
            device = await found.device("d0")
            async with device.channel() as channel:
                link = device.link(channel)
                return device, (await link.hello(Hello("toy"))).session

    async def second_life(device: Peer, session: str) -> None:
        async with world(tmp_path / "s") as found:
            device.address = found.listeners.address
            with OperatorClient(found.state) as operator:
                for calls in CALLS.values():
                    for call in calls:
                        for given in ("", session):
                            await called(device, call, given)
                            (seen,) = await asyncio.to_thread(looked, operator)
                            assert (seen.device, seen.presence, seen.last_seen) == ("d0", "absent", None)
                status = await asyncio.to_thread(operator.status)
                assert ["d0", "absent", "-", "-", "toy"] in [
                    line.split() for line in text.server(status).splitlines()
                ]
                await begun(found, device, operator)

    async def called(device: Peer, call: Call, session: str) -> None:
        async with device.channel() as channel:
            link = device.link(channel)
            link._session = session
            link.metadata = (link.metadata[0], ("shoal-session", session))
            with suppress(aio.AioRpcError):
                await asyncio.wait_for(call(channel, link), 60.0)

    async def begun(found: World, device: Peer, operator: OperatorClient) -> None:
        """It is heard when it asks to be placed, and when it says hello."""
        async with device.channel() as channel:
            with suppress(aio.AioRpcError):
                await device.link(channel).place("toy", None)
            (seen,) = await asyncio.to_thread(looked, operator)
            assert (seen.presence, seen.last_seen is not None) == ("absent", True)
            await device.link(channel).hello(Hello("toy"))
            (seen,) = await asyncio.to_thread(looked, operator)
            assert seen.presence == "idle"

    asyncio.run(second_life(*asyncio.run(first_life())))


def looked(operator: OperatorClient) -> tuple[DeviceStatus, ...]:
    """The devices, where all that operators look at can be seen."""
    assert [each.run for each in operator.runs()] == ["toy"]
    assert operator.show("toy").spec is not None
    assert [known.device for known in operator.devices()] == ["d0"]
    found = operator.status()
    assert [each.run for each in found.runs] == ["toy"]
    return found.devices


@pytest.mark.parametrize(
    "seconds", [0.0, 1.5, 1.9e9, -893985.34, 2.0 * MAX_SECONDS, -2.0 * MAX_SECONDS, math.inf, -math.inf]
)
def test_operators_are_shown_times_of_any_length(seconds: float) -> None:
    device = DeviceStatus("d0", "idle", seconds)
    run = RunSummary("toy", "toy", "fedavg", "default", "open", 1, time_left=seconds, pace=seconds)
    found = returned(ServerStatus("1", (device,), (run,)))
    expected = min(max(seconds, -MAX_SECONDS), MAX_SECONDS)
    (seen,), (shown,) = found.devices, found.runs
    assert (seen.last_seen, shown.time_left, shown.pace) == pytest.approx((expected,) * 3)
    assert span_to_pb(math.nan) is None
    assert span_from_pb(span_to_pb(-0.25)) == -0.25  # type: ignore[arg-type]


def returned(status: ServerStatus) -> ServerStatus:
    """It, as an operator gets it."""
    data = operator_wire.SERVER.to_pb(status).SerializeToString()
    return operator_wire.SERVER.from_pb(operator_wire.pb.GetStatusResponse.FromString(data))


ODD = "d\udc80"  # what no protobuf text can say


def test_a_row_that_cannot_be_encoded_costs_only_itself(caplog: pytest.LogCaptureFixture) -> None:
    well = DeviceStatus("d0", "idle", 1.0, "toy", ("toy", 1, 1))
    summary = RunSummary("toy", "toy", "fedavg", "default", "open", 1, title="round 1")
    devices = (
        well,
        replace(well, device=ODD),
        replace(well, device="d1", presence="asleep"),
        replace(well, device="d2", lease=("toy", -1, 1)),
        replace(well, device="d9"),
    )
    runs = (summary, replace(summary, run="b", stage="dreaming"), replace(summary, run="c", created=math.inf))
    with caplog.at_level(logging.CRITICAL, "shoal.rpc"):
        found = returned(ServerStatus("1", devices, runs))
    assert found.devices[0] == well
    assert found.devices[-1] == devices[-1]
    assert [each.device for each in found.devices] == ["d0", "d?", "d1", "d2", "d9"]
    assert [each.presence for each in found.devices] == ["idle", "idle", "unknown", "idle", "idle"]
    assert all(each.software.startswith("it cannot be shown: ") for each in found.devices[1:-1])
    assert found.runs[0] == summary
    assert [each.run for each in found.runs] == ["toy", "b", "c"]
    assert [each.stage for each in found.runs] == ["open", "unknown", "open"]
    assert all(each.waiting_for.startswith("it cannot be shown: ") for each in found.runs[1:])
    for line in ("d1", "it cannot be shown", "b: unknown"):
        assert line in text.server(found)


def test_a_run_is_shown_though_the_figures_of_a_device_cannot_be() -> None:
    figures = (DeviceFigures("d0", "c1", 0.5, 0.25, 10), DeviceFigures("d1", "c1", examples=-1))
    summary = RunSummary("toy", "toy", "fedavg", "default", "open", 1)
    sent = operator_wire.status_to_pb(RunStatus(summary, devices=figures, spec=spec()))
    found = operator_wire.status_from_pb(operator_wire.pb.RunStatus.FromString(sent.SerializeToString()))
    assert found.devices == (figures[0], DeviceFigures("d1", "c1"))


@pytest.mark.parametrize(
    "verdict",
    [
        Verdict(True, 0.8, 0.1, 0.7, 0.01, falling=True, advice="more rounds", beside=DEVICE),
        Verdict(None, 0.8, None, 0.0, 0.0, numbers=True, diverged=True),
    ],
)
def test_the_verdict_comes_first_and_is_the_same_everywhere(verdict: Verdict) -> None:
    summary = RunSummary("toy", "toy", "fedavg", "default", "finished", 1)
    sent = operator_wire.status_to_pb(RunStatus(summary, spec=spec(), verdict=verdict))
    found = operator_wire.status_from_pb(operator_wire.pb.RunStatus.FromString(sent.SerializeToString()))
    assert found.verdict == verdict
    assert text.status(found).splitlines()[0] == str(verdict)
    assert text.data(found)["verdict"]["text"] == run_view.document(found)["verdict"] == str(verdict)
