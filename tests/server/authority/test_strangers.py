"""Over real TLS: whose certificate gets a caller to the authorization, and through it."""

import asyncio
import ssl
from dataclasses import replace
from pathlib import Path

import grpc
import pytest
import trustme
from cryptography.hazmat.primitives.serialization import Encoding
from grpc import aio

from fedserver.authority import issuing
from fedserver.rpc.admission.identity import network_of
from fedserver.store.identities.audit import Event
from fedserver.store.identities.records import DeviceStanding
from shoal.core.exchange.link import Hello
from shoal.core.identity.certificates import key_from_pem, key_to_pem, new_key, uri_of
from shoal.core.identity.joining import TLS_NAME
from tests.server import http2
from tests.server.authority.peers import World, channel_of, lines_of, play, refused, world
from tests.server.servers import DEVICES, expected, start
from tests.server.toys import honest, same_models, serve
from tests.waiting import HANG


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


async def status_of(channel: aio.Channel, method: str = "/fed.v1.DeviceService/Hello") -> grpc.StatusCode:
    """How a call with an empty request ends."""
    async with channel:
        with pytest.raises(aio.AioRpcError) as caught:
            await channel.unary_unary(method)(b"", timeout=HANG)
        return caught.value.code()


def test_strangers_get_nothing(tmp_path: Path) -> None:
    """No certificate, another authority's, plain text: TLS ends before any call."""

    async def story(found: World) -> None:
        address, roots = found.listeners.address, found.peers.authority.pem
        stranger = trustme.CA().issue_cert("d0.example")
        key = key_from_pem(stranger.private_key_pem.bytes())
        certificate = stranger.cert_chain_pems[0].bytes()
        async with world(tmp_path / "other") as other:
            neighbour = await other.device("d0")
        for channel in (
            channel_of(address, roots),
            channel_of(address, roots, key, certificate),
            channel_of(address, roots, neighbour.key, neighbour.issued.certificate),  # type: ignore[union-attr]
            channel_of(address, trustme.CA().cert_pem.bytes()),
            aio.insecure_channel(address),
        ):
            assert await status_of(channel) is grpc.StatusCode.UNAVAILABLE
        assert found.coordinator.visitors == {}

    play(story, tmp_path / "s")


def test_a_certificate_of_our_authority_that_the_registry_does_not_know_is_not_enough(tmp_path: Path) -> None:
    async def story(found: World) -> None:
        known = await found.device("d0")
        pair = found.peers.authority.pair

        async def call(federation: str, name: str, kind: str = "train") -> grpc.StatusCode:
            key = new_key()
            uri = uri_of(federation, kind, name)
            pem = issuing.caller(pair.key, pair.certificate, key.public_key(), uri).public_bytes(Encoding.PEM)
            return await status_of(channel_of(found.listeners.address, found.peers.authority.pem, key, pem))

        assert await call("clinic", "no-one") is grpc.StatusCode.UNAUTHENTICATED
        assert await call("clinic", "d0") is grpc.StatusCode.UNAUTHENTICATED
        assert await call("elsewhere", "d0") is grpc.StatusCode.UNAUTHENTICATED
        assert await call("clinic", "d0", "operator") is grpc.StatusCode.UNAUTHENTICATED
        channel = channel_of(known.address, pair.pem, pair.key, pair.pem)  # the server's own
        assert await status_of(channel) is grpc.StatusCode.UNAUTHENTICATED
        assert len(lines_of(found.state, Event.DENIED)) == 3  # d0 is noted once a minute
        async with known.channel() as channel:
            await known.link(channel).hello(Hello("toy"))

    play(story, tmp_path / "s")


def test_a_device_that_is_not_approved_is_refused(tmp_path: Path) -> None:
    async def story(found: World) -> None:
        device = await found.device("d0")
        (known,) = found.peers.known()
        found.peers.learn(replace(known, standing=DeviceStanding.PENDING))
        async with device.channel() as channel:
            error, fault = await refused(device.link(channel).hello(Hello("toy")))
        assert error.code() is grpc.StatusCode.UNAUTHENTICATED
        assert "waits for approval" in fault.message

    play(story, tmp_path / "s")


@pytest.mark.parametrize(
    ("peer", "network"),
    [
        ("ipv4:10.0.0.7:50051", "10.0.0.7"),
        ("ipv6:%5B::1%5D:50051", "::/64"),
        ("ipv6:[2001:db8::1:2]:50051", "2001:db8::/64"),
        ("ipv6:%5B2001:db8:0:0:ffff::9%5D:1", "2001:db8::/64"),
        ("ipv6:%5Bfe80::1%25eth0%5D:1", "fe80::/64"),
        ("ipv6:%5B::ffff:10.0.0.7%5D:1", "10.0.0.7"),
        ("unix:", ""),
    ],
)
def test_limits_go_by_the_network_of_a_caller(peer: str, network: str) -> None:
    assert network_of(peer) == network


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_3, ssl.TLSVersion.TLSv1_2])
def test_tls_1_3_is_spoken_and_1_2_is_refused(tmp_path: Path, version: ssl.TLSVersion) -> None:
    """By Python's own TLS, with a call of HTTP/2 written by hand."""

    async def story(found: World) -> None:
        device = await found.device("d0")
        assert device.issued is not None
        context = ssl.create_default_context(cadata=device.issued.authority.decode())
        context.maximum_version = version
        context.set_alpn_protocols(["h2"])
        chain = tmp_path / "chain.pem"
        chain.write_bytes(key_to_pem(device.key) + device.issued.certificate)
        context.load_cert_chain(chain)
        host, _, port = found.listeners.address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port), ssl=context, server_hostname=TLS_NAME)
        spoken = writer.get_extra_info("ssl_object").version()
        writer.write(http2.call("/grpc.health.v1.Health/Check"))
        answer = b""
        while b"grpc-status" not in answer:
            answer += await asyncio.wait_for(reader.read(65536), HANG)
        writer.close()
        if version is ssl.TLSVersion.TLSv1_3:
            assert (spoken, b"the connection is not TLS" in answer) == ("TLSv1.3", False)
        else:
            assert (spoken, b"the connection is not TLS 1.3" in answer) == ("TLSv1.2", True)

    play(story, tmp_path / "s")
