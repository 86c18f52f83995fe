"""Over real TLS: each call is opened and never sent, on both ports, by everyone, and others do not notice."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest

from fedserver.authority.permissions import ALLOWED
from fedserver.coordinator.operator_api import OperatorApi
from fedserver.rpc.admission import attention, connections
from shoal.core.engine import timeouts
from shoal.core.exchange.link import Hello
from shoal.core.identity.certificates import key_to_pem
from shoal.core.identity.joining import IssuedIdentity, Role
from tests.server.authority.peers import Peer, World, play
from tests.server.http2 import Caller
from tests.waiting import HANG, until

CALLS = sorted(ALLOWED)
JOINING = [f"/fed.v1.EnrollmentService/{name}" for name in ("Challenge", "Join", "Return")]
STREAMS = 32


def context_of(device: Peer | None, tmp_path: Path) -> ssl.SSLContext:
    """What a caller shows in TLS. It does not check the server."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    if device is not None:
        assert device.issued is not None
        chain = tmp_path / f"{device.name}.pem"
        chain.write_bytes(key_to_pem(device.key) + device.issued.certificate)
        context.load_cert_chain(chain)
    return context


@asynccontextmanager
async def silent(
    address: str, context: ssl.SSLContext, paths: list[str], number: int
) -> AsyncIterator[list[Caller]]:
    """This many connections, each with as many open calls as one may have, over all paths in turn."""
    callers = [await Caller.connect(address, context) for _ in range(number)]
    try:
        for caller in callers:
            await caller.open(paths[at % len(paths)] for at in range(STREAMS))
        yield callers
    finally:
        for caller in callers:
            caller.close()


async def works(device: Peer) -> None:
    async with device.channel() as channel:
        link = device.link(channel)
        async with asyncio.timeout(HANG):
            await link.hello(Hello("toy"))
            await link.next_task(0.0)


@pytest.mark.parametrize("who", ["train", "infer-only", "observer", "revoked"])
def test_calls_that_are_opened_and_never_sent_take_no_place_of_another_device(
    tmp_path: Path, who: str
) -> None:
    async def story(found: World) -> None:
        honest = await found.device("honest")
        await works(honest)
        role = Role.TRAIN if who == "revoked" else Role(who)
        hostile = await found.device("hostile", role=role)
        if who == "revoked":
            await found.api.revoke("hostile", "lost")
        async with silent(found.listeners.address, context_of(hostile, tmp_path), CALLS, 70) as callers:
            await works(honest)
            late = await found.device("late")  # joining goes on, too
            await works(late)
            (notice,) = (await OperatorApi(found.coordinator).status()).notices
            assert notice.startswith("the devices' port: ")
            assert "127.0.0.1" in notice
            if who == "revoked":  # nothing of it is left: every call was refused at its headers
                await until(lambda: all(caller.closed for caller in callers))

    play(story, tmp_path / "s")


def test_a_stranger_who_opens_calls_at_the_joining_port_keeps_no_device_from_joining(tmp_path: Path) -> None:
    async def story(found: World) -> None:
        working = await found.device("working")
        address, context = found.listeners.join_address, context_of(None, tmp_path)
        async with silent(address, context, JOINING, 70):
            assert isinstance(await Peer(await found.token(), "late").join(), IssuedIdentity)
            await works(working)
            (notice,) = (await OperatorApi(found.coordinator).status()).notices
            assert notice.startswith("the joining port: ")

    play(story, tmp_path / "s")


def test_calls_for_the_health_of_the_server_take_places_of_their_device_too(tmp_path: Path) -> None:
    async def story(found: World) -> None:
        watcher = await found.device("watcher", role=Role.OBSERVER)
        paths = ["/grpc.health.v1.Health/Check"]
        async with silent(found.listeners.address, context_of(watcher, tmp_path), paths, 1) as (caller,):
            await until(lambda: b"calls in progress" in caller.received)
            await works(await found.device("honest"))

    play(story, tmp_path / "s")


def test_a_connection_without_a_call_is_served_for_nothing_and_hinders_no_device(tmp_path: Path) -> None:
    """Connections of strangers at both ports: without TLS, and with TLS but without a certificate."""

    async def story(found: World) -> None:
        working = await found.device("working")
        held = []
        for address in (found.listeners.address, found.listeners.join_address):
            host, _, port = address.rpartition(":")
            held += [await asyncio.open_connection(host, int(port)) for _ in range(60)]
        await works(working)
        await works(await found.device("late"))
        for _, writer in held:
            writer.transport.abort()

    play(story, tmp_path / "s")


def test_a_connection_that_brings_only_refused_calls_is_closed_and_no_other(tmp_path: Path) -> None:
    async def story(found: World) -> None:
        honest, hostile = await found.device("honest"), await found.device("hostile")
        await found.api.revoke("hostile", "lost")
        async with honest.channel() as channel:
            link = honest.link(channel)
            await link.hello(Hello("toy"))
            waiting = asyncio.create_task(link.next_task(HANG))
            await until(lambda: found.coordinator.visitors["honest"].polling == 1)
            caller = await Caller.connect(found.listeners.address, context_of(hostile, tmp_path))
            await caller.open([CALLS[0]] * connections.MAX_REFUSED)
            await until(lambda: caller.closed)
            assert not waiting.done()
            found.coordinator.stop_serving()
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await waiting
            assert "stopping" in (caught.value.details() or "")  # so its connection was there to the end

    play(story, tmp_path / "s")


def test_a_call_without_its_message_ends_after_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timeouts, "FIRST_MESSAGE", 0.05)

    async def story(found: World) -> None:
        caller = await Caller.connect(found.listeners.join_address, context_of(None, tmp_path))
        await caller.open(JOINING[:1])
        await until(lambda: b"did not arrive in time" in caller.received)
        caller.close()

    play(story, tmp_path / "s")


def test_what_is_notable_is_a_sentence_for_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    port = attention.Attention("the port")
    for _ in range(attention.NOTABLE - 1):
        port.refused("10.0.0.7")
    assert port.notices() == ()
    port.refused("10.0.0.8")
    assert "60 calls were refused in a minute, 59 of them from 10.0.0.7" in port.notices()[0]
    now += 61.0
    assert port.notices()
    now += 60.0
    assert port.notices() == ()
