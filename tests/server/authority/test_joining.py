"""From a join string to a certificate, over real TLS: what admits a device, and what does not."""

import asyncio
import json
from copy import copy
from dataclasses import replace
from pathlib import Path

import grpc
import pytest
from grpc import aio

from fedserver.authority import issuing, joining, rate_limit
from fedserver.store.identities import admission
from fedserver.store.identities.audit import Event
from fedserver.store.identities.records import DeviceStanding
from shoal.core.exchange._pb.fed.v1 import enrollment_service_pb2 as pb
from shoal.core.exchange.link import Hello
from shoal.core.identity import proof
from shoal.core.identity.certificates import new_key, pin_of, request
from shoal.core.identity.join import JoinString
from shoal.core.identity.joining import IssuedIdentity, Pending, Role
from tests.server.authority.peers import Peer, World, lines_of, play, refused, world


@pytest.fixture
def unlimited(monkeypatch: pytest.MonkeyPatch) -> None:
    """Addresses never have to wait."""
    monkeypatch.setattr(rate_limit, "MINUTE", 0.0)


def test_a_device_joins_and_says_hello(tmp_path: Path) -> None:
    async def story(found: World) -> None:
        device = await found.device("d0", role=Role.TRAIN, labels={"site": "basel"})
        assert device.issued is not None
        assert (device.issued.federation, device.issued.device) == ("clinic", "d0")
        async with device.channel() as channel:
            welcome = await device.link(channel).hello(Hello("toy"))
        assert welcome.renew_in is not None
        life = issuing.DEVICE_LIFE
        assert 0.59 * life < welcome.renew_in < 0.67 * life
        assert list(found.coordinator.visitors) == ["d0"]  # and not who it said it was
        (known,) = await found.api.devices()
        assert known.device.labels == {"site": "basel"}
        assert known.device.certificates[0].first_used is not None

    play(story, tmp_path / "s")


def test_the_same_request_gets_the_same_certificate_also_after_a_crash(tmp_path: Path) -> None:
    async def join() -> tuple[Peer, IssuedIdentity]:
        async with world(tmp_path / "s") as found:
            device = Peer(await found.token(), "d0")
            first = await device.join()
            device.csr = request(device.key)  # the device died too, and asks again with the same key
            again = await device.join()
            assert isinstance(first, IssuedIdentity)
            assert isinstance(again, IssuedIdentity)
            assert again.certificate == first.certificate
            return device, first

    async def join_again(device: Peer, first: IssuedIdentity) -> None:
        async with world(tmp_path / "s") as found:
            device.string = moved(device.string, found)
            answer = await device.join()
            assert isinstance(answer, IssuedIdentity)
            assert answer.certificate == first.certificate
            assert [each.used for each in await found.api.tokens()] == [1]

    asyncio.run(join_again(*asyncio.run(join())))


def test_of_a_hundred_devices_with_one_token_one_gets_in(tmp_path: Path, unlimited: None) -> None:
    async def story(found: World) -> None:
        join = await found.token()
        devices = [Peer(join, f"d{number}") for number in range(100)]
        answers = await asyncio.gather(*(device.join() for device in devices), return_exceptions=True)
        winners = [answer for answer in answers if isinstance(answer, IssuedIdentity)]
        losers = [answer for answer in answers if isinstance(answer, aio.AioRpcError)]
        assert (len(winners), len(losers)) == (1, 99)
        assert {error.code() for error in losers} == {grpc.StatusCode.PERMISSION_DENIED}
        assert [each.device.device for each in await found.api.devices()] == [winners[0].device]
        assert len(winners[0].certificate) > 0

    play(story, tmp_path / "s")


def test_all_that_is_wrong_with_a_token_looks_the_same_from_outside(tmp_path: Path, unlimited: None) -> None:
    async def story(found: World) -> None:
        used = await found.token()
        await Peer(used, "first").join()
        expired, revoked, locked = (await found.token(ttl=0.01), await found.token(), await found.token())
        await found.api.revoke_token(revoked.token)
        wrong = {"proof": b"x" * 32}
        for _ in range(5):
            await refused(Peer(locked, "d0").join(**wrong))
        good = await found.token()
        tries = [
            Peer(used, "d0").join(),
            Peer(expired, "d0").join(),
            Peer(revoked, "d0").join(),
            Peer(locked, "d0").join(),
            Peer(good, "d0").join(**wrong),
            Peer(good, "d0").join(csr=request(new_key())),
            Peer(good, "d0").join(token="0123456789ab"),
        ]
        answers = [await refused(each) for each in tries]
        assert len({(error.code(), error.details()) for error, _ in answers}) == 1
        assert len({(fault.code, fault.message, fault.hint) for _, fault in answers}) == 1
        assert answers[0][0].code() is grpc.StatusCode.PERMISSION_DENIED
        reasons = [line["facts"]["reason"] for line in lines_of(found.state, Event.JOIN_REFUSED)][-7:]
        assert reasons == [
            "the token is used up",
            "the token has expired",
            "the token is revoked",
            "the token is locked",
            "wrong proof",
            "wrong proof",
            "unknown token",
        ]
        assert len(lines_of(found.state, Event.TOKEN_LOCKED)) == 1
        standings = {token.token: token.standing.value for token in await found.api.tokens()}
        assert (standings[locked.token], standings[good.token]) == ("locked", "open")

    play(story, tmp_path / "s")


