"""The contract over a real server: what devices and operators get, and what a fault looks like there."""

import asyncio
import os
import stat
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc import aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from fedserver.coordinator.coordinator import Coordinator
from fedserver.rpc.channel import SOCKET
from fedserver.rpc.client import OperatorClient, TimedOut
from fedserver.rpc.errors import status_of
from fedserver.rpc.server import Listeners, listen
from shoal.core.errors import (
    ConfigError,
    IllegalEvent,
    NotFound,
    Refused,
    SessionLost,
    ShoalError,
    StorageFault,
    Unavailable,
)
from shoal.core.exchange import wire
from shoal.core.exchange._pb.fed.v1 import blob_service_pb2 as blob_pb
from shoal.core.exchange._pb.fed.v1 import device_service_pb2 as device_pb
from shoal.core.exchange._pb.fed.v1 import placement_service_pb2 as placement_pb
from shoal.core.exchange._pb.fed.v1.blob_service_pb2_grpc import BlobServiceStub
from shoal.core.exchange._pb.fed.v1.device_service_pb2_grpc import DeviceServiceStub
from shoal.core.exchange._pb.fed.v1.fault_pb2 import Fault
from shoal.core.exchange._pb.fed.v1.operator_service_pb2_grpc import OperatorServiceStub
from shoal.core.exchange._pb.fed.v1.placement_service_pb2_grpc import PlacementServiceStub
from shoal.core.exchange.link import Hello, Outcome, Placement, Report
from shoal.core.exchange.payload import BlobRef
from tests.server.servers import DEVICES, expected, server, spec, start
from tests.server.toys import MODEL, Hands, honest, same_models, serve
from tests.server.wire_link import WireLink


@asynccontextmanager
async def listening(state: Path) -> AsyncIterator[tuple[Coordinator, Listeners]]:
    async with server(state) as coordinator:
        listeners = await listen(coordinator, "127.0.0.1:0", state / SOCKET)
        yield coordinator, listeners
        coordinator.stop_serving()
        await listeners.stop(1.0)


Story = Callable[[Coordinator, aio.Channel], Awaitable[None]]


def over_grpc(story: Story, tmp_path: Path) -> None:
    async def play() -> None:
        async with (
            listening(tmp_path / "s") as (coordinator, listeners),
            aio.insecure_channel(listeners.address) as channel,
        ):
            await story(coordinator, channel)

    asyncio.run(play())


def fault_of(error: aio.AioRpcError) -> Fault:
    trailing: dict[str, Any] = dict(error.trailing_metadata() or ())  # type: ignore[arg-type]
    return Fault.FromString(trailing["shoal-fault-bin"])


def test_a_run_over_grpc_gives_the_models_of_the_simulation(tmp_path: Path) -> None:
    async def story(coordinator: Coordinator, channel: aio.Channel) -> None:
        await start(coordinator)
        await asyncio.gather(
            *(serve(WireLink(channel, f"d{number}"), honest(number)) for number in range(DEVICES))
        )
        assert same_models(coordinator.runs["toy"].engine.state.models, expected())
        newcomer = WireLink(channel, "newcomer")
        answer = await newcomer.place("", None)
        assert isinstance(answer, Placement)
        assert answer.model is not None
        data = b"".join([piece async for piece in newcomer.fetch(answer.model.blob, 0)])
        assert len(data) == answer.model.blob.size

    over_grpc(story, tmp_path)


def test_an_old_session_is_unauthenticated_and_told_to_say_hello(tmp_path: Path) -> None:
    async def story(coordinator: Coordinator, channel: aio.Channel) -> None:
        device = WireLink(channel, "d0")
        await device.hello(Hello("toy"))
        await WireLink(channel, "d0").hello(Hello("toy"))
        for call in (device.next_task(0.0), device.uploaded(BlobRef("ab" * 32, 1)), device.leave()):
            with pytest.raises(aio.AioRpcError) as caught:
                await call
            assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
            assert fault_of(caught.value).code == "say-hello"
            assert "another process has replaced this one" in fault_of(caught.value).message

    over_grpc(story, tmp_path)


