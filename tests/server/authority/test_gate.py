"""The devices' port over real TLS: who gets through, what each role may call, how a device is cut off."""

import asyncio
import ssl
import struct
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import trustme
from cryptography.hazmat.primitives.serialization import Encoding
from grpc import aio

from fedcore import wire
from fedcore._pb.fed.v1 import blob_service_pb2 as blob_pb
from fedcore._pb.fed.v1.fault_pb2 import Fault
from fedcore._pb.fed.v1.observer_service_pb2 import ObserveRunsRequest
from fedcore._pb.fed.v1.observer_service_pb2_grpc import ObserverServiceStub
from fedcore.errors import IllegalEvent
from fedcore.identity.certificates import key_from_pem, key_to_pem, new_key
from fedcore.identity.enrolled import Role
from fedcore.link import Hello, Outcome, Placement, Report
from fedcore.parts import ClusterAssignment
from fedcore.rounds import RoundPolicy
from fedserver import placing
from fedserver.authority import issuing, permissions
from fedserver.authority.chain import Event
from fedserver.authority.permissions import ALLOWED
from fedserver.authority.records import DeviceStanding
from fedserver.desk import Desk
from fedserver.store import Store
from tests.server.authority.peers import Peer, World, channel_of, lines_of, refused, world
from tests.server.servers import DEVICES, expected, spec, start
from tests.server.toys import Hands, honest, pieces_of, same_models, serve

Story = Callable[[World], Awaitable[None]]


def play(story: Story, state: Path) -> None:
    async def run() -> None:
        async with world(state) as found:
            await story(found)

    asyncio.run(run())


async def status_of(channel: aio.Channel, method: str = "/fed.v1.DeviceService/Hello") -> grpc.StatusCode:
    """How a call with an empty request ends."""
    async with channel:
        with pytest.raises(aio.AioRpcError) as caught:
            await channel.unary_unary(method)(b"", timeout=20.0)
        return caught.value.code()


def test_a_run_over_tls_gives_the_models_of_the_simulation(tmp_path: Path) -> None:
    async def story(found: World) -> None:
        await start(found.coordinator)
        devices = [await found.device(f"d{number}") for number in range(DEVICES)]
        channels = [device.channel() for device in devices]
        await asyncio.gather(
            *(
                serve(device.link(channel), honest(number))
                for number, (device, channel) in enumerate(zip(devices, channels, strict=True))
            )
        )
        await asyncio.gather(*(channel.close() for channel in channels))
        assert same_models(found.coordinator.runs["toy"].engine.state.models, expected())
        assert [len(lines_of(found.state, event)) for event in (Event.RUN_STARTED, Event.RUN_ENDED)] == [1, 1]

    play(story, tmp_path / "s")


# -- strangers ----------------------------------------------------------------------------------------------


def test_strangers_get_nothing(tmp_path: Path) -> None:
    """No certificate, another authority's, plain text: TLS ends before any call."""

    async def story(found: World) -> None:
        address, roots = found.listeners.address, found.keeper.authority.bundle
        stranger = trustme.CA().issue_cert("d0.example")
        key = key_from_pem(stranger.private_key_pem.bytes())
        certificate = stranger.cert_chain_pems[0].bytes()
        async with world(tmp_path / "other") as other:
            neighbour = await other.device("d0")
        for channel in (
            channel_of(address, roots),
            channel_of(address, roots, key, certificate),
            channel_of(address, roots, neighbour.key, neighbour.enrolled.certificate),  # type: ignore[union-attr]
            channel_of(address, trustme.CA().cert_pem.bytes()),
            aio.insecure_channel(address),
        ):
            assert await status_of(channel) is grpc.StatusCode.UNAVAILABLE
        assert found.coordinator.visitors == {}

    play(story, tmp_path / "s")


