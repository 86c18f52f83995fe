"""The authority's files: made once, whole after any crash, for one user's eyes; and the change of roots."""

import asyncio
import shutil
import stat
import time
from collections.abc import Awaitable
from pathlib import Path

import grpc
import pytest
from cryptography import x509
from grpc import aio

from fedserver.authority import issuing, roots, setup
from fedserver.authority.roots import Authority
from fedserver.config import read_server
from fedserver.coordinator.visits.visitor import Visitor
from fedserver.store.identities.audit import Event
from shoal.core.engine.rounds import RoundPolicy
from shoal.core.errors import ConfigError, NotFound, Refused, ShoalError, StorageFault
from shoal.core.exchange.link import Hello, Task
from shoal.core.identity.certificates import new_key
from shoal.shell import disk
from tests.server.authority.peers import Peer, World, lines_of, play, refused, world
from tests.server.servers import start
from tests.server.wire_link import WireLink
from tests.waiting import until

HOSTS = ("shoal.example.org", "10.0.0.7", "::1")


def make(state: Path) -> setup.Made:
    return setup.init(state, HOSTS, None, None, "clinic")


def everything(state: Path) -> dict[str, bytes]:
    return {str(path.relative_to(state)): path.read_bytes() for path in state.rglob("*.*ml")} | {
        path.name: path.read_bytes() for path in (state / roots.FOLDER).iterdir()
    }


def test_init_makes_all_of_it_once(tmp_path: Path) -> None:
    first = make(tmp_path / "s")
    before = everything(tmp_path / "s")
    again = make(tmp_path / "s")
    assert everything(tmp_path / "s") == before
    assert (len(first.made), again.made) == (5, ())
    assert (again.federation, again.hosts) == ("clinic", HOSTS)
    assert (again.listen, again.join_listen) == ("0.0.0.0:50051", "0.0.0.0:50052")
    assert len(lines_of(tmp_path / "s", Event.INIT)) == 1
    for path in (tmp_path / "s" / roots.FOLDER).iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "s" / roots.FOLDER).stat().st_mode) == 0o700


def test_a_server_for_this_machine_alone_listens_to_this_machine_alone(tmp_path: Path) -> None:
    made = setup.init(tmp_path / "s", ("127.0.0.1", "localhost"), None, None, "clinic")
    assert (made.listen, made.join_listen) == ("127.0.0.1:50051", "127.0.0.1:50052")


