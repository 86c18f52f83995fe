"""Over real TLS: what each role may call, and that leases, sessions and blobs belong to one device."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from grpc import aio

from fedserver.authority import permissions
from fedserver.authority.permissions import ALLOWED
from fedserver.coordinator import placement
from fedserver.rpc.admission.connections import MAX_REFUSED
from fedserver.store.identities.audit import Event
from fedserver.store.identities.records import DAY
from shoal.core.errors import IllegalEvent
from shoal.core.exchange import wire
from shoal.core.exchange._pb.fed.v1 import blob_service_pb2 as blob_pb
from shoal.core.exchange._pb.fed.v1.device_service_pb2 import LeaveRequest
from shoal.core.exchange._pb.fed.v1.observer_service_pb2 import ObserveRunsRequest
from shoal.core.exchange._pb.fed.v1.observer_service_pb2_grpc import ObserverServiceStub
from shoal.core.exchange._pb.fed.v1.placement_service_pb2 import GetSealRequest, PlaceRequest
from shoal.core.exchange.link import Hello, Outcome, Placement, Report
from shoal.core.exchange.parts import ClusterAssignment, Scores
from shoal.core.exchange.payload import BlobRef
from shoal.core.identity.joining import Role
from tests.server.authority.peers import Peer, World, lines_of, play, refused, world
from tests.server.servers import DEVICES, start
from tests.server.toys import Hands, honest, pieces_of
from tests.waiting import HANG


def test_every_call_is_denied_to_every_role_that_has_no_leave_for_it(tmp_path: Path) -> None:
    async def story(found: World) -> None:
        tried = 0
        for role in Role:
            device = await found.device(role.value, role=role)
            async for method, said in _answers(device.channel, list(ALLOWED)):
                if role in ALLOWED[method]:
                    assert "may not call" not in said, (role, method, said)
                else:
                    assert f"PERMISSION_DENIED a device with the role {role.value} may not call" in said
                    tried += 1
        assert tried == sum(len(Role) - len(roles) for roles in ALLOWED.values()) > 10
        denied = {
            (line["facts"]["device"], line["facts"]["call"]) for line in lines_of(found.state, Event.DENIED)
        }
        assert len(denied) == tried

    play(story, tmp_path / "s")


async def _answers(connected: Callable[[], Any], methods: list[str]) -> AsyncIterator[tuple[str, str]]:
    """What is said to an empty request of each call. A connection that is only refused is closed early."""
    for begin in range(0, len(methods), MAX_REFUSED - 1):
        async with connected() as channel:
            for method in methods[begin : begin + MAX_REFUSED - 1]:
                yield method, await _said(channel, method)


async def _said(channel: aio.Channel, method: str) -> str:
    call: Any = channel.unary_stream(method)(b"", timeout=HANG)
    try:
        await call.read()
    except aio.AioRpcError as error:
        return f"{error.code().name} {error.details()}"
    finally:
        call.cancel()
    return "OK"


@pytest.mark.parametrize("method", ["/fed.v1.DeviceService/Report", "/grpc.health.v1.Health/Check"])
def test_a_server_with_a_call_that_nobody_thought_of_does_not_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    async def run() -> None:
        async with world(tmp_path / "s"):
            raise AssertionError("it started")

    monkeypatch.setattr(permissions, "ALLOWED", {name: ALLOWED[name] for name in ALLOWED if name != method})
    with pytest.raises(IllegalEvent, match=f"no roles are allowed to call {method}"):
        asyncio.run(run())
    monkeypatch.setattr(permissions, "ALLOWED", {**ALLOWED, "/x.Y/Z": frozenset()})
    with pytest.raises(IllegalEvent, match=r"/x\.Y/Z has allowed roles, and is not served"):
        asyncio.run(run())


def test_what_has_no_row_is_denied() -> None:
    for role in Role:
        with pytest.raises(Exception, match="may not call Anything"):
            permissions.check_allowed(role, "/fed.v1.NewService/Anything")


def test_neither_port_knows_what_operators_call(tmp_path: Path) -> None:
    from shoal.core.exchange._pb.fed.v1 import authority_service_pb2, operator_service_pb2

    methods = [
        f"/{service.full_name}/{method.name}"
        for module in (authority_service_pb2, operator_service_pb2)
        for service in module.DESCRIPTOR.services_by_name.values()
        for method in service.methods
    ]

    async def story(found: World) -> None:
        device = await found.device("d0")
        async for method, said in _answers(device.channel, methods):
            assert said.startswith("UNIMPLEMENTED"), method
        pin = Peer(await found.token(), "d1")
        async for method, said in _answers(pin.joining_channel, [*methods, *ALLOWED]):
            assert said.startswith("UNIMPLEMENTED"), method

    assert len(methods) > 15
    play(story, tmp_path / "s")


def test_an_observer_sees_how_runs_stand_and_no_names(tmp_path: Path) -> None:
    async def story(found: World) -> None:
        await start(found.coordinator)
        device, observer = await found.device("d0"), await found.device("watcher", role=Role.OBSERVER)
        async with device.channel() as channel, observer.channel() as watching:
            await (await Hands(device.link(channel)).hello()).link.next_task(0.0)
            answer = await ObserverServiceStub(watching).ObserveRuns(ObserveRunsRequest())
        (run,) = answer.runs
        assert (run.run, run.algorithm, run.round) == ("toy", "fedavg", 1)
        assert "d0" not in str(answer)

    play(story, tmp_path / "s")


SHOWN = Scores(np.ones(2), 9)
"""What a newcomer shows of its data."""


def test_who_only_infers_is_placed_so_many_times_a_day(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also across a restart: the count is on disk."""

    async def place(*args: Any) -> Placement:
        return Placement("toy", ClusterAssignment("c", 0.0, "", 0.0, 1.0, abstained=True), None)

    monkeypatch.setattr(placement, "place", place)

    async def first() -> Peer:
        async with world(tmp_path / "s") as found:
            await start(found.coordinator)
            device, trainer = await found.device("n", role=Role.INFER_ONLY), await found.device("t")
            async with device.channel() as channel, trainer.channel() as other:
                for _ in range(9):
                    await device.link(channel).place("", SHOWN)
                for _ in range(12):
                    await trainer.link(other).place("", SHOWN)
            return device

    async def second(device: Peer) -> None:
        async with world(tmp_path / "s") as found:
            device.address = found.listeners.address
            async with device.channel() as channel:
                await device.link(channel).place("", SHOWN)
                error, fault = await refused(device.link(channel).place("", SHOWN))
                assert (error.code(), fault.code) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "too-often")
                tomorrow = time.time() + DAY
                monkeypatch.setattr("time.time", lambda: tomorrow)
                await device.link(channel).place("", SHOWN)

    asyncio.run(second(asyncio.run(first())))