def test_a_certificate_of_our_authority_that_the_registry_does_not_know_is_not_enough(tmp_path: Path) -> None:
    async def story(found: World) -> None:
        known = await found.device("d0")
        root, now = found.keeper.authority.roots[found.keeper.authority.issuing], time.time()

        async def call(federation: str, name: str) -> grpc.StatusCode:
            key = new_key()
            made = issuing.device(root.key, root.certificate, key.public_key(), federation, name, now)
            pem = made.public_bytes(Encoding.PEM)
            return await status_of(
                channel_of(found.listeners.address, found.keeper.authority.bundle, key, pem)
            )

        assert await call("clinic", "nobody") is grpc.StatusCode.UNAUTHENTICATED
        assert await call("clinic", "d0") is grpc.StatusCode.UNAUTHENTICATED
        assert await call("elsewhere", "d0") is grpc.StatusCode.UNAUTHENTICATED
        server = found.keeper.authority.server  # it is for serving: TLS does not take it from a caller
        channel = channel_of(known.address, found.keeper.authority.bundle, server.key, server.pem)
        assert await status_of(channel) is grpc.StatusCode.UNAVAILABLE
        assert len(lines_of(found.state, Event.DENIED)) == 2  # d0 is noted once a minute
        async with known.channel() as channel:
            await known.link(channel).hello(Hello("toy"))

    play(story, tmp_path / "s")


def test_a_certificate_that_ends_while_its_connection_lasts_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(found: World) -> None:
        device = await found.device("d0")
        async with device.channel() as channel:
            await device.link(channel).hello(Hello("toy"))
            later = time.time() + 2 * issuing.DEVICE_LIFE
            monkeypatch.setattr("time.time", lambda: later)
            error, fault = await refused(device.link(channel).hello(Hello("toy")))
        assert (error.code(), fault.code) == (grpc.StatusCode.UNAUTHENTICATED, "unauthenticated")
        assert "expired" in fault.message

    play(story, tmp_path / "s")


def test_a_device_that_is_not_approved_is_refused(tmp_path: Path) -> None:
    async def story(found: World) -> None:
        device = await found.device("d0")
        (known,) = found.keeper.known()
        found.keeper.learn(replace(known, standing=DeviceStanding.PENDING))
        async with device.channel() as channel:
            error, fault = await refused(device.link(channel).hello(Hello("toy")))
        assert error.code() is grpc.StatusCode.UNAUTHENTICATED
        assert "waits for approval" in fault.message

    play(story, tmp_path / "s")


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_3, ssl.TLSVersion.TLSv1_2])
def test_tls_1_3_is_spoken_and_1_2_is_refused(tmp_path: Path, version: ssl.TLSVersion) -> None:
    """By Python's own TLS, with a call of HTTP/2 written by hand."""

    async def story(found: World) -> None:
        device = await found.device("d0")
        assert device.enrolled is not None
        context = ssl.create_default_context(cadata=device.enrolled.authorities.decode())
        context.maximum_version = version
        context.set_alpn_protocols(["h2"])
        chain = tmp_path / "chain.pem"
        chain.write_bytes(key_to_pem(device.key) + device.enrolled.certificate)
        context.load_cert_chain(chain)
        host, _, port = found.listeners.address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port), ssl=context)
        spoken = writer.get_extra_info("ssl_object").version()
        writer.write(call_by_hand("/grpc.health.v1.Health/Check"))
        answer = b""
        while b"grpc-status" not in answer:
            answer += await asyncio.wait_for(reader.read(65536), 10.0)
        writer.close()
        if version is ssl.TLSVersion.TLSv1_3:
            assert (spoken, b"the connection is not TLS" in answer) == ("TLSv1.3", False)
        else:
            assert (spoken, b"the connection is not TLS 1.3" in answer) == ("TLSv1.2", True)

    play(story, tmp_path / "s")


def call_by_hand(path: str) -> bytes:
    """The frames of a call with an empty request (RFC 9113, RFC 7541 without compression)."""

    def frame(kind: int, flags: int, stream: int, body: bytes) -> bytes:
        return struct.pack("!I", len(body))[1:] + struct.pack("!BBI", kind, flags, stream) + body

    def text(value: str) -> bytes:
        return bytes([len(value)]) + value.encode()

    headers = b"\x83\x87\x04" + text(path) + b"\x01" + text("shoal") + b"\x0f\x10" + text("application/grpc")
    headers += b"\x00" + text("te") + text("trailers")
    settings, request = frame(4, 0, 0, b""), frame(0, 1, 1, b"\0" * 5)
    return b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + settings + frame(1, 4, 1, headers) + request


# -- roles --------------------------------------------------------------------------------------------------


def test_every_call_is_denied_to_every_role_that_has_no_leave_for_it(tmp_path: Path) -> None:
    async def story(found: World) -> None:
        tried = 0
        for role in Role:
            device = await found.device(role.value, role=role)
            async with device.channel() as channel:
                for method, roles in ALLOWED.items():
                    if method.endswith("/Watch") and role in roles:
                        continue  # it would go on for ever
                    said = await _said(channel, method)
                    if role in roles:
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


