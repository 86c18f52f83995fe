"""From a join string to a certificate, over real TLS: what admits a device, and what does not."""

import asyncio
import json
from copy import copy
from pathlib import Path

import grpc
import pytest
from grpc import aio

from fedserver.authority import joining, rate_limit
from fedserver.store.identities.audit import Event
from fedserver.store.identities.records import DeviceStanding
from shoal.core.errors import Refused
from shoal.core.exchange._pb.fed.v1 import enrollment_service_pb2 as pb
from shoal.core.exchange.link import Hello
from shoal.core.identity import proof
from shoal.core.identity.certificates import new_key, pin_of, request
from shoal.core.identity.joining import IssuedIdentity, Pending, Role
from tests.server.authority.peers import Peer, World, lines_of, moved, play, refused, world


@pytest.fixture
def unlimited(monkeypatch: pytest.MonkeyPatch) -> None:
    """Addresses never have to wait."""
    monkeypatch.setattr(rate_limit.RateLimit, "used_up", lambda limit, key: False)


def test_a_device_joins_and_says_hello(tmp_path: Path) -> None:
    async def story(found: World) -> None:
        device = await found.device("d0", role=Role.TRAIN, labels={"site": "basel"})
        assert device.issued is not None
        assert (device.issued.federation, device.issued.device) == ("clinic", "d0")
        async with device.channel() as channel:
            await device.link(channel).hello(Hello("toy"))
        assert list(found.coordinator.visitors) == ["d0"]  # and not who it said it was
        (known,) = await found.api.devices()
        assert known.labels == {"site": "basel"}
        assert known.spki == pin_of(device.key.public_key()).hex()
        assert known.last_seen is not None

    play(story, tmp_path / "s")


def test_a_request_may_be_repeated_also_after_a_crash(tmp_path: Path) -> None:
    async def join() -> tuple[Peer, IssuedIdentity]:
        async with world(tmp_path / "s") as found:
            device = Peer(await found.token(), "d0")
            first = await device.join()
            device.csr = request(device.key)  # the device died too, and asks again with the same key
            again = await device.join()
            assert isinstance(first, IssuedIdentity)
            assert isinstance(again, IssuedIdentity)
            return device, first

    async def join_again(device: Peer, first: IssuedIdentity) -> None:
        async with world(tmp_path / "s") as found:
            device.string = moved(device.string, found)
            answer = await device.join()
            assert isinstance(answer, IssuedIdentity)
            assert answer.device == first.device
            device.address = found.listeners.address
            async with device.channel() as channel:
                await device.link(channel).hello(Hello("toy"))
            assert [each.used for each in await found.api.tokens()] == [1]

    asyncio.run(join_again(*asyncio.run(join())))


def test_a_device_that_ended_before_its_answer_comes_with_another_join_string(tmp_path: Path) -> None:
    async def story(found: World) -> None:
        device = Peer(await found.token(hold=True), "d0")
        assert isinstance(await device.join(), Pending)
        device.string = await found.token()
        assert isinstance(await device.join(), Pending)  # a string without --hold approves no key that waits
        await found.api.approve("d0")
        assert isinstance(await device.join(), IssuedIdentity)
        device.name = "d1"
        _, fault = await refused(device.join())
        assert "the key of this request is that of device d0" in fault.message
        assert [each.device for each in await found.api.devices()] == ["d0"]

    play(story, tmp_path / "s")


def test_of_a_hundred_devices_with_one_token_one_gets_in(tmp_path: Path, unlimited: None) -> None:
    async def story(found: World) -> None:
        join = await found.token()
        devices = [Peer(join, f"d{number}") for number in range(100)]
        answers = await asyncio.gather(*(device.join() for device in devices), return_exceptions=True)
        winners = [answer for answer in answers if isinstance(answer, IssuedIdentity)]
        losers = [answer for answer in answers if isinstance(answer, aio.AioRpcError)]
        assert (len(winners), len(losers)) == (1, 99)
        assert {error.code() for error in losers} == {grpc.StatusCode.PERMISSION_DENIED}
        assert [each.device for each in await found.api.devices()] == [winners[0].device]
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
        assert known.standing is DeviceStanding.PENDING
        assert bytes.fromhex(known.spki) == answer.fingerprint
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


def test_a_device_changes_its_key_by_the_former_one_and_a_lost_answer_locks_no_one_out(
    tmp_path: Path,
) -> None:
    async def story(found: World) -> None:
        device, key = await found.device("d0"), new_key()
        lost = copy(device)
        async with device.channel() as before:
            waiting = asyncio.create_task(device.link(before).hello(Hello("toy")))
            await waiting
            await lost.come_back(key)  # and the answer is lost
            error, fault = await refused(device.link(before).hello(Hello("toy")))
            assert (error.code(), fault.code) == (grpc.StatusCode.UNAUTHENTICATED, "unauthenticated")
        await device.come_back(key)  # the same request: with the former key, for the same new one
        async with device.channel() as channel:
            await device.link(channel).hello(Hello("toy"))
        (line,) = lines_of(found.state, Event.KEY_CHANGED)
        assert line["facts"]["key"] == pin_of(key.public_key()).hex()
        _, fault = await refused(copy(device).join())  # with the first key, as from an old copy of its disk
        assert fault.code == "refused"

    play(story, tmp_path / "s")