@pytest.mark.parametrize("role", [Role.INFER_ONLY, Role.OBSERVER])
def test_no_call_of_a_device_that_may_not_train_enters_a_run(tmp_path: Path, role: Role) -> None:
    """Every call that the role has, with a session and with what a device would send; see the table."""

    async def story(found: World) -> None:
        await start(found.coordinator)
        device = await found.device("outsider", role=role)
        async with device.channel() as channel:
            session = ""
            if role in ALLOWED["/fed.v1.DeviceService/Hello"]:
                session = (await device.link(channel).hello(Hello("toy"))).session
                assert found.coordinator.visitors["outsider"].session == session != ""
            requests = _requests(session)
            own = {method for method, roles in ALLOWED.items() if role in roles}
            assert own <= set(requests), "a new call of this role has to be tried here"
            last = ("/fed.v1.DeviceService/Hello", "/fed.v1.DeviceService/Leave")  # they end the session
            for method in sorted(own, key=lambda name: (name in last, name)):
                call = channel.unary_stream if method.endswith("/Fetch") else channel.unary_unary
                with suppress(aio.AioRpcError):
                    answer = call(method)(
                        requests[method], metadata=(("shoal-session", session),), timeout=HANG
                    )
                    await (answer.read() if method.endswith("/Fetch") else answer)
                for run in found.coordinator.runs.values():
                    assert not run.engine.sessions, method

    play(story, tmp_path / "s")