@pytest.mark.parametrize(
    "metadata",
    [
        (),
        (("shoal-device", ""),),
        (("shoal-device", ".."),),
        (("shoal-device", "@operator"),),
        (("shoal-device", "a/b"),),
        (("shoal-device", "x" * 65),),
        (("shoal-device", "a"), ("shoal-device", "b")),
    ],
)
def test_who_does_not_say_who_calls_is_refused(tmp_path: Path, metadata: Any) -> None:
    async def story(coordinator: Coordinator, channel: aio.Channel) -> None:
        for call in (
            DeviceServiceStub(channel).Hello(wire.hello_to_pb(Hello("toy")), metadata=metadata),
            BlobServiceStub(channel).Uploaded(
                blob_pb.UploadedRequest(blob=wire.blob_to_pb(BlobRef("ab" * 32, 1))), metadata=metadata
            ),
            PlacementServiceStub(channel).Place(placement_pb.PlaceRequest(), metadata=metadata),
        ):
            with pytest.raises(aio.AioRpcError) as caught:
                await call
            assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
            assert "shoal-device" in (caught.value.details() or "")
        assert coordinator.visitors == {}

    over_grpc(story, tmp_path)


def test_an_upload_keeps_to_the_form(tmp_path: Path) -> None:
    blob = wire.blob_to_pb(BlobRef("ab" * 32, 10))
    begin = blob_pb.UploadRequest(start=blob_pb.UploadStart(blob=blob))
    wrong = wire.chunk_to_pb(3, b"xyz")
    long = wire.chunk_to_pb(0, b"xyz and more")

    async def story(coordinator: Coordinator, channel: aio.Channel) -> None:
        await start(coordinator)
        for number in range(DEVICES):
            device = WireLink(channel, f"d{number}")
            await device.hello(Hello("toy"))
            await device.next_task(0.0)
        for requests, reason in (
            ([], "first message of an upload must be its start"),
            ([blob_pb.UploadRequest(chunk=wrong)], "first message of an upload must be its start"),
            ([begin, begin], "an upload consists only of chunks"),
            ([begin, blob_pb.UploadRequest(chunk=wrong)], "starts at byte 3, expected 0"),
            ([begin, blob_pb.UploadRequest(chunk=long)], "longer than the announced 10 bytes"),
        ):
            with pytest.raises(aio.AioRpcError) as caught:
                await BlobServiceStub(channel).Upload(iter(requests), metadata=device.metadata)
            assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
            assert reason in (caught.value.details() or "")

    over_grpc(story, tmp_path)


def test_a_bug_shows_a_number_and_not_the_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(self: Coordinator) -> None:
        raise ZeroDivisionError("secret detail")

    async def story(coordinator: Coordinator, channel: aio.Channel) -> None:
        monkeypatch.setattr(Coordinator, "check_serving", broken)
        with pytest.raises(aio.AioRpcError) as caught:
            await WireLink(channel, "d0").hello(Hello("toy"))
        assert caught.value.code() is grpc.StatusCode.INTERNAL
        details = caught.value.details() or ""
        assert "secret" not in details
        number = details.split()[1].rstrip(":")
        assert any(number in record.message and record.exc_info for record in caplog.records)
        monkeypatch.undo()

    over_grpc(story, tmp_path)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (SessionLost("x"), grpc.StatusCode.FAILED_PRECONDITION),
        (Refused("x"), grpc.StatusCode.PERMISSION_DENIED),
        (NotFound("x"), grpc.StatusCode.NOT_FOUND),
        (Unavailable("x"), grpc.StatusCode.UNAVAILABLE),
        (StorageFault("x"), grpc.StatusCode.RESOURCE_EXHAUSTED),
        (IllegalEvent("x"), grpc.StatusCode.INTERNAL),
        (ShoalError("x"), grpc.StatusCode.INTERNAL),
    ],
)
def test_the_status_is_that_of_the_nearest_class(error: ShoalError, code: grpc.StatusCode) -> None:
    assert status_of(error) is code