async def _said(channel: aio.Channel, method: str) -> str:
    try:
        await channel.unary_unary(method)(b"", timeout=20.0)
    except aio.AioRpcError as error:
        return f"{error.code().name} {error.details()}"
    return "OK"


@pytest.mark.parametrize("method", ["/fed.v1.DeviceService/Report", "/grpc.health.v1.Health/Check"])
def test_a_server_with_a_call_that_nobody_thought_of_does_not_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    async def run() -> None:
        async with world(tmp_path / "s"):
            raise AssertionError("it started")

    monkeypatch.setattr(permissions, "ALLOWED", {name: ALLOWED[name] for name in ALLOWED if name != method})
    with pytest.raises(IllegalEvent, match=f"nobody said who may call {method}"):
        asyncio.run(run())
    monkeypatch.setattr(permissions, "ALLOWED", {**ALLOWED, "/x.Y/Z": frozenset()})
    with pytest.raises(IllegalEvent, match=r"there is no /x\.Y/Z"):
        asyncio.run(run())


def test_what_has_no_row_is_denied() -> None:
    for role in Role:
        with pytest.raises(Exception, match="may not call Anything"):
            permissions.check_allowed(role, "/fed.v1.NewService/Anything")


def test_neither_port_knows_what_operators_call(tmp_path: Path) -> None:
    from fedcore._pb.fed.v1 import authority_service_pb2, operator_service_pb2

    methods = [
        f"/{service.full_name}/{method.name}"
        for module in (authority_service_pb2, operator_service_pb2)
        for service in module.DESCRIPTOR.services_by_name.values()
        for method in service.methods
    ]

    async def story(found: World) -> None:
        device = await found.device("d0")
        async with device.channel() as channel:
            for method in methods:
                assert (await _said(channel, method)).startswith("UNIMPLEMENTED"), method
        pin = Peer(await found.token(), "d1")
        async with pin.enrolling_channel() as channel:
            for method in [*methods, *ALLOWED]:
                assert (await _said(channel, method)).startswith("UNIMPLEMENTED"), method

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


