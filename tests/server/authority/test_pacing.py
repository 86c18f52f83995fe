"""How often an address may ask to join: challenges are paced, and refusals cost a wait."""

import asyncio
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import pytest

from fedserver.authority import joining, rate_limit
from fedserver.store.identities.audit import Event
from shoal.core.errors import Busy, TooOften
from shoal.core.exchange import wire
from shoal.core.exchange._pb.fed.v1 import enrollment_service_pb2 as pb
from shoal.core.identity.certificates import new_key
from shoal.core.identity.joining import Challenge
from tests.server.authority.peers import Peer, World, lines_of, play, refused, world


def test_challenges_are_bounded() -> None:
    kept = joining.Nonces()
    first, *others = [kept.make() for _ in range(joining.MAX_NONCES + 1)]
    assert not kept.take(first)
    assert all(map(kept.take, others))
    assert not kept.take(others[0])


def test_an_address_that_asks_for_too_many_challenges_waits_and_others_do_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(joining, "CHALLENGES", 0.001)
    monkeypatch.setattr(joining, "AT_ONCE", 20.0)

    async def story(found: World) -> None:
        peer = Peer(await found.token(), "d0")
        async with peer.joining_stub() as stub:
            nonces = [(await stub.Challenge(pb.ChallengeRequest())).nonce for _ in range(20)]
            error, fault = await refused(stub.Challenge(pb.ChallengeRequest()))
        assert len(set(nonces)) == 20
        assert (error.code(), fault.code) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "too-often")
        assert fault.hint == "try again in 45 s"
        said = wire.fault_from_pb(fault)
        assert isinstance(said, TooOften)
        assert said.window is not None
        assert 44.0 < said.window[0] <= 45.0

    play(story, tmp_path / "s")


def test_no_crowd_of_addresses_makes_a_challenge_that_is_out_void(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    authority = SimpleNamespace(authority=None, storage=None)
    asked = joining.JoinService(authority, "")  # type: ignore[arg-type]

    async def ask(callers: Iterable[str]) -> list[object]:
        tries = [asked.challenge(caller) for caller in callers]
        return list(await asyncio.gather(*tries, return_exceptions=True))

    (first,) = asyncio.run(ask(["owner"]))
    assert isinstance(first, Challenge)
    refusals: list[object] = []
    for second in range(int(joining.NONCE_LIFE)):
        now = 1000.0 + second
        found = asyncio.run(ask(f"{second}.{number}" for number in range(300)))
        refusals += [each for each in found if not isinstance(each, Challenge)]
    assert {type(each) for each in refusals} == {Busy}
    assert len(asked._asked._buckets) == rate_limit.MAX_KEYS
    assert asked._nonces.take(first.nonce)


TOO_OFTEN = (grpc.StatusCode.RESOURCE_EXHAUSTED, "too-often")


async def refusals(peer: Peer, count: int, **changes: Any) -> None:
    for _ in range(count):
        error, _ = await refused(peer.join(**changes))
        assert error.code() is grpc.StatusCode.PERMISSION_DENIED


async def has_to_wait(peer: Peer, **changes: Any) -> None:
    error, fault = await refused(peer.join(**changes))
    assert (error.code(), fault.code) == TOO_OFTEN


def test_failures_make_a_join_string_wait_and_successes_do_not(tmp_path: Path) -> None:
    async def story(found: World) -> None:
        join = await found.token(uses=20)
        for number in range(20):
            await Peer(join, f"d{number}").join()
        await refusals(Peer(join, "late"), 5)
        await has_to_wait(Peer(join, "late"))
        await Peer(await found.token(), "late").join()  # another join string from the same address

    play(story, tmp_path / "s")


def test_a_stranger_with_made_up_join_strings_shuts_out_nobody_behind_its_address(tmp_path: Path) -> None:
    async def story(found: World) -> None:
        stranger = Peer(await found.token(), "stranger")
        for number in range(5):
            await refusals(stranger, 1, token=f"{number:012x}")
        for number in range(5, 8):
            await has_to_wait(stranger, token=f"{number:012x}")
        recorded = len(lines_of(found.state, Event.JOIN_REFUSED))
        assert recorded == 5  # what has to wait is not even looked at
        await Peer(await found.token(), "honest").join()
        await refusals(stranger, 5, proof=b"\0" * 32)  # the string is known, and locked by wrong proofs
        await Peer(await found.token(), "late").join()

    play(story, tmp_path / "s")


def test_made_up_certificates_make_strangers_wait_and_no_device_behind_their_address(tmp_path: Path) -> None:
    async def story(found: World) -> None:
        device, stranger = await found.device("d0"), await found.device("d1")
        assert stranger.issued is not None
        async with world(tmp_path / "other") as other:
            for number in range(6):
                stranger.key = new_key()
                made_up = other.peers.authority.issue("train", "d0", stranger.key.public_key())
                error, fault = await refused(stranger.come_back(certificate=made_up))
                if number < 5:
                    assert error.code() is grpc.StatusCode.PERMISSION_DENIED
        assert (error.code(), fault.code) == TOO_OFTEN
        await device.come_back()

    play(story, tmp_path / "s")


def test_a_limit_is_for_one_key_a_minute_and_so_many_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    spare = rate_limit.RateLimit(2)
    assert [spare.allow("a"), spare.allow("a"), spare.allow("a"), spare.allow("b")] == [
        True,
        True,
        False,
        True,
    ]
    now += 61.0
    assert spare.allow("a")
    monkeypatch.setattr(rate_limit, "MAX_KEYS", 2)
    spare.count("c")
    spare.count("d")
    assert not spare.used_up("a")
