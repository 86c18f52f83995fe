"""The client's gRPC against a real server: what is sent, what comes back, what statuses mean."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
import numpy as np
import pytest
from grpc import aio

from fedclient.net.rpc import OPTIONS, STATUSES, RpcLink, answers, error_of
from shoal.core.engine import timeouts
from shoal.core.errors import (
    BadPayload,
    NotFound,
    Refused,
    SessionLost,
    ShoalError,
    StaleReport,
    StorageFault,
    Unavailable,
    WrongVersion,
)
from shoal.core.exchange._pb.fed.v1 import device_service_pb2 as device
from shoal.core.exchange._pb.fed.v1.fault_pb2 import Fault
from shoal.core.exchange.link import Failure, Hello, Idle, Outcome, Placement, Receipt, Report, Task
from shoal.core.exchange.messages import Describe, Train, TrainingSettings
from shoal.core.exchange.parts import ClusterAssignment, Descriptor, Moments
from shoal.core.exchange.payload import BlobRef, encode
from tests.client.bridge import Bridge, serving
from tests.client.memory_server import MemoryLink, MemoryServer
from tests.waiting import HANG


def against(server: MemoryServer, steps: Callable[[RpcLink, Bridge], Awaitable[None]]) -> None:
    async def run() -> None:
        async with serving(server) as (link, bridge):
            await asyncio.wait_for(steps(link, bridge), HANG)

    asyncio.run(run())


HELLO = Hello("test")
MODEL = {"w": np.arange(1 << 20, dtype=np.float32)}


async def collected(chunks: AsyncIterator[bytes]) -> bytes:
    return b"".join([chunk async for chunk in chunks])


async def pieces(data: bytes, size: int) -> AsyncIterator[bytes]:
    for start in range(0, len(data), size):
        yield data[start : start + size]


def test_a_task_without_the_terms_of_its_run_is_refused() -> None:
    server = MemoryServer([])
    server.tasks = [Task("r1", 2, 0, 7, "", encode(Train(MODEL, TrainingSettings()), server.keep))]

    async def steps(link: RpcLink, bridge: Bridge) -> None:
        await link.hello(HELLO)
        with pytest.raises(BadPayload, match="the terms of its run are not set"):
            await link.next_task(0.5)

    against(server, steps)


def test_a_visit_over_a_socket() -> None:
    server = MemoryServer([], chunk=1 << 20)
    message = Train(MODEL, TrainingSettings(epochs=3), cluster="c1")
    server.tasks = [Task("r1", 2, 0, (1 << 64) - 1, "zwölf", encode(message, server.keep), "{}")]

    async def steps(link: RpcLink, bridge: Bridge) -> None:
        welcome = await link.hello(HELLO)
        assert (welcome.software, welcome.session) == ("memory", "session 1")
        task = await link.next_task(0.5)
        assert isinstance(task, Task)
        assert (task.run, task.round, task.attempt, task.seed, task.title) == (
            "r1",
            2,
            1,
            (1 << 64) - 1,
            "zwölf",
        )
        assert task.payload == server.tasks[0].payload
        assert await link.alive("r1", 2, 1)
        blob = task.payload.weights()[0].blob
        data = server.blobs[blob.sha256]
        assert await collected(link.fetch(blob, 0)) == data
        assert await collected(link.fetch(blob, blob.size - 10)) == data[-10:]
        assert await link.uploaded(blob) == 0
        assert await link.upload(blob, 0, pieces(data, 1 << 20)) == blob.size
        assert await link.uploaded(blob) == blob.size
        failure = Report("r1", 2, 1, Failure("learner-failed", "boom", "Traceback"))
        assert await link.report(failure) == Receipt(Outcome.ACCEPTED)
        assert server.reports == [failure]
        assert await link.report(failure) == Receipt(Outcome.DUPLICATE)
        late = await link.report(Report("r1", 1, 1, Failure("learner-failed", "boom")))
        assert late == Receipt(Outcome.LATE, "that round is over")
        assert await link.next_task(0.0) == Idle("nothing to do", 0.0, 1.0, True)
        await link.leave()
        assert {caller["shoal-device"] for caller in bridge.callers} == {"pi-17"}
        assert [caller.get("shoal-session") for caller in bridge.callers][:2] == [None, "session 1"]

    against(server, steps)


def test_until_the_next_welcome_a_call_is_of_the_former_session() -> None:
    async def steps(link: RpcLink, bridge: Bridge) -> None:
        async def away(context: Any) -> None:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "starting")

        await link.hello(HELLO)
        bridge.raising = away
        for call in (lambda: link.hello(HELLO), lambda: collected(link.fetch(BlobRef("0" * 64, 10), 0))):
            with pytest.raises(Unavailable):
                await call()
        assert bridge.callers[-1]["shoal-session"] == "session 1"

    against(MemoryServer([]), steps)


def test_a_placement_over_a_socket() -> None:
    server = MemoryServer([])
    descriptor = Descriptor(Moments(np.ones((1, 2)), np.ones((1, 2)), np.ones(1)), "0" * 64)
    assignment = ClusterAssignment("c1", 0.5, "c0", 2.0, 0.75)
    server.placement = Placement("r1", assignment, server.keep(MODEL))
    question = encode(Describe(MODEL, {"mean": np.zeros(2)}), server.keep)

    async def steps(link: RpcLink, bridge: Bridge) -> None:
        assert await link.place("", descriptor) == server.placement
        assert server.placed[0].statistics.means.tolist() == [[1.0, 1.0]]
        server.placement = None
        with pytest.raises(Unavailable):
            await link.place("", None)  # the bridge lets the error through: an unknown failure of the server

    against(server, steps)
    assert question.kind == "describe"


def test_a_hello_that_fails_leaves_the_session_that_was(server: MemoryServer) -> None:
    async def steps(link: RpcLink, bridge: Bridge) -> None:
        await link.hello(HELLO)
        server.away = 1
        with pytest.raises(Unavailable):
            await link.hello(HELLO)
        await link.uploaded(BlobRef("0" * 64, 10))
        assert bridge.callers[-1]["shoal-session"] == "session 1"

    against(server, steps)


async def _failing(link: RpcLink, server: MemoryServer) -> list[ShoalError]:
    """What each call raises."""
    blob = BlobRef("0" * 64, 10)
    found = []
    for call in (
        lambda: link.hello(HELLO),
        lambda: link.next_task(0.0),
        lambda: link.alive("r", 1, 1),
        lambda: link.report(Report("r", 1, 1, Failure("x", "y"))),
        lambda: link.leave(),
        lambda: link.place("", None),
        lambda: collected(link.fetch(blob, 0)),
        lambda: link.uploaded(blob),
        lambda: link.upload(blob, 0, pieces(bytes(10), 10)),
    ):
        with pytest.raises(ShoalError) as caught:
            await call()
        while "reason was lost" in caught.value.message:
            with pytest.raises(ShoalError) as caught:
                await call()
        found.append(caught.value)
    return found


@pytest.mark.parametrize("status", [code for code in grpc.StatusCode if code is not grpc.StatusCode.OK])
def test_every_status_means_one_error_for_every_call(status: grpc.StatusCode) -> None:
    expected = {
        "INVALID_ARGUMENT": BadPayload,
        "OUT_OF_RANGE": BadPayload,
        "DATA_LOSS": BadPayload,
        "NOT_FOUND": NotFound,
        "FAILED_PRECONDITION": Refused,
        "PERMISSION_DENIED": Refused,
        "ALREADY_EXISTS": Refused,
        "UNIMPLEMENTED": Refused,
        "UNAUTHENTICATED": Refused,
    }.get(status.name, Unavailable)

    async def steps(link: RpcLink, bridge: Bridge) -> None:
        async def abort(context: Any) -> None:
            await context.abort(status, "that was wrong")

        bridge.raising = abort
        errors = await _failing(link, bridge.link._server)
        assert {type(error) for error in errors} == {expected}
        assert all("that was wrong" in error.message for error in errors)

    against(MemoryServer([]), steps)


HINT = "überall nachsehen"


@pytest.mark.parametrize(
    ("trailing", "expected"),
    [
        ((("shoal-fault-bin", Fault(code="stale-report", message="too late", hint=HINT)),), StaleReport),
        ((("shoal-code", "stale-report"), ("shoal-hint-bin", HINT)), StaleReport),
        ((("shoal-fault-bin", Fault(code="say-hello", message="too late", hint=HINT)),), SessionLost),
        ((("shoal-fault-bin", Fault(code="wrong-version", message="too late", hint=HINT)),), WrongVersion),
        ((("shoal-fault-bin", Fault(code="new-in-v9", message="too late", hint=HINT)),), Refused),
        ((("shoal-code", "new-in-v9"), ("shoal-hint-bin", HINT)), Refused),
    ],
)
def test_the_servers_own_code_comes_before_the_status(trailing: Any, expected: type[ShoalError]) -> None:
    def to_bytes(value: Any) -> Any:
        return value.SerializeToString() if isinstance(value, Fault) else value.encode()

    metadata = tuple((key, to_bytes(value) if key.endswith("-bin") else value) for key, value in trailing)

    async def steps(link: RpcLink, bridge: Bridge) -> None:
        async def abort(context: Any) -> None:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, "too late", metadata)

        bridge.raising = abort
        for error in await _failing(link, bridge.link._server):
            assert (type(error), error.message, error.hint) == (expected, "too late", HINT)

    against(MemoryServer([]), steps)


def test_a_server_whose_disk_is_full_is_tried_again() -> None:
    """Its own code for that is the one that we have for our disk."""

    async def steps(link: RpcLink, bridge: Bridge) -> None:
        async def abort(context: Any) -> None:
            fault = Fault(code="storage", message="the server's disk is full", hint="ask its operator")
            metadata = (("shoal-fault-bin", fault.SerializeToString()),)
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "full", metadata)

        bridge.raising = abort
        for error in await _failing(link, bridge.link._server):
            assert (type(error), error.message) == (Unavailable, "the server's disk is full")

    against(MemoryServer([]), steps)


@pytest.mark.parametrize(
    "trailing", [(("shoal-fault-bin", b"\xff\xff"),), (("shoal-fault-bin", b""),), (("shoal-code", ""),)]
)
def test_a_fault_that_cannot_be_read_leaves_the_status(trailing: Any) -> None:
    async def steps(link: RpcLink, bridge: Bridge) -> None:
        async def abort(context: Any) -> None:
            await context.abort(grpc.StatusCode.NOT_FOUND, "gone", trailing)

        bridge.raising = abort
        with pytest.raises(NotFound, match="gone"):
            await link.hello(HELLO)

    against(MemoryServer([]), steps)


def test_nobody_there_is_unavailable() -> None:
    async def steps() -> None:
        async with serving(MemoryServer([])) as (link, _):
            address = link.address
            assert await answers(address, 5.0)
        gone = RpcLink(address, "pi-17")
        try:
            for error in await _failing(gone, MemoryServer([])):
                assert isinstance(error, Unavailable)
                assert address in error.message
        finally:
            await gone.close()
        assert not await answers(address, 0.2)

    asyncio.run(steps())


def test_a_cut_stream_is_unavailable_and_keeps_what_came() -> None:
    server = MemoryServer([], chunk=1000)
    weights = server.keep(MODEL)
    server.cut = [3000]

    async def steps(link: RpcLink, bridge: Bridge) -> None:
        came = []

        async def take() -> None:
            async for chunk in link.fetch(weights.blob, 0):
                came.append(len(chunk))

        with pytest.raises(Unavailable):
            await take()
        assert came == [1000, 1000, 1000]

    against(server, steps)


def test_an_answer_that_breaks_the_contract_is_a_bad_payload() -> None:
    server = MemoryServer([])

    async def steps(link: RpcLink, bridge: Bridge) -> None:
        await link.hello(HELLO)
        bridge.next_task = device.NextTaskResponse()
        with pytest.raises(BadPayload, match="next is not set"):
            await link.next_task(0.0)

    against(server, steps)


def test_a_protocol_that_is_not_ours_is_refused() -> None:
    class Newer(MemoryLink):
        async def hello(self, hello: Hello) -> Any:
            welcome = await super().hello(hello)
            return type(welcome)(welcome.software, 99, welcome.session, welcome.poll, welcome.heartbeat)

    async def steps(link: RpcLink, bridge: Bridge) -> None:
        bridge.link = Newer(MemoryServer([]))
        with pytest.raises(WrongVersion, match="protocol 99") as caught:
            await link.hello(HELLO)
        assert caught.value.exit_code == 7

    against(MemoryServer([]), steps)


def test_damage_on_the_way_is_seen() -> None:
    server = MemoryServer([], chunk=1000)
    weights = server.keep(MODEL)

    async def steps(link: RpcLink, bridge: Bridge) -> None:
        class Damaging(MemoryLink):
            async def fetch(self, blob: BlobRef, start: int) -> AsyncIterator[bytes]:
                yield b"x" * ((1 << 20) + 1)

        bridge.link = Damaging(server)
        with pytest.raises(BadPayload, match="1048577 bytes"):
            await collected(link.fetch(weights.blob, 0))

    against(server, steps)


def test_a_deadline_ends_every_call_but_transfers() -> None:
    """A server that accepts and says nothing: the calls give up by themselves."""

    async def steps(link: RpcLink, bridge: Bridge) -> None:
        async def hang(context: Any) -> None:
            if (left := context.time_remaining()) is not None:  # transfers have their own limit: see below
                deadlines.append(left)
            await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, "as if")

        deadlines: list[float] = []
        bridge.raising = hang
        errors = await _failing(link, bridge.link._server)
        assert {type(error) for error in errors} == {Unavailable}
        assert len(deadlines) == 7
        assert all(0.0 < left <= 61.0 for left in deadlines)

    against(MemoryServer([]), steps)


def test_what_breaks_an_upload_on_our_own_side_is_said() -> None:
    """gRPC would make a canceled call of it, which looks as if someone had ended the agent."""

    async def steps(link: RpcLink, bridge: Bridge) -> None:
        async def lost() -> AsyncIterator[bytes]:
            yield b"x"
            raise StorageFault("the disk is gone")

        await link.hello(HELLO)  # without a session the server might refuse before the disk is gone
        with pytest.raises(StorageFault, match="the disk is gone"):
            await link.upload(BlobRef("0" * 64, 10), 0, lost())

    against(MemoryServer([]), steps)


def test_an_upload_that_nobody_takes_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timeouts, "STALL", 0.3)

    async def steps(link: RpcLink, bridge: Bridge) -> None:
        async def hang(context: Any) -> None:
            await asyncio.sleep(30.0)

        bridge.raising = hang
        for call in (
            link.upload(BlobRef("0" * 64, 10), 0, pieces(bytes(10), 10)),
            collected(link.fetch(BlobRef("0" * 64, 10), 0)),
        ):
            with pytest.raises(Unavailable, match="nothing moved to or from"):
                await call

    against(MemoryServer([]), steps)


def test_messages_are_bounded_and_no_proxy_comes_between() -> None:
    options = dict(OPTIONS)
    assert options["grpc.max_receive_message_length"] == options["grpc.max_send_message_length"] == 4 << 20
    assert options["grpc.enable_http_proxy"] == 0
    assert Unavailable not in STATUSES.values()


def test_a_name_that_is_not_known_is_said_without_the_library_s_own_chain() -> None:
    said = "DNS resolution failed for nosuch:1: C-ares status is not ARES_SUCCESS: [Domain name not found]"
    fault = aio.AioRpcError(grpc.StatusCode.UNAVAILABLE, aio.Metadata(), aio.Metadata(), said)
    assert error_of(fault, "nosuch:1").message == "nosuch:1 does not answer: Domain name not found"