def test_the_same_calls_of_a_device_that_may_train_do_enter_a_run(tmp_path: Path) -> None:
    async def story(found: World) -> None:
        await start(found.coordinator)
        device = await found.device("insider")
        async with device.channel() as channel:
            session = (await device.link(channel).hello(Hello("toy"))).session
            fetch = channel.unary_stream("/fed.v1.BlobService/Fetch")
            with suppress(aio.AioRpcError):
                request = _requests(session)["/fed.v1.BlobService/Fetch"]
                await fetch(request, metadata=(("shoal-session", session),), timeout=HANG).read()
            assert set(found.coordinator.runs["toy"].engine.sessions) == {"insider"}

    play(story, tmp_path / "s")


def _requests(session: str) -> dict[str, bytes]:
    """A request for each call that a role without training has."""
    fetch = blob_pb.FetchRequest(blob=wire.blob_to_pb(BlobRef("ab" * 32, 4)))
    return {
        "/fed.v1.BlobService/Fetch": fetch.SerializeToString(),
        "/fed.v1.DeviceService/Hello": wire.hello_to_pb(Hello("toy")).SerializeToString(),
        "/fed.v1.DeviceService/Leave": LeaveRequest(session=session).SerializeToString(),
        "/fed.v1.ObserverService/ObserveRuns": ObserveRunsRequest().SerializeToString(),
        "/fed.v1.PlacementService/GetSeal": GetSealRequest(release="toy@1").SerializeToString(),
        "/fed.v1.PlacementService/Place": PlaceRequest(run="toy").SerializeToString(),
        "/grpc.health.v1.Health/Check": b"",
    }


def test_a_session_a_lease_and_a_blob_belong_to_one_device(tmp_path: Path) -> None:
    async def story(found: World) -> None:
        await start(found.coordinator)
        peers = [await found.device(f"d{number}") for number in range(DEVICES + 1)]
        channels = [peer.channel() for peer in peers]
        hands = [Hands(peer.link(channel)) for peer, channel in zip(peers, channels, strict=True)]
        for each in hands:
            await each.hello()
        for each in hands[:DEVICES]:
            await each.link.next_task(0.0)
        mine, thief = hands[0], hands[DEVICES]
        task = await mine.task()
        payload = mine.payload(honest(0)(await mine.open(task), task.seed))
        (weights,) = task.payload.weights()
        await mine.upload(payload)
        report = Report(task.run, task.round, task.attempt, payload)

        stub = thief.link._blobs  # type: ignore[attr-defined]
        request = blob_pb.FetchRequest(blob=wire.blob_to_pb(weights.blob))
        for session, code in (
            (thief.link.metadata, grpc.StatusCode.NOT_FOUND),  # type: ignore[attr-defined]
            (mine.link.metadata, grpc.StatusCode.FAILED_PRECONDITION),  # type: ignore[attr-defined]
        ):
            with pytest.raises(aio.AioRpcError) as caught:
                await stub.Fetch(request, metadata=session).read()
            assert caught.value.code() is code
        uploaded = payload.weights()[0].blob
        assert await mine.link.uploaded(uploaded) == uploaded.size
        for call in (thief.link.uploaded(uploaded), thief.link.upload(uploaded, 0, pieces_of(b"x"))):
            error, _ = await refused(call)
            assert error.code() is grpc.StatusCode.PERMISSION_DENIED  # it has no task
        assert not await thief.link.alive(task.run, task.round, task.attempt)
        receipt = await thief.link.report(report)
        assert receipt.outcome is Outcome.LATE  # nothing waits for a report of this device
        thief.link._session = mine.link._session  # type: ignore[attr-defined]
        error, fault = await refused(thief.link.next_task(0.0))
        assert fault.code == "say-hello"
        assert (await mine.link.report(report)).outcome.value == "accepted"
        await asyncio.gather(*(channel.close() for channel in channels))

    play(story, tmp_path / "s")