def test_a_token_admits_the_names_that_it_is_for(tmp_path: Path) -> None:
    async def story(found: World) -> None:
        join = await found.token(pattern="ward-*", uses=2)
        error, fault = await refused(Peer(join, "icu-1").join())
        assert error.code() is grpc.StatusCode.PERMISSION_DENIED
        assert "ward-*" in fault.hint
        first = Peer(join, "ward-1")
        await first.join()
        error, fault = await refused(Peer(join, "ward-1").join())
        assert (error.code(), fault.code) == (grpc.StatusCode.ALREADY_EXISTS, "name-taken")
        error, fault = await refused(Peer(join, "ward-2", key=first.key).join())
        assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
        await Peer(join, "ward-2").join()  # none of the refusals has used the token up
        for name in ("a/b", "", "x" * 65):
            error, _ = await refused(Peer(join, name).join())
            assert error.code() is grpc.StatusCode.INVALID_ARGUMENT

    play(story, tmp_path / "s")


def test_a_device_that_is_held_waits_for_an_operator(tmp_path: Path) -> None:
    async def story(found: World) -> None:
        device = Peer(await found.token(hold=True), "d0")
        answer = await device.join()
        assert isinstance(answer, Pending)
        assert answer.fingerprint == pin_of(device.key.public_key())
        assert isinstance(await device.join(), Pending)
        (known,) = await found.api.devices()
        assert known.device.standing is DeviceStanding.PENDING
        assert bytes.fromhex(known.device.spki) == answer.fingerprint
        await found.api.approve("d0")
        assert isinstance(await device.join(), IssuedIdentity)
        async with device.channel() as channel:
            await device.link(channel).hello(Hello("toy"))
        await found.api.revoke("d0", "")
        _, fault = await refused(device.join())
        assert fault.code == "revoked"

    play(story, tmp_path / "s")


def test_a_challenge_is_answered_once_and_in_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(found: World) -> None:
        device = Peer(await found.token(), "d0")
        async with device.joining_stub() as stub:
            challenge = await stub.Challenge(pb.ChallengeRequest())
            assert challenge.valid.seconds == 60
            key = proof.key_of(device.string.secret)
            answer = {
                "nonce": challenge.nonce,
                "proof": proof.prove(key, challenge.nonce, device.string.pin, device.csr),
            }
        assert isinstance(await device.join(**answer), IssuedIdentity)
        error, _ = await refused(device.join(**answer))
        assert error.code() is grpc.StatusCode.UNAVAILABLE
        monkeypatch.setattr(joining, "NONCE_LIFE", 0.0)
        error, _ = await refused(device.join())
        assert error.code() is grpc.StatusCode.UNAVAILABLE

    play(story, tmp_path / "s")


def test_the_old_certificate_ends_when_the_new_one_is_used(tmp_path: Path) -> None:
    async def story(found: World) -> None:
        device = await found.device("d0")
        key = new_key()
        async with device.channel() as old:
            await device.link(old).hello(Hello("toy"))
            identity = await device.renew(key)
            assert (await device.renew(key)).certificate == identity.certificate
            await device.link(old).hello(Hello("toy"))  # the answer may have been lost: the old one holds
            device.go_on(key, identity)
            async with device.channel() as new:
                await device.link(new).hello(Hello("toy"))
                error, fault = await refused(device.link(old).hello(Hello("toy")))
                assert (error.code(), fault.code) == (grpc.StatusCode.UNAUTHENTICATED, "unauthenticated")
                await device.link(new).hello(Hello("toy"))
        error, _ = await refused(device.renew(key))
        assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
        error, _ = await refused(device.join())  # with the first key, as from an old copy of its disk
        assert error.code() is grpc.StatusCode.PERMISSION_DENIED
        assert len(lines_of(found.state, Event.RENEWED)) == 1

    play(story, tmp_path / "s")