def test_who_only_infers_is_placed_so_many_times_a_day(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also across a restart: the count is on disk."""

    async def place(*args: Any) -> Placement:
        return Placement("toy", ClusterAssignment("c", 0.0, "", 0.0, 1.0, abstained=True), None)

    monkeypatch.setattr(placing, "place", place)

    async def first() -> Peer:
        async with world(tmp_path / "s") as found:
            device, trainer = await found.device("n", role=Role.INFER_ONLY), await found.device("t")
            async with device.channel() as channel, trainer.channel() as other:
                for _ in range(9):
                    await device.link(channel).place("", None)
                for _ in range(12):
                    await trainer.link(other).place("", None)
            return device

    async def second(device: Peer) -> None:
        async with world(tmp_path / "s") as found:
            device.address = found.listeners.address
            async with device.channel() as channel:
                await device.link(channel).place("", None)
                error, fault = await refused(device.link(channel).place("", None))
                assert (error.code(), fault.code) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "too-often")
                tomorrow = time.time() + issuing.DAY
                monkeypatch.setattr("time.time", lambda: tomorrow)
                await device.link(channel).place("", None)

    asyncio.run(second(asyncio.run(first())))


# -- objects ------------------------------------------------------------------------------------------------


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
        for metadata in (thief.link.metadata, mine.link.metadata):  # type: ignore[attr-defined]
            with pytest.raises(aio.AioRpcError) as caught:
                await stub.Fetch(request, metadata=metadata).read()
            assert caught.value.code() is grpc.StatusCode.NOT_FOUND
        uploaded = payload.weights()[0].blob
        assert await mine.link.uploaded(uploaded) == uploaded.size
        assert await thief.link.uploaded(uploaded) == 0
        error, _ = await refused(thief.link.upload(uploaded, 0, pieces_of(b"x")))
        assert error.code() is grpc.StatusCode.PERMISSION_DENIED  # it has no task
        assert not await thief.link.alive(task.run, task.round, task.attempt)
        receipt = await thief.sendreport if hasattr(thief, "send_report") else None
        assert receipt is None
        receipt = await thief.link.report(report)
        assert receipt.outcome is Outcome.LATE  # nobody waits for a report of this device
        thief.link._session = mine.link._session  # type: ignore[attr-defined]
        error, fault = await refused(thief.link.next_task(0.0))
        assert fault.code == "say-hello"
        assert (await mine.link.report(report)).outcome.value == "accepted"
        await asyncio.gather(*(channel.close() for channel in channels))

    play(story, tmp_path / "s")


# -- revocation ---------------------------------------------------------------------------------------------


def test_a_revoked_device_is_refused_at_its_next_call_and_its_lease_is_withdrawn(tmp_path: Path) -> None:
    async def story(found: World) -> None:
        await start(found.coordinator)
        peers = [await found.device(f"d{number}") for number in range(DEVICES)]
        channels = [peer.channel() for peer in peers]
        hands = [
            await Hands(peer.link(channel)).hello() for peer, channel in zip(peers, channels, strict=True)
        ]
        for each in hands:
            await each.link.next_task(0.0)
        assert (await hands[0].do(await hands[0].task(), honest(0))).outcome.value == "accepted"
        await hands[1].task()
        run = found.coordinator.runs["toy"]
        assert run.lease("d1") is not None

        ended = await found.office.revoke("d0", "stolen")
        assert ended.counted == (("toy", 1),)
        began = time.monotonic()
        await found.office.revoke("d1", "stolen")
        error, fault = await refused(hands[1].link.next_task(0.0))
        assert time.monotonic() - began < 1.0
        assert (error.code(), fault.code) == (grpc.StatusCode.PERMISSION_DENIED, "revoked")
        assert run.lease("d1") is None
        assert not run.present("d1")
        _, fault = await refused(peers[1].renew(new_key()))
        assert fault.code == "revoked"
        async with peers[1].channel() as anew:  # a new connection changes nothing
            _, fault = await refused(peers[1].link(anew).hello(Hello("toy")))
            assert fault.code == "revoked"
        log = [
            line.text
            for line in await found.coordinator.storage(Store.log_lines, "toy", 0)
            if line.device == "d0"
        ]
        assert log == ["revoked; its updates that count, by round: 1"]
        assert [line["facts"]["device"] for line in lines_of(found.state, Event.REVOKED)] == ["d0", "d1"]
        await hands[2].link.next_task(0.0)  # the others go on
        await asyncio.gather(*(channel.close() for channel in channels))

    play(story, tmp_path / "s")


def test_revocation_cuts_a_download_and_a_long_poll(tmp_path: Path) -> None:
    large = {"w": np.zeros(8 << 20, np.float32)}  # 32 MiB: more than any window holds

    async def story(found: World) -> None:
        desk = Desk(found.coordinator)
        shelf = Hands(desk)  # type: ignore[arg-type]
        model = shelf.keep(large)
        await desk.upload(model.blob, 0, pieces_of(shelf.blobs[model.blob.sha256], 1 << 20))
        await desk.start_run(spec(policy=RoundPolicy(devices=1, minimum=1)), model)
        devices = [await found.device(name) for name in ("d0", "d1")]
        async with devices[0].channel() as first, devices[1].channel() as second:
            loading, waiting = Hands(devices[0].link(first)), Hands(devices[1].link(second))
            task = await (await loading.hello()).task()
            pieces = loading.link.fetch(task.payload.weights()[0].blob, 0)
            assert len(await anext(pieces)) > 0
            await waiting.hello()
            poll = asyncio.create_task(waiting.link.next_task(20.0))
            await asyncio.sleep(0.5)  # the server has filled the window, and waits for the reader

            began = time.monotonic()
            assert [(await found.office.revoke(name, "")).cut for name in ("d0", "d1")] == [1, 1]
            with pytest.raises(aio.AioRpcError) as caught:
                await poll
            assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED
            with pytest.raises(aio.AioRpcError) as caught:
                [piece async for piece in pieces]
            assert time.monotonic() - began < 1.0
            assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED
            trailing: dict[str, Any] = dict(caught.value.trailing_metadata() or ())  # type: ignore[arg-type]
            assert Fault.FromString(trailing["shoal-fault-bin"]).code == "revoked"

    play(story, tmp_path / "s")


def test_a_caller_that_goes_away_is_not_a_revoked_one(tmp_path: Path) -> None:
    async def story(found: World) -> None:
        device = await found.device("d0")
        async with device.channel() as channel:
            hands = await Hands(device.link(channel)).hello()
            poll = asyncio.create_task(hands.link.next_task(20.0))
            await asyncio.sleep(0.2)
            poll.cancel()
            await asyncio.wait([poll])
            assert await hands.link.next_task(0.0) is not None
        assert found.keeper.cut("d0") == 0

    play(story, tmp_path / "s")