def test_devices_cannot_reach_what_operators_can(tmp_path: Path) -> None:
    async def story(coordinator: Coordinator, channel: aio.Channel) -> None:
        from shoal.core.exchange._pb.fed.v1 import operator_service_pb2 as operator_pb

        with pytest.raises(aio.AioRpcError) as caught:
            await OperatorServiceStub(channel).ListRuns(operator_pb.ListRunsRequest())
        assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED

    over_grpc(story, tmp_path)


def test_the_health_service_says_when_the_server_is_about_to_end(tmp_path: Path) -> None:
    async def play() -> None:
        async with (
            listening(tmp_path / "s") as (_, listeners),
            aio.insecure_channel(listeners.address) as channel,
        ):
            stub = health_pb2_grpc.HealthStub(channel)
            for service in ("", "fed.v1.DeviceService"):
                request = health_pb2.HealthCheckRequest(service=service)
                assert (await stub.Check(request)).status == health_pb2.HealthCheckResponse.SERVING
            watching = stub.Watch(health_pb2.HealthCheckRequest())
            assert (await watching.read()).status == health_pb2.HealthCheckResponse.SERVING
            await listeners.stop_accepting()
            assert (await watching.read()).status == health_pb2.HealthCheckResponse.NOT_SERVING
            request = health_pb2.HealthCheckRequest()
            assert (await stub.Check(request)).status == health_pb2.HealthCheckResponse.NOT_SERVING

    asyncio.run(play())


def test_large_messages_and_metadata_are_not_taken(tmp_path: Path) -> None:
    async def story(coordinator: Coordinator, channel: aio.Channel) -> None:
        hello = device_pb.HelloRequest(software="x" * (5 << 20), oldest_protocol=1, newest_protocol=1)
        with pytest.raises(aio.AioRpcError) as caught:
            await DeviceServiceStub(channel).Hello(hello, metadata=(("shoal-device", "d0"),))
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        metadata = (("shoal-device", "d0"), ("x-long", "y" * (32 << 10)))
        with pytest.raises(aio.AioRpcError) as caught:
            await DeviceServiceStub(channel).Hello(wire.hello_to_pb(Hello("toy")), metadata=metadata)
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert coordinator.visitors == {}

    over_grpc(story, tmp_path)


@pytest.mark.parametrize("address", ["0.0.0.0:0", "192.168.1.5:50051", "example.org:1", "[::]:0"])
def test_only_loopback_is_served_in_plain_text(tmp_path: Path, address: str) -> None:
    async def play() -> None:
        async with server(tmp_path) as coordinator:
            with pytest.raises(ConfigError, match="not a loopback address"):
                await listen(coordinator, address, tmp_path / SOCKET)

    asyncio.run(play())


@pytest.mark.parametrize("address", ["127.0.0.1", "50061", "127.0.0.1:99999"])
def test_grpc_is_given_no_address_that_it_would_replace_by_another(tmp_path: Path, address: str) -> None:
    async def play() -> None:
        async with server(tmp_path) as coordinator:
            with pytest.raises(ConfigError, match=r"is not (HOST:PORT|a port)"):
                await listen(coordinator, address, tmp_path / SOCKET)

    asyncio.run(play())


def test_a_port_that_is_taken_is_named(tmp_path: Path) -> None:
    async def play() -> None:
        async with listening(tmp_path / "s") as (coordinator, listeners):
            with pytest.raises(
                ConfigError, match=f"cannot listen on {listeners.address}: process {os.getpid()} "
            ):
                await listen(coordinator, listeners.address, tmp_path / SOCKET)

    asyncio.run(play())


def test_a_state_folder_with_too_long_a_name_is_refused(tmp_path: Path) -> None:
    async def play() -> None:
        async with server(tmp_path / "s") as coordinator:
            with pytest.raises(ConfigError, match="use a shorter --state"):
                await listen(coordinator, "127.0.0.1:0", tmp_path / ("x" * 100) / SOCKET)

    asyncio.run(play())


# -- the operators' side -----------------------------------------------------------------------------------