def test_who_has_only_a_former_key_or_none_gets_nothing(tmp_path: Path, unlimited: None) -> None:
    async def story(found: World) -> None:
        device, other = await found.device("d0"), await found.device("d1")
        assert device.issued is not None
        assert other.issued is not None
        thief = copy(device)
        for changes in (
            {"signature": b"x" * 70},
            {"csr": request(new_key())},
            {"certificate": other.issued.certificate},
        ):
            error, _ = await refused(device.come_back(new_key(), **changes))
            assert error.code() is grpc.StatusCode.PERMISSION_DENIED
        _, fault = await refused(device.come_back(other.key))
        assert fault.code == "bad-payload"
        await device.come_back(new_key())
        for key in (new_key(), thief.key):
            _, fault = await refused(thief.come_back(key))
            assert fault.code == "revoked"
        await found.api.revoke("d1", "lost")
        for key in (new_key(), other.key):
            _, fault = await refused(other.come_back(key))
            assert fault.code == "revoked"
        async with device.channel() as channel:
            await device.link(channel).hello(Hello("toy"))

    play(story, tmp_path / "s")


def test_a_key_that_comes_back_again_and_again_has_to_wait(tmp_path: Path) -> None:
    async def story(found: World) -> None:
        device, other = await found.device("d0"), await found.device("d1")
        for _ in range(joining.FAILURES):
            await device.come_back()
        _, fault = await refused(device.come_back())
        assert fault.code == "too-often"
        await other.come_back()

    play(story, tmp_path / "s")


def test_a_device_that_changes_its_key_again_and_again_has_to_wait(tmp_path: Path) -> None:
    async def story(found: World) -> None:
        device, other = await found.device("d0"), await found.device("d1")
        for _ in range(joining.FAILURES):
            await device.come_back(new_key())
        _, fault = await refused(device.come_back(new_key()))
        assert fault.code == "too-often"
        await other.come_back(new_key())

    play(story, tmp_path / "s")


def test_a_name_that_is_known_waits_and_approval_replaces_the_key_in_one_step(tmp_path: Path) -> None:
    """A device that was installed again: its owner joins under the same name."""

    async def story(found: World) -> None:
        device = await found.device("d0", labels={"site": "basel"})
        join = await found.token(uses=2, role=Role.INFER_ONLY)
        again = Peer(join, "d0", found.listeners.address)
        assert isinstance(await again.join(), Pending)
        assert isinstance(await again.join(), Pending)  # the same request
        _, fault = await refused(Peer(join, "d0").join())
        assert fault.code == "refused"  # one key at a time
        (known,) = await found.api.devices()
        assert known.waiting_key == pin_of(again.key.public_key()).hex()
        assert "d0: fedserver device approve d0" in found.peers.notices()[0]
        with pytest.raises(Refused, match="another key"):
            await found.api.approve("d0", b"k" * 32)
        async with device.channel() as channel:
            await device.link(channel).hello(Hello("toy"))  # nothing has changed yet
            await found.api.approve("d0", bytes.fromhex(known.waiting_key))
            error, _ = await refused(device.link(channel).hello(Hello("toy")))
            assert error.code() is grpc.StatusCode.UNAUTHENTICATED
        _, fault = await refused(device.come_back())
        assert fault.code == "revoked"
        assert isinstance(await again.join(), IssuedIdentity)
        async with again.channel() as channel:
            error, _ = await refused(again.link(channel).next_task(0.0))
            assert error.code() is grpc.StatusCode.PERMISSION_DENIED  # by the role of its token
        (line,) = lines_of(found.state, Event.APPROVED)
        assert line["facts"]["in_place_of"] == pin_of(device.key.public_key()).hex()
        assert found.peers.notices() == ()

    play(story, tmp_path / "s")


def test_a_key_that_waits_can_be_refused_and_a_revoked_device_can_come_back(tmp_path: Path) -> None:
    async def story(found: World) -> None:
        device, stranger = await found.device("d0"), Peer(await found.token(), "d0")
        await stranger.join()
        await found.api.refuse("d0", "unknown person")
        _, fault = await refused(stranger.join())
        assert fault.code == "refused"
        async with device.channel() as channel:
            await device.link(channel).hello(Hello("toy"))
        await found.api.revoke("d0", "stolen")
        with pytest.raises(Refused, match="revoked permanently"):
            await found.api.approve("d0")
        again = Peer(await found.token(), "d0", found.listeners.address)
        assert isinstance(await again.join(), Pending)
        await found.api.approve("d0")
        await again.join()
        async with again.channel() as channel:
            await again.link(channel).hello(Hello("toy"))
        assert "d0" not in found.coordinator.barred
        _, fault = await refused(device.come_back())
        assert fault.code == "revoked"

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
