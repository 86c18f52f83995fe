"""Devices behind a gateway: what they get, and whom the gateway and the server believe."""

import asyncio
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc import aio

from fedserver.authority import peers
from fedserver.rpc.admission import limits
from fedserver.rpc.admission.behalf import ENTRY, MAX_CERTIFICATE
from fedserver.rpc.admission.identity import spread
from fedserver.rpc.gateway import brain, carrying
from fedserver.rpc.gateway.folder import SETTINGS, GatewayFolder
from fedserver.rpc.gateway.stream import Caller
from fedserver.rpc.tls import device_credentials
from fedserver.store.identities.records import DAY
from shoal.core.errors import ConfigError, DiskFull, Refused
from shoal.core.exchange._pb.fed.v1 import device_service_pb2 as device_pb
from shoal.core.exchange._pb.fed.v1 import gateway_service_pb2 as pb
from shoal.core.exchange._pb.fed.v1 import observer_service_pb2 as observer_pb
from shoal.core.exchange._pb.fed.v1.device_service_pb2_grpc import DeviceServiceStub
from shoal.core.exchange._pb.fed.v1.gateway_service_pb2_grpc import GatewayServiceStub
from shoal.core.exchange._pb.fed.v1.observer_service_pb2_grpc import ObserverServiceStub
from shoal.core.identity.certificates import key_to_pem, new_key, request
from shoal.core.identity.joining import Role
from tests.server.authority.peers import HOST, World, channel_of, play, refused
from tests.server.gateways import HELLO, added, behind, gateway, gateway_peer, hello, waiting_behind
from tests.server.servers import DEVICES, expected, models, start
from tests.server.toys import honest, same_models, serve
from tests.waiting import HANG, until