@pytest.mark.parametrize("step", range(12))
def test_a_crash_at_any_write_is_repaired_by_init(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    state, left = tmp_path / "s", step
    real = disk.move

    def dying(source: Path, target: Path) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise KeyboardInterrupt
        real(source, target)

    with monkeypatch.context() as patched:
        patched.setattr(disk, "move", dying)
        try:
            make(state)
        except KeyboardInterrupt:
            kept = {path: path.read_bytes() for path in state.rglob("*.pem")}
        else:
            kept = {path: path.read_bytes() for path in state.rglob("*.pem")}
            assert step >= 5
    make(state)
    assert all(path.read_bytes() == data for path, data in kept.items())
    found = Authority.open(state, read_server(None, {"state": state}).hosts)
    assert len(found.roots) == 1
    assert not found.refresh()


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


@pytest.mark.parametrize("name", ["root", "server", "joining"])
def test_a_key_that_others_may_read_is_refused(tmp_path: Path, name: str) -> None:
    make(tmp_path / "s")
    (path,) = (tmp_path / "s" / roots.FOLDER).glob(f"{name}*.pem")
    for mode in (0o640, 0o604, 0o660, 0o700):
        path.chmod(mode)
        with pytest.raises(ConfigError, match=f"{mode:04o}") as raised:
            Authority.open(tmp_path / "s", HOSTS)
        assert raised.value.hint == f"chmod 600 {path}"
    path.chmod(0o400)
    Authority.open(tmp_path / "s", HOSTS)


def damaged(path: Path, folder: Path) -> list[bytes]:
    """What a disk, or someone, may have made of the server's certificate."""
    good, other = path.read_bytes(), roots.load_pair(folder / roots.JOINING)
    strange = other.key_pem + roots.load_pair(next(folder.glob("root-*"))).pem
    return [b"", good[:200], good[: good.index(b"-----BEGIN CERT")], b"\xff" * 99, strange]


@pytest.mark.parametrize("name", [roots.SERVER, roots.ISSUING, roots.JOINING])
def test_what_is_gone_and_can_be_made_again_is_named_and_made_by_init(tmp_path: Path, name: str) -> None:
    make(tmp_path / "s")
    folder = tmp_path / "s" / roots.FOLDER
    before = everything(tmp_path / "s")
    (folder / name).unlink()
    with pytest.raises(ConfigError, match=f"{name} in .*: missing or damaged") as raised:
        Authority.open(tmp_path / "s", HOSTS)
    assert raised.value.hint.startswith("create it again with: fedserver init --state ")
    assert make(tmp_path / "s").made == (name,)
    after = everything(tmp_path / "s")
    assert {path for path in before if before[path] != after[path]} <= {name, f"authority/{name}"}
    assert make(tmp_path / "s").made == ()
    assert lines_of(tmp_path / "s", Event.INIT)[1]["facts"]["makes"] == [name]


def test_a_damaged_certificate_of_the_server_is_made_again_whenever_that_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(tmp_path / "s")
    folder = tmp_path / "s" / roots.FOLDER
    path = folder / roots.SERVER
    for wrong in damaged(path, folder):
        path.write_bytes(wrong)
        with pytest.raises(ConfigError, match=r"server\.pem in .*: missing or damaged"):
            Authority.open(tmp_path / "s", HOSTS)
        for owner, step in ((roots, "save_pair"), (disk, "move")):
            with monkeypatch.context() as patched:
                patched.setattr(owner, step, lambda *_: _interrupt())
                with pytest.raises(KeyboardInterrupt):
                    make(tmp_path / "s")
            assert path.read_bytes() == wrong
        assert make(tmp_path / "s").made == (roots.SERVER,)
        found = Authority.open(tmp_path / "s", HOSTS)
        assert found.hosts == HOSTS
        found.server.certificate.verify_directly_issued_by(found.roots[found.issuing].certificate)


def _interrupt() -> None:
    raise KeyboardInterrupt


def test_the_root_that_signed_is_found_again(tmp_path: Path) -> None:
    make(tmp_path / "s")
    found = Authority.open(tmp_path / "s", HOSTS)
    name, pair = roots.new_root("clinic")
    found.add(name, pair)
    found.use(name)
    (tmp_path / "s" / roots.FOLDER / roots.ISSUING).unlink()
    make(tmp_path / "s")
    assert Authority.open(tmp_path / "s", HOSTS).issuing == name


def test_a_root_that_is_gone_is_never_made_again(tmp_path: Path) -> None:
    make(tmp_path / "s")
    folder = tmp_path / "s" / roots.FOLDER
    (folder / roots.ISSUING).write_text("0000\n")
    with pytest.raises(ConfigError, match="names a root that is not there"):
        Authority.open(tmp_path / "s", HOSTS)
    next(folder.glob("root-*")).unlink()
    for attempt in (lambda: make(tmp_path / "s"), lambda: Authority.open(tmp_path / "s", HOSTS)):
        with pytest.raises(ShoalError, match=r"no root-\*\.pem in .* any more") as raised:
            attempt()
        assert "from a backup" in raised.value.hint
    assert not list(folder.glob("root-*"))


def test_no_second_authority_is_made_where_devices_have_joined_under_the_first(tmp_path: Path) -> None:
    async def story(found: World) -> None:
        await found.device("d0")

    play(story, tmp_path / "s")
    shutil.rmtree(tmp_path / "s" / roots.FOLDER)
    with pytest.raises(StorageFault, match="devices have joined under them"):
        make(tmp_path / "s")
    assert not (tmp_path / "s" / roots.FOLDER).exists()


def test_what_certificates_say(tmp_path: Path) -> None:
    make(tmp_path / "s")
    found, now = Authority.open(tmp_path / "s", HOSTS), time.time()
    assert found.hosts == HOSTS
    issued = x509.load_pem_x509_certificate(found.issue("d0", new_key().public_key()).pem)
    server, root = found.server.certificate, found.roots[found.issuing].certificate
    for certificate in (issued, server):
        certificate.verify_directly_issued_by(root)
    year = issuing.YEAR
    assert root.not_valid_before_utc.timestamp() < now - year
    assert server.not_valid_before_utc.timestamp() < now - year
    assert server.not_valid_after_utc.timestamp() > now + 3 * year
    assert issued.not_valid_before_utc.timestamp() == pytest.approx(now - issuing.DAY, abs=5)
    assert issued.not_valid_after_utc.timestamp() == pytest.approx(now + 14 * issuing.DAY, abs=5)
    usage = issued.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert list(usage) == [x509.ExtendedKeyUsageOID.CLIENT_AUTH]
    assert not list(issued.subject)
    names = issued.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert [name.value for name in names] == ["spiffe://clinic/device/d0"]


def test_the_servers_certificate_is_made_anew_in_time_and_for_other_hosts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(tmp_path / "s")
    found = Authority.open(tmp_path / "s", HOSTS)
    first, joining = found.server.pem, found.joining.pem
    now = time.time()
    monkeypatch.setattr("time.time", lambda: now + 0.4 * issuing.SERVER_LIFE)
    assert not found.refresh()
    monkeypatch.setattr("time.time", lambda: now + 0.6 * issuing.SERVER_LIFE)
    assert found.refresh()
    assert found.server.pem != first
    assert not found.refresh()
    other = Authority.open(tmp_path / "s", ("new.example.org",))
    assert other.refresh()
    assert other.hosts == ("new.example.org",)
    assert other.joining.pem == joining  # join strings that are out stay good


def test_more_than_four_roots_are_not_trusted(tmp_path: Path) -> None:
    make(tmp_path / "s")
    found = Authority.open(tmp_path / "s", HOSTS)
    for _ in range(3):
        found.add(*roots.new_root("clinic"))
    with pytest.raises(Refused, match="4 authorities are trusted"):
        found.add(*roots.new_root("clinic"))
    with pytest.raises(NotFound, match="no authority 'nope'"):
        found.use("nope")
    assert set(Authority.open(tmp_path / "s", HOSTS).roots) == set(found.roots)


def test_the_change_from_one_root_to_the_next_without_a_restart(tmp_path: Path) -> None:
    async def hello(device: Peer) -> float:
        async with device.channel() as channel:
            welcome = await device.link(channel).hello(Hello("toy"))
        assert welcome.renew_in is not None
        return welcome.renew_in

    async def renew(device: Peer) -> None:
        key = new_key()
        device.go_on(key, await device.renew(key))

    async def play() -> None:
        async with world(tmp_path / "s") as found:
            first, second = await found.device("d0"), await found.device("d1")
            (old,) = await found.api.roots()
            assert (await hello(first), await hello(second)) > (1.0, 1.0)
            assert (old.certificates, old.awaited) == (2, ())
            new = await found.api.add_root()
            assert new.awaited == ("d0", "d1")
            assert await hello(first) == 0.0  # it has to renew at once
            await renew(first)
            with pytest.raises(Refused, match=r"2 devices do not trust authority .* yet: d0, d1"):
                await found.api.use_root(new.name, False)  # announced, but is it stored?
            await hello(first)
            with pytest.raises(Refused, match=r"1 devices do not trust authority .* yet: d1"):
                await found.api.use_root(new.name, False)
            await renew(second)
            await hello(second)
            async with first.channel() as lasting:
                link = first.link(lasting)
                await link.hello(Hello("toy"))
                assert (await found.api.use_root(new.name, False)).signs
                assert (await link.hello(Hello("toy"))).renew_in == 0.0  # the connection lasts
            shown = found.peers.authority.server.certificate
            shown.verify_directly_issued_by(found.peers.authority.roots[new.name].certificate)
            assert await hello(second) == 0.0
            only_old = found.peers.authority.roots[old.name].pem
            async with second.channel(only_old) as channel:
                with pytest.raises(aio.AioRpcError) as caught:
                    await second.link(channel).hello(Hello("toy"))
                assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
            with pytest.raises(Refused, match=r"certificates of authority .* in use: 2"):
                await found.api.drop_root(old.name, False)
            with pytest.raises(Refused, match="signs"):
                await found.api.drop_root(new.name, True)
            left_behind = await found.device("d2")
            for device in (first, second):
                await renew(device)
                assert await hello(device) > 1.0
            await found.api.drop_root(old.name, False)
            assert [root.name for root in await found.api.roots()] == [new.name]
            assert await hello(first) == 0.0  # so that it trusts the old root no more
            assert await hello(left_behind) == 0.0
            events = (Event.AUTHORITY_ADDED, Event.AUTHORITY_USED, Event.AUTHORITY_DROPPED)
            assert [len(lines_of(found.state, event)) for event in events] == [1, 1, 1]
        async with world(tmp_path / "s") as again:
            assert again.peers.authority.issuing == new.name

    asyncio.run(play())


def test_a_device_that_waits_or_works_is_told_of_a_change_at_once(tmp_path: Path) -> None:
    async def asks_for_a_hello(link: WireLink, visitor: Visitor, change: Awaitable[object]) -> None:
        waiting = asyncio.ensure_future(link.next_task(30.0))
        await until(lambda: visitor.polling == 1)
        assert not waiting.done()
        await change
        _, fault = await refused(waiting)
        assert fault.code == "say-hello"
        assert (await link.hello(Hello("toy"))).renew_in == 0.0

    async def play() -> None:
        async with world(tmp_path / "s") as found:
            device, (old,) = await found.device("d0"), await found.api.roots()
            async with device.channel() as channel:
                link = device.link(channel)
                await link.hello(Hello("toy"))
                await asks_for_a_hello(link, found.coordinator.visitor("d0"), found.api.add_root())
                (new,) = [root.name for root in await found.api.roots() if root != old and not root.signs]
                await asks_for_a_hello(link, found.coordinator.visitor("d0"), found.api.use_root(new, True))
                await start(found.coordinator, policy=RoundPolicy(devices=1, minimum=1))
                while not isinstance(task := await link.next_task(5.0), Task):
                    pass
                other = await found.api.add_root()
                _, fault = await refused(link.alive(task.run, task.round, task.attempt))
                assert fault.code == "say-hello"
                await link.hello(Hello("toy"))
                while not isinstance(again := await link.next_task(5.0), Task):
                    pass
                # The same work, under a new lease.
                assert (again.round, again.payload) == (task.round, task.payload)
                await found.api.drop_root(other.name, True)
                _, fault = await refused(link.next_task(0.0))
                assert fault.code == "say-hello"

    asyncio.run(play())


def test_who_is_left_behind_by_force_comes_back_with_its_last_key(tmp_path: Path) -> None:
    async def play() -> None:
        async with world(tmp_path / "s") as found:
            device = await found.device("d0")
            async with device.channel() as lasting:
                await device.link(lasting).hello(Hello("toy"))
                (old,) = await found.api.roots()
                new = await found.api.add_root()
                await found.api.use_root(new.name, True)
                await found.api.drop_root(old.name, True)
                error, _ = await refused(device.link(lasting).hello(Hello("toy")))
                assert error.code() is grpc.StatusCode.UNAUTHENTICATED
            await device.rejoin(new_key())
            async with device.channel() as channel:
                await device.link(channel).hello(Hello("toy"))

    asyncio.run(play())