def test_certificates_that_were_never_used_do_not_pile_up(tmp_path: Path) -> None:
    async def story(found: World) -> None:
        device, other = await found.device("d0"), await found.device("d1")
        async with device.channel() as channel:
            await device.link(channel).hello(Hello("toy"))
        first, second = new_key(), new_key()
        early, late = await device.renew(first), await device.renew(second)
        assert (await device.renew(second)).certificate == late.certificate
        stale = copy(device)
        stale.go_on(first, early)
        async with stale.channel() as channel:
            error, _ = await refused(stale.link(channel).hello(Hello("toy")))
        assert error.code() is grpc.StatusCode.UNAUTHENTICATED
        for _ in range(admission.MOST_NEXT - 3):
            key = new_key()
            identity = await device.renew(key)
        error, fault = await refused(device.renew(new_key()))
        assert (error.code(), fault.code) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "too-often")
        assert 0 < fault.earliest.seconds <= admission.WINDOW
        (known,) = [each for each in await found.api.devices() if each.device.device == "d0"]
        assert len(known.device.certificates) == 2  # the one in use and the newest
        assert (await device.renew(key)).certificate == identity.certificate
        await other.renew(new_key())  # another device does not wait for this one
        device.go_on(key, identity)
        async with device.channel() as channel:
            await device.link(channel).hello(Hello("toy"))

    play(story, tmp_path / "s")


def test_who_never_called_can_come_back_twice_with_the_same_certificate(
    tmp_path: Path, unlimited: None
) -> None:
    async def story(found: World) -> None:
        device = await found.device("d0")
        lost = copy(device)
        await lost.rejoin(new_key())  # the answer was lost, and with it the new key
        await device.rejoin(new_key())
        async with lost.channel() as channel:
            error, _ = await refused(lost.link(channel).hello(Hello("toy")))
        assert error.code() is grpc.StatusCode.UNAUTHENTICATED
        async with device.channel() as channel:
            await device.link(channel).hello(Hello("toy"))

    play(story, tmp_path / "s")


def test_a_device_that_slept_comes_back_with_its_last_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unlimited: None
) -> None:
    async def story(found: World) -> None:
        monkeypatch.setattr(issuing, "DEVICE_LIFE", -1.0)  # as good as two weeks later
        device, stranger = await found.device("d0"), await found.device("d1")
        monkeypatch.undo()
        monkeypatch.setattr(rate_limit, "MINUTE", 0.0)
        async with device.channel() as channel:
            with pytest.raises(aio.AioRpcError) as caught:
                await device.link(channel).hello(Hello("toy"))
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE  # TLS has refused it
        assert device.issued is not None
        assert stranger.issued is not None
        for changes in (
            {"signature": b"x" * 70},
            {"csr": request(new_key())},
            {"certificate": stranger.issued.certificate},
        ):
            error, _ = await refused(device.rejoin(new_key(), **changes))
            assert error.code() is grpc.StatusCode.PERMISSION_DENIED
        before, key = device.issued.certificate, new_key()
        old = device.key
        again = await device.rejoin(key)
        assert again.certificate != before
        device.key, device.issued = old, again
        device.issued = IssuedIdentity(**{**vars(again), "certificate": before})
        assert (await device.rejoin(key)).certificate == again.certificate  # its answer was lost
        async with device.channel() as channel:
            await device.link(channel).hello(Hello("toy"))
        await found.api.revoke("d1", "lost")
        _, fault = await refused(stranger.rejoin(new_key()))
        assert fault.code == "revoked"
        assert len(lines_of(found.state, Event.REJOINED)) == 1

    play(story, tmp_path / "s")


def test_who_slept_too_long_needs_a_new_join_string(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(found: World) -> None:
        device = await found.device("d0")
        monkeypatch.setattr(admission, "SLEEP", -2 * issuing.DEVICE_LIFE)
        error, _ = await refused(device.rejoin(new_key()))
        assert error.code() is grpc.StatusCode.PERMISSION_DENIED
        (line,) = lines_of(found.state, Event.REJOIN_REFUSED)
        assert line["facts"]["reason"] == "its certificate expired too long ago"

    play(story, tmp_path / "s")


def test_the_secret_is_kept_nowhere(tmp_path: Path) -> None:
    async def story(found: World) -> None:
        join = await found.token()
        await Peer(join, "d0").join()
        storage = found.coordinator.storage
        rows = [dict(row) for row in await storage.call(storage.store.database.query, "SELECT * FROM tokens")]
        assert proof.key_of(join.secret) in [row["key"] for row in rows]
        assert join.secret not in b"".join(
            path.read_bytes() for path in found.state.rglob("*") if path.is_file()
        )
        listed = json.dumps([str(token) for token in await found.api.tokens()])
        assert str(join).rpartition(":")[2] not in listed

    play(story, tmp_path / "s")


def moved(join: JoinString, found: World) -> JoinString:
    """The same join string where the server is now: ports differ from start to start here."""
    host, _, port = found.listeners.join_address.rpartition(":")
    return replace(join, host=host, port=int(port))