def test_a_run_through_a_gateway_gives_the_same_bits(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        async with gateway(await added(world, tmp_path / "gate")) as found:
            devices = [behind(await world.device(f"d{number}"), found) for number in range(DEVICES)]
            await start(world.coordinator)
            channels = [device.channel() for device in devices]
            links = [device.link(channel) for device, channel in zip(devices, channels, strict=True)]
            await asyncio.gather(*(serve(link, honest(number)) for number, link in enumerate(links)))
            for channel in channels:
                await channel.close()
        assert same_models(models(world.coordinator), expected())

    play(story, tmp_path / "s")


def test_a_refusal_reaches_the_device_as_the_server_said_it(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        async with gateway(await added(world, tmp_path / "gate")) as found:
            device = await world.device("attic")
            said = []
            for _ in range(2):
                async with device.channel() as channel:
                    call = DeviceServiceStub(channel).NextTask(device_pb.NextTaskRequest(session="old"))
                    error, fault = await refused(call)
                    said.append((error.code(), error.details(), fault))
                    observed = ObserverServiceStub(channel).ObserveRuns(observer_pb.ObserveRunsRequest())
                    error, fault = await refused(observed)  # the gateway refuses this one by itself
                    said[-1] += (error.code(), error.details(), fault)
                behind(device, found)
            assert said[0] == said[1]
            assert said[0][0] is grpc.StatusCode.FAILED_PRECONDITION

    play(story, tmp_path / "s")


def test_the_server_believes_only_gateways_about_who_calls(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        attic, cellar = await world.device("attic"), await world.device("cellar")
        assert attic.issued is not None
        await hello(cellar, **{ENTRY.replace("-", "_"): attic.issued.certificate})
        assert set(world.coordinator.visitors) == {"cellar"}
        async with cellar.channel() as channel:
            # Nothing is sent: gRPC may hide why a call is refused on whose way a message is.
            call: Any = GatewayServiceStub(channel).Carry()
            error, _ = await refused(call.read())
            assert error.code() is grpc.StatusCode.PERMISSION_DENIED
            followed: Any = GatewayServiceStub(channel).Follow(pb.FollowRequest())
            error, _ = await refused(followed.read())
            assert error.code() is grpc.StatusCode.PERMISSION_DENIED

    play(story, tmp_path / "s")


def test_a_gateway_cannot_speak_for_a_device_whose_certificate_is_not_in_the_registry(tmp_path: Path) -> None:
    """Also not with a certificate of the same name for another key, and not for itself."""

    async def story(world: World) -> None:
        folder, attic = await added(world, tmp_path / "gate"), await world.device("attic")
        stranger = world.peers.authority.issue("attic", new_key().public_key())
        async with gateway(folder) as found:
            pair = folder.pair()
            channel = channel_of(attic.address, folder.authorities(), pair.key, pair.pem)
            async with channel:
                for certificate, code in (
                    (stranger.pem, grpc.StatusCode.UNAUTHENTICATED),
                    (pair.pem, grpc.StatusCode.PERMISSION_DENIED),
                    (b"nonsense", grpc.StatusCode.UNAUTHENTICATED),
                    (b"", grpc.StatusCode.PERMISSION_DENIED),
                ):
                    stub = DeviceServiceStub(channel)
                    error, _ = await refused(stub.Hello(HELLO, metadata=((ENTRY, certificate),)))
                    assert error.code() is code
                    carried: Any = GatewayServiceStub(channel).Carry(iter([_carrying(certificate)]))
                    (answer,) = (await carried.read()).answers
                    assert answer.status in (
                        code.value[0],
                        grpc.StatusCode.UNAUTHENTICATED.value[0],
                    )
            assert not world.coordinator.visitors
            await hello(behind(attic, found))
            assert set(world.coordinator.visitors) == {"attic"}

    play(story, tmp_path / "s")


def _carrying(certificate: bytes) -> pb.CarryRequest:
    call = pb.Call(call=1, method="/fed.v1.DeviceService/Hello", message=HELLO.SerializeToString())
    return pb.CarryRequest(callers=[pb.Caller(certificate=certificate)], calls=[call])


def test_a_device_cannot_stand_in_for_a_gateway(tmp_path: Path) -> None:
    """Its certificate is not that of a server: no device goes on with the handshake."""

    async def story(world: World) -> None:
        attic, cellar = await world.device("attic"), await world.device("cellar")
        assert attic.issued is not None

        class Posing:
            shown = (key_to_pem(attic.key), attic.issued.certificate), attic.issued.authorities

        posing = aio.server()
        port = posing.add_secure_port(f"{HOST}:0", device_credentials(Posing()))
        await posing.start()
        cellar.address = f"{HOST}:{port}"
        with pytest.raises(aio.AioRpcError) as caught:
            await hello(cellar)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        await posing.stop(None)
        with pytest.raises(Refused):
            await world.api.add_gateway("bad name", (HOST,), request(new_key()))

    play(story, tmp_path / "s")


def test_a_revoked_device_is_refused_at_the_gateway_and_its_calls_are_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(world: World) -> None:
        async with gateway(await added(world, tmp_path / "gate")) as found:
            device = await world.device("attic")
            async with waiting_behind(world, device, found) as waiting:
                await world.api.revoke("attic", "stolen")
                error, fault = await refused(waiting)
                assert (error.code(), fault.code) == (grpc.StatusCode.PERMISSION_DENIED, "revoked")
            await until(lambda: found.followed._known["attic"].standing.value == "revoked")
            monkeypatch.setattr(found.brain, "ask", None)  # the server is not asked any more
            async with device.channel() as channel:
                error, fault = await refused(DeviceServiceStub(channel).Hello(HELLO))
                assert (error.code(), fault.code) == (grpc.StatusCode.PERMISSION_DENIED, "revoked")

    play(story, tmp_path / "s")


def test_a_device_that_goes_away_waits_at_the_server_no_longer(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        async with gateway(await added(world, tmp_path / "gate")) as found:
            device = await world.device("attic")
            async with waiting_behind(world, device, found) as waiting:
                waiting.cancel()
                await until(lambda: world.coordinator.visitors["attic"].polling == 0)

    play(story, tmp_path / "s")


def test_a_revoked_gateway_serves_no_one(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        async with gateway(await added(world, tmp_path / "gate")) as found:
            device = await world.device("attic")
            async with waiting_behind(world, device, found) as waiting:
                ended = await world.api.revoke("gate", "")
                assert ended.cut == 2  # it followed, and carried
                error, _ = await refused(waiting)
                assert error.code() is grpc.StatusCode.UNAVAILABLE
                await until(lambda: not found.brain.here.is_set())
                async with device.channel() as channel:
                    error, fault = await refused(DeviceServiceStub(channel).Hello(HELLO))
                assert "has no connection to the server" in fault.message

    play(story, tmp_path / "s")


def test_a_gateway_finds_the_server_again(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        async with gateway(await added(world, tmp_path / "gate")) as found:
            device = behind(await world.device("attic"), found)
            await hello(device)
            assert world.listeners.gateways is not None
            world.listeners.gateways.close()  # as a server does that stops
            await until(lambda: not found.brain.here.is_set())
            cellar = behind(await world.device("cellar"), found)  # it has joined at the server meanwhile
            with pytest.raises(aio.AioRpcError) as caught:
                await hello(cellar)
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
            world.listeners.gateways._closing.clear()
            await until(found.brain.here.is_set)
            await hello(device)
            await hello(cellar)

    play(story, tmp_path / "s")


def test_more_calls_than_fit_into_a_message_go_in_several(tmp_path: Path) -> None:
    """After a takeover, all devices of a gateway may call at one moment."""

    async def story(world: World) -> None:
        async with gateway(await added(world, tmp_path / "gate")) as found:
            devices = [Caller(b"?" * MAX_CERTIFICATE, f"ipv4:127.0.0.1:{port}") for port in range(1100)]
            asking = (found.brain.ask(each, "/fed.v1.NoService/NoCall", b"", "") for each in devices)
            answers = await asyncio.gather(*asking, return_exceptions=True)
        assert {type(each) for each in answers} == {Refused}

    play(story, tmp_path / "s")


def test_a_stream_is_replaced_before_it_has_too_many_callers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(brain, "MOST_CALLERS", 2)
    monkeypatch.setattr(carrying, "MOST_CALLERS", 2)

    async def story(world: World) -> None:
        async with gateway(await added(world, tmp_path / "gate")) as found:
            device = behind(await world.device("attic"), found)
            for _ in range(5):  # each of these is a caller, since it has a connection of its own
                await hello(device)

    play(story, tmp_path / "s")


def test_a_gateway_has_more_streams_than_a_device_may_have_calls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "CALLS", 1)

    async def story(world: World) -> None:
        async with gateway(await added(world, tmp_path / "gate")) as found:
            await hello(behind(await world.device("attic"), found))

    play(story, tmp_path / "s")


def test_a_gateway_whose_disk_is_full_goes_on_with_new_authorities(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(authorities: bytes) -> None:
        raise DiskFull("no space")

    async def story(world: World) -> None:
        folder = await added(world, tmp_path / "gate")
        monkeypatch.setattr(folder, "learn", full)
        async with gateway(folder) as found:
            await world.api.add_root()
            await until(lambda: found.shown[1] == world.peers.authority.bundle)
            await hello(behind(await world.device("attic"), found))
            assert not any(task.done() for task in found.tasks)

    play(story, tmp_path / "s")


def test_the_next_certificate_of_a_gateway_replaces_the_one_before(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        lost = GatewayFolder(tmp_path / "gate").key()
        await world.api.add_gateway("gate", (HOST,), request(lost))  # an answer that never arrived
        folder = await added(world, tmp_path / "gate")
        first = folder.pair().certificate.serial_number
        async with gateway(folder):
            await added(world, tmp_path / "gate")
            assert folder.pair().certificate.serial_number != first
        async with gateway(folder) as found:
            await hello(behind(await world.device("attic"), found))
        known = next(each for each in world.peers.known() if each.device == "gate")
        serial = f"{folder.pair().certificate.serial_number:x}"
        assert [each.serial for each in known.certificates] == [serial]
        assert (known.role, (await world.api.tokens())[0].used) == (Role.GATEWAY, 1)

    play(story, tmp_path / "s")


def test_a_gateway_listens_at_no_other_address_than_its_settings_have(tmp_path: Path) -> None:
    (tmp_path / SETTINGS).write_text("servers: ['a.example:1']\nlisten: 0.0.0.0\n")
    with pytest.raises(ConfigError, match=r"listen: '0\.0\.0\.0' is not HOST:PORT"):
        GatewayFolder(tmp_path).settings()
    (tmp_path / SETTINGS).write_text("servers: ['a.example:1']\n")
    with pytest.raises(ConfigError, match=r"99999 in '0.0.0.0:99999' is not a port"):
        GatewayFolder(tmp_path).settings("0.0.0.0:99999")


def test_settings_of_a_gateway_that_cannot_be_read_say_so(tmp_path: Path) -> None:
    for data, said in ((b"servers: [a\xff:1]", "is not text in UTF-8"), (b"\0", "is not YAML")):
        (tmp_path / SETTINGS).write_bytes(data)
        with pytest.raises(ConfigError, match=f"{SETTINGS} {said}"):
            GatewayFolder(tmp_path).settings()


def test_operators_hear_of_a_gateway_whose_certificate_ends_soon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(world: World) -> None:
        for name in ("east", "west"):
            await added(world, tmp_path / name, name)
        assert world.coordinator.notices() == ()
        monkeypatch.setattr(peers, "NOTED", 366 * DAY)
        await world.api.revoke("west", "")
        (notice,) = world.coordinator.notices()
        assert notice.startswith("the certificate of gateway east ends on 2")

    play(story, tmp_path / "s")


def test_a_device_hears_at_a_gateway_that_is_not_named_any_more_where_the_server_is(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        async with gateway(await added(world, tmp_path / "gate")) as found:
            device = behind(await world.device("attic"), found)
            assert (await hello(device)).addresses == [world.listeners.address]

    play(story, tmp_path / "s")


def test_devices_are_spread_over_the_gateways() -> None:
    gates = ("a:1", "b:1", "c:1")
    firsts = [spread(gates, f"device-{number}") for number in range(300)]
    assert {len(set(each)) for each in firsts} == {3}
    assert all(70 < sum(each[0] == gate for each in firsts) < 130 for gate in gates)
    assert spread((), "device-1") == ()


def test_a_call_that_is_canceled_in_the_message_that_brings_it_does_not_keep_the_stream(
    tmp_path: Path,
) -> None:
    async def story(world: World) -> None:
        gate, attic = await gateway_peer(world), await world.device("attic")
        assert attic.issued is not None
        message = _carrying(attic.issued.certificate)
        message.canceled.append(message.calls[0].call)
        async with gate.channel() as channel:
            carried: Any = GatewayServiceStub(channel).Carry(iter([message]))
            async with asyncio.timeout(HANG):
                assert await carried.read() is aio.EOF

    play(story, tmp_path / "s")
