"""A drill over real TLS: a backup with the server's key is stolen, and the documented cure follows."""

import asyncio
import shutil
from dataclasses import replace
from pathlib import Path

import grpc
import pytest
from grpc import aio

from fedserver.authority.authority import FOLDER, Authority
from fedserver.store.identities.audit import Event
from shoal.core.exchange.link import Hello
from shoal.core.identity.certificates import new_key
from shoal.core.identity.joining import Pending
from tests.server.authority.peers import Peer, World, lines_of, play, refused


def forged(authority: Authority, device: Peer) -> Peer:
    """A thief as `device`: a key of his own, and a certificate with the device's name."""
    thief = Peer(device.string, device.name, device.address, new_key())
    assert device.issued is not None
    pem = authority.issue("train", device.name, thief.key.public_key())
    thief.issued = replace(device.issued, certificate=pem)
    return thief


async def hello(peer: Peer) -> None:
    async with peer.channel() as channel:
        await peer.link(channel).hello(Hello("toy"))


async def assert_is_out(thief: Peer) -> None:
    error, fault = await refused(hello(thief))
    assert (error.code(), fault.code) == (grpc.StatusCode.UNAUTHENTICATED, "unauthenticated")


def test_a_thief_with_a_stolen_backup_is_out_and_stays_out_and_the_device_is_in(tmp_path: Path) -> None:
    async def story(found: World) -> None:
        device = await found.device("d0")
        await hello(device)
        await asyncio.to_thread(shutil.copytree, found.state / FOLDER, tmp_path / "backup" / FOLDER)
        stolen = Authority.open(tmp_path / "backup")
        thief = forged(stolen, device)
        await assert_is_out(thief)
        assert isinstance(await thief.come_back(), Pending)  # all that he gets is that an operator sees him
        await assert_is_out(thief)
        assert "d0: fedserver device approve" in found.peers.notices()[0]
        await found.api.refuse("d0", "no one has asked for this")
        await hello(device)

        await found.api.rotate()
        other = forged(stolen, device)
        error, _ = await refused(other.come_back())  # the key that has signed this is not the server's
        assert error.code() is grpc.StatusCode.PERMISSION_DENIED
        assert len(lines_of(found.state, Event.RETURN_REFUSED)) == 1
        other.issued = replace(other.issued, authority=found.peers.authority.pem)  # type: ignore[type-var]
        with pytest.raises(aio.AioRpcError) as caught:
            await hello(other)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE  # TLS ends it
        await device.come_back()
        await hello(device)

    play(story, tmp_path / "s")
