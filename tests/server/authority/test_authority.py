"""The server's key: made once, whole after any crash, for one user's eyes; and its change."""

import asyncio
import shutil
import stat
from pathlib import Path

import grpc
import pytest
from grpc import aio

from fedserver.authority import setup
from fedserver.authority.authority import FOLDER, SERVER, Authority
from fedserver.store.identities.audit import Event
from shoal.core.errors import ConfigError, StorageFault
from shoal.core.exchange.link import Hello
from shoal.core.identity.certificates import pin_of
from shoal.core.identity.succession import leads
from shoal.shell import disk
from tests.server.authority.peers import World, lines_of, play, world

HOSTS = ("shoal.example.org", "10.0.0.7", "::1")


def make(state: Path) -> setup.Made:
    return setup.init(state, HOSTS, None, None, "clinic")


def test_init_makes_all_of_it_once(tmp_path: Path) -> None:
    first, key = make(tmp_path / "s"), tmp_path / "s" / FOLDER / SERVER
    before = key.read_bytes()
    again = make(tmp_path / "s")
    assert key.read_bytes() == before
    assert (first.made, again.made) == (("fedserver.yaml", "authority/server.pem"), ())
    assert (again.federation, again.hosts) == ("clinic", HOSTS)
    assert (again.listen, again.join_listen) == ("0.0.0.0:50051", "0.0.0.0:50052")
    assert len(lines_of(tmp_path / "s", Event.INIT)) == 1
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert stat.S_IMODE(key.parent.stat().st_mode) == 0o700


def test_a_server_for_this_machine_alone_listens_to_this_machine_alone(tmp_path: Path) -> None:
    made = setup.init(tmp_path / "s", ("127.0.0.1", "localhost"), None, None, "clinic")
    assert (made.listen, made.join_listen) == ("127.0.0.1:50051", "127.0.0.1:50052")


@pytest.mark.parametrize("step", range(3))
def test_a_crash_at_any_write_is_repaired_by_init(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    left, real = step, disk.move

    def dying(source: Path, target: Path) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise KeyboardInterrupt
        real(source, target)

    with monkeypatch.context() as patched:
        patched.setattr(disk, "move", dying)
        try:
            make(tmp_path / "s")
        except KeyboardInterrupt:
            assert step < 2
        else:
            assert step == 2
    make(tmp_path / "s")
    assert Authority.open(tmp_path / "s").federation == "clinic"


def test_init_says_what_it_needs(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no --host"):
        setup.init(tmp_path / "s", (), None, None, "clinic")
    with pytest.raises(ConfigError, match="neither a host name nor an address"):
        setup.init(tmp_path / "s", ("bad host",), None, None, "clinic")
    with pytest.raises(ConfigError, match="not a name for a federation"):
        setup.init(tmp_path / "s", HOSTS, None, None, "a b")
    with pytest.raises(ConfigError, match=r"--listen: 99999 in '0.0.0.0:99999' is not a port"):
        setup.init(tmp_path / "s", HOSTS, "0.0.0.0:99999", None, "clinic")
    with pytest.raises(ConfigError, match="--join-listen: '50062' is not HOST:PORT"):
        setup.init(tmp_path / "s", HOSTS, None, "50062", "clinic")
    assert not (tmp_path / "s").exists()


def test_a_key_that_others_may_read_is_refused(tmp_path: Path) -> None:
    make(tmp_path / "s")
    path = tmp_path / "s" / FOLDER / SERVER
    for mode in (0o640, 0o604, 0o660, 0o700):
        path.chmod(mode)
        with pytest.raises(ConfigError, match=f"{mode:04o}") as raised:
            Authority.open(tmp_path / "s")
        assert raised.value.hint == f"chmod 600 {path}"
    path.chmod(0o400)
    Authority.open(tmp_path / "s")


def test_a_key_that_is_damaged_or_gone_is_never_made_again_under_devices(tmp_path: Path) -> None:
    async def story(found: World) -> None:
        await found.device("d0")

    play(story, tmp_path / "s")
    make(tmp_path / "other")
    path, other = tmp_path / "s" / FOLDER / SERVER, (tmp_path / "other" / FOLDER / SERVER).read_bytes()
    good = path.read_bytes()
    start = b"-----BEGIN CERT"
    strange = good[: good.index(start)] + other[other.index(start) :]
    for wrong in (b"", good[:200], good[: good.index(start)], b"\xff" * 99, strange):
        path.write_bytes(wrong)
        for attempt in (make, Authority.open):
            with pytest.raises(StorageFault) as raised:
                attempt(tmp_path / "s")
            assert "from a backup" in raised.value.hint
    shutil.rmtree(path.parent)
    with pytest.raises(StorageFault, match="devices have joined under it"):
        make(tmp_path / "s")
    with pytest.raises(ConfigError, match="has no key"):
        Authority.open(tmp_path / "s")


def test_a_device_follows_the_key_and_open_connections_last(tmp_path: Path) -> None:
    async def story(found: World) -> None:
        device, former = await found.device("d0"), found.peers.authority.pin
        async with device.channel() as before:
            await device.link(before).hello(Hello("toy"))
            rotated = await found.api.rotate()
            assert rotated.pin == found.peers.authority.pin != former
            await device.link(before).hello(Hello("toy"))
        async with device.channel() as after:
            with pytest.raises(aio.AioRpcError) as caught:
                await device.link(after).hello(Hello("toy"))
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
            assert "CERTIFICATE_VERIFY_FAILED" in (caught.value.details() or "")
        await device.come_back()
        assert device.string.pin == former  # the joining port has proved the new one
        async with device.channel() as channel:
            await device.link(channel).hello(Hello("toy"))
        assert [line["facts"] for line in lines_of(found.state, Event.AUTHORITY_ROTATED)] == [
            {"former": former.hex()}
        ]

    play(story, tmp_path / "s")


def test_a_join_string_from_before_a_change_is_good_after_it_and_after_a_restart(tmp_path: Path) -> None:
    async def story() -> None:
        async with world(tmp_path / "s") as found:
            join = await found.token()
            await found.api.rotate()
            await found.api.rotate()
        async with world(tmp_path / "s") as found:
            shown = found.peers.authority.pair.certificate
            assert leads(join.pin, shown)
            assert pin_of(shown.public_key()) != join.pin

    asyncio.run(story())


def test_a_change_that_dies_leaves_the_former_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(tmp_path / "s")
    found = Authority.open(tmp_path / "s")

    def dies(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(disk, "move", dies)
        with pytest.raises(KeyboardInterrupt):
            found.rotate()
    assert Authority.open(tmp_path / "s").pin == found.pin