@pytest.fixture
def operator(tmp_path: Path) -> Iterator[OperatorClient]:
    with OperatorClient(tmp_path / "s") as client:
        yield client


def test_an_operator_starts_a_run_watches_it_and_fetches_its_model(
    tmp_path: Path, operator: OperatorClient
) -> None:
    def start_and_look() -> None:
        assert operator.start_run(spec(), MODEL).run == "toy"
        assert [run.run for run in operator.runs()] == ["toy"]
        assert operator.show("toy").summary.waiting_for == "0 of 3 devices are here"

    def look_at_the_end() -> None:
        *_, last = operator.watch("toy")
        assert last == operator.show("toy")
        assert last.summary.stage == "finished"
        assert last.devices[0].accuracy is not None
        assert same_models({"global": operator.fetch(last.models["global"])}, expected())
        assert [device.device for device in operator.status().devices] == ["d0", "d1", "d2"]
        assert any("open: training round 1" in line.text for line in operator.log("toy"))

    async def story(coordinator: Coordinator, channel: aio.Channel) -> None:
        await asyncio.to_thread(start_and_look)
        watching = asyncio.create_task(asyncio.to_thread(look_at_the_end))
        devices = (serve(WireLink(channel, f"d{number}"), honest(number)) for number in range(DEVICES))
        await asyncio.gather(*devices)
        await watching

    over_grpc(story, tmp_path)


def test_what_the_server_refuses_an_operator_arrives_as_its_own_error(
    tmp_path: Path, operator: OperatorClient
) -> None:
    def ask() -> None:
        with pytest.raises(NotFound, match="no run 'other'") as caught:
            operator.show("other")
        assert caught.value.hint == "known runs: none"
        with pytest.raises(ConfigError, match="minimum of 3"):
            operator.start_run(spec(policy=_policy(devices=2, minimum=3)), None)
        with pytest.raises(ConfigError, match="no algorithm 'flx'"):
            operator.start_run(spec(algorithm="flx"), None)
        operator.start_run(spec(), None)
        with pytest.raises(TimedOut):
            list(operator.watch("toy", 0.3))
        assert operator.stop_run("toy", "enough").summary.waiting_for == "enough"

    async def story(coordinator: Coordinator, channel: aio.Channel) -> None:
        await asyncio.to_thread(ask)

    over_grpc(story, tmp_path)


def _policy(**changes: Any) -> Any:
    """A policy that could not be made: what a client of another version may send."""
    from shoal.core.engine.rounds import RoundPolicy

    policy = RoundPolicy()
    for name, value in changes.items():
        object.__setattr__(policy, name, value)
    return policy


def test_only_its_owner_can_open_the_socket(tmp_path: Path) -> None:
    async def play() -> None:
        async with listening(tmp_path / "s"):
            assert stat.S_IMODE((tmp_path / "s" / SOCKET).stat().st_mode) == 0o600

    asyncio.run(play())


def test_without_a_server_the_mend_is_to_start_one(tmp_path: Path, operator: OperatorClient) -> None:
    with pytest.raises(Unavailable, match="fedserver up --state"):
        operator.status()


def test_hands_work_over_grpc_too(tmp_path: Path) -> None:
    """A refused report, a withdrawn task and a duplicate look the same as without a network."""

    async def story(coordinator: Coordinator, channel: aio.Channel) -> None:
        await start(coordinator)
        devices = [await Hands(WireLink(channel, f"d{n}")).hello() for n in range(DEVICES)]
        for device in devices:
            await device.link.next_task(0.0)
        task = await devices[0].task()
        payload = devices[0].payload(honest(0)(await devices[0].open(task), task.seed))
        assert await devices[0].link.alive(task.run, task.round, task.attempt)
        assert (await devices[0].send(task, payload)).outcome is Outcome.ACCEPTED
        again = await devices[0].link.report(Report(task.run, task.round, task.attempt, payload))
        assert again.outcome is Outcome.DUPLICATE
        await devices[1].link.leave()
        assert not coordinator.runs["toy"].present("d1")

    over_grpc(story, tmp_path)
