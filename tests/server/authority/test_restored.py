"""A server restored from an old backup: whom it has forgotten waits, and who was revoked stays so."""

import asyncio
import shutil
from pathlib import Path

import grpc

from fedserver.store.backup import backup, restore
from fedserver.store.identities.audit import Event
from fedserver.store.identities.dead_keys import beside
from fedserver.store.identities.records import DeviceStanding
from fedserver.store.store import Store
from shoal.core.exchange.link import Hello
from shoal.core.identity.certificates import new_key, request
from shoal.core.identity.joining import IssuedIdentity, OperatorRole, Pending, Role
from tests.server.authority.peers import Peer, World, lines_of, moved, play, refused, world


def restored(tmp_path: Path) -> Path:
    """The state of the backup, where the lost one was; the file with the dead keys is still there."""
    shutil.rmtree(tmp_path / "s")
    restore(tmp_path / "backup", tmp_path / "s")
    return tmp_path / "s"


async def hello(peer: Peer, found: World) -> None:
    peer.address = found.listeners.address
    peer.string = moved(peer.string, found)
    async with peer.channel() as channel:
        await peer.link(channel).hello(Hello("toy"))


def test_all_that_was_forgotten_waits_for_one_approval(tmp_path: Path) -> None:
    peers = dict[str, Peer]()

    async def until_the_loss(found: World) -> None:
        peers["stays"], peers["changes"] = await found.device("stays"), await found.device("changes")
        await asyncio.to_thread(backup, tmp_path / "s", tmp_path / "backup")
        peers["late"] = await found.device("late", role=Role.INFER_ONLY)
        await peers["changes"].come_back(new_key())

    async def after(found: World) -> None:
        await hello(peers["stays"], found)
        for name in ("changes", "late"):
            error, fault = await refused(hello(peers[name], found))
            assert (error.code(), fault.code) == (grpc.StatusCode.UNAUTHENTICATED, "unauthenticated")
            assert isinstance(await peers[name].come_back(), Pending)
            assert isinstance(await peers[name].come_back(), Pending)
        assert "2 devices wait for approval, changes, late" in found.peers.notices()[0]
        for each in found.peers.known():
            if each.waits:
                await found.api.approve(each.device)
        for name in ("changes", "late"):
            assert isinstance(await peers[name].come_back(), IssuedIdentity)
            await hello(peers[name], found)
        assert found.peers.role("late") is Role.INFER_ONLY
        assert len(lines_of(found.state, Event.RETURNED)) == 2

    play(until_the_loss, tmp_path / "s")
    play(after, restored(tmp_path))


def test_who_was_revoked_or_replaced_since_the_backup_stays_out(tmp_path: Path) -> None:
    peers = dict[str, Peer]()

    async def until_the_loss(found: World) -> None:
        for name in ("stolen", "changed"):
            peers[name] = await found.device(name)
        await found.api.operators.add("anna", OperatorRole.VIEWER, request(new_key()))
        await asyncio.to_thread(backup, tmp_path / "s", tmp_path / "backup")
        await found.api.revoke("stolen", "")
        await found.api.operators.revoke("anna", "")
        async with world(tmp_path / "elsewhere"):  # another server has a file of its own
            pass
        peers["former"] = Peer(peers["changed"].string, "changed", key=peers["changed"].key)
        peers["former"].issued = peers["changed"].issued
        await peers["changed"].come_back(new_key())

    async def after(found: World) -> None:
        peers["changed"].string = moved(peers["changed"].string, found)
        for name in ("stolen", "former"):
            _, fault = await refused(hello(peers[name], found))
            assert fault.code == "revoked"
            _, fault = await refused(peers[name].come_back())
            assert fault.code == "revoked"
        (anna,) = found.api.operators.known()
        assert anna.revoked
        assert isinstance(await peers["changed"].come_back(), Pending)  # its key is not known here
        await found.api.approve("changed")
        await peers["changed"].come_back()
        await hello(peers["changed"], found)
        lines = lines_of(found.state, Event.REVOKED)
        assert {line["facts"]["device"] for line in lines} == {"stolen", "changed"}
        assert {line["facts"]["reason"] for line in lines} == {"revoked before this state was restored"}

    play(until_the_loss, tmp_path / "s")
    assert not beside(tmp_path / "elsewhere").exists()
    play(after, restored(tmp_path))


def test_open_join_strings_end_with_a_restore(tmp_path: Path) -> None:
    joins = list[Peer]()

    async def until_the_loss(found: World) -> None:
        joins.append(Peer(await found.token(), "d0"))
        await asyncio.to_thread(backup, tmp_path / "s", tmp_path / "backup")

    async def after(found: World) -> None:
        joins[0].string = moved(joins[0].string, found)
        _, fault = await refused(joins[0].join())
        assert fault.code == "refused"

    play(until_the_loss, tmp_path / "s")
    play(after, restored(tmp_path))


def test_a_file_that_cannot_be_written_is_said_and_made_good_later(tmp_path: Path) -> None:
    async def story(found: World) -> None:
        await found.device("d0")
        beside(tmp_path / "s").mkdir()  # no file can be written
        await found.api.revoke("d0", "")
        (notice,) = found.coordinator.storage.identities.dead.notices()
        assert "kept in the state folder only" in notice
        assert notice in found.coordinator.notices()

    play(story, tmp_path / "s")
    assert beside(tmp_path / "s") == tmp_path / "s.revoked" / "keys"
    store = Store(tmp_path / "s")
    try:
        (known,) = store.identities.registry.all()
        assert known.standing is DeviceStanding.REVOKED
        assert store.identities.dead.notices() == ()
        assert beside(tmp_path / "s").read_text() == f"{known.spki} d0\n"
        assert beside(tmp_path / "s").stat().st_mode & 0o777 == 0o600
    finally:
        store.close()
