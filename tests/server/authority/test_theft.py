"""A drill over real TLS: a backup with the authority's key is stolen, and the documented cure follows."""

import asyncio
import shutil
import time
from dataclasses import replace
from pathlib import Path

import grpc
import pytest
from cryptography.hazmat.primitives.serialization import Encoding
from grpc import aio

from fedserver.authority import issuing
from fedserver.authority.roots import FOLDER, Authority
from shoal.core.exchange.link import Hello
from shoal.core.identity.certificates import new_key
from shoal.core.identity.joining import IssuedIdentity
from tests.server.authority.peers import Peer, World, play, refused

HOSTS = ("127.0.0.1",)


def forged(stolen: Path, device: Peer, serial: str, patched: pytest.MonkeyPatch) -> Peer:
    """A thief as `device`: a key of his own, and a certificate with the device's serial."""
    authority, key = Authority.open(stolen, HOSTS), new_key()
    root = authority.roots[authority.issuing]
    patched.setattr(issuing.x509, "random_serial_number", lambda: int(serial, 16))
    made = issuing.device(root.key, root.certificate, key.public_key(), "clinic", device.name, time.time())
    thief = Peer(device.string, device.name, device.address, key)
    pem = made.public_bytes(Encoding.PEM)
    assert device.issued is not None
    thief.issued = IssuedIdentity(
        pem, device.issued.authorities, "clinic", device.name, device.issued.role, device.address, 0.0
    )
    return thief


async def hello(peer: Peer) -> None:
    async with peer.channel() as channel:
        await peer.link(channel).hello(Hello("toy"))


async def renew(device: Peer) -> None:
    key = new_key()
    device.go_on(key, await device.renew(key))
    await hello(device)


async def assert_is_out(thief: Peer) -> None:
    """No way in is open to the thief: no call, no renewal, no return by the key."""
    for attempt in (hello, lambda peer: peer.renew(new_key())):
        error, fault = await refused(attempt(thief))
        assert (error.code(), fault.code) == (grpc.StatusCode.UNAUTHENTICATED, "unauthenticated")
    error, _ = await refused(thief.rejoin(new_key()))
    assert error.code() is grpc.StatusCode.PERMISSION_DENIED


def test_a_thief_with_a_stolen_backup_is_out_and_stays_out_and_the_device_is_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(found: World) -> None:
        device = await found.device("d0")
        await hello(device)
        await asyncio.to_thread(shutil.copytree, found.state / FOLDER, tmp_path / "backup" / FOLDER)
        (known,) = found.peers.known()
        with monkeypatch.context() as patched:
            thief = forged(tmp_path / "backup", device, known.certificates[0].serial, patched)
        await assert_is_out(thief)
        await hello(device)

        (old,) = await found.api.roots()
        new = await found.api.add_root()
        await renew(device)
        await found.api.use_root(new.name, False)
        await renew(device)
        assert thief.issued is not None
        thief.issued = replace(thief.issued, authorities=found.peers.authority.bundle)
        await assert_is_out(thief)
        await found.api.drop_root(old.name, False)
        async with thief.channel() as channel:
            with pytest.raises(aio.AioRpcError) as caught:
                await thief.link(channel).hello(Hello("toy"))
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        await hello(device)
        (known,) = found.peers.known()
        assert {each.root for each in known.certificates} == {new.name}

    play(story, tmp_path / "s")
