"""A device that is not let in any more comes back by itself, with its key."""

import asyncio
import contextlib
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest

from fedclient.identity import rpc
from fedclient.identity.join import change_key, come_back
from fedclient.identity.keyring import Identity, JoiningPort, Keyring
from fedclient.store.state import DeviceFolder
from shoal.core.errors import Refused, Revoked, Unavailable
from shoal.core.exchange._pb.fed.v1.fault_pb2 import Fault
from shoal.core.identity import certificates as certs
from tests.client.crashes import Crash, Steps
from tests.client.federation import Authority, Federation, devices_port, join_port
from tests.client.memory_server import MemoryServer
from tests.client.secure import HELLO, failure, joined, kept, run

REPLACED = "the certificate was replaced"


def know_port(federation: Federation, keyring: Keyring) -> None:
    """The device joined at the port that is open now."""
    identity = keyring.identity() or federation.identity_for("attic")
    there = replace(identity.joining_port, port=federation.line.port)
    keyring.keep(replace(identity, joining_port=there, address=federation.address))


@pytest.mark.parametrize("changes", [1, 3])
def test_a_device_that_slept_through_changes_of_the_servers_key_comes_back(
    federation: Federation, keyring: Keyring, changes: int
) -> None:
    said = list[str]()

    async def steps() -> None:
        keyring.keep(federation.identity_for("attic"))
        for _ in range(changes):
            federation.authority = Authority.made(after=federation.authority)
        async with join_port(federation), devices_port(federation, MemoryServer([])) as bridge:
            know_port(federation, keyring)
            async with joined(federation, keyring, said) as link:
                before = link.identity
                error = await failure(link)
                assert (type(error), error.message) == (Unavailable, REPLACED)
                await link.hello(HELLO)
                assert bridge.serials == [serial_of(link.identity)]
                assert link.identity.key == before.key
                assert kept(keyring) == link.identity
                assert link.identity.joining_port.pin == federation.authority.pin

    run(steps)
    assert federation.log == ["challenge", "return"]
    assert "came back with its key" in said[0]


def serial_of(identity: Identity) -> int:
    return certs.certificate(identity.certificate).serial_number


def test_a_key_that_only_says_that_it_follows_is_not_followed(
    federation: Federation, keyring: Keyring
) -> None:
    """Nothing is asked there: a stranger on the way must not end an agent that no one can visit."""

    async def steps() -> None:
        keyring.keep(federation.identity_for("attic"))
        thief = Federation(authority=Authority.made(after=Authority.made()))
        async with join_port(thief), devices_port(thief, MemoryServer([])):
            federation.line, federation.address = (
                replace(federation.line, port=thief.line.port),
                thief.address,
            )
            know_port(federation, keyring)
            async with joined(federation, keyring) as link:
                error = await failure(link)
                assert isinstance(error, Unavailable)
                assert "another server answers" in error.message
        assert thief.log == []

    run(steps)


def test_a_server_that_has_forgotten_this_key_is_asked_until_an_operator_approves(
    federation: Federation, keyring: Keyring
) -> None:
    federation.pending = 2

    async def unknown(context: Any) -> None:
        fault = Fault(code="unauthenticated", message="this key is not known", hint="")
        metadata = (("shoal-fault-bin", fault.SerializeToString()),)
        await context.abort(grpc.StatusCode.UNAUTHENTICATED, "who?", metadata)

    async def steps() -> None:
        async with join_port(federation), devices_port(federation, MemoryServer([])) as bridge:
            know_port(federation, keyring)
            async with joined(federation, keyring) as link:
                bridge.raising = unknown
                for _ in range(2):
                    error = await failure(link)
                    assert "waits for an operator's approval" in error.message
                    assert error.window is not None
                assert (await failure(link)).message == REPLACED
                bridge.raising = None
                await link.hello(HELLO)

    run(steps)


def test_a_device_that_may_not_come_back_ends(federation: Federation, keyring: Keyring) -> None:
    fault = Fault(code="revoked", message="device attic was revoked", hint="")

    async def refuse(context: Any) -> None:
        metadata = (("shoal-fault-bin", fault.SerializeToString()),)
        await context.abort(grpc.StatusCode.PERMISSION_DENIED, "no", metadata)

    async def steps() -> None:
        async with (
            join_port(federation),
            devices_port(federation, MemoryServer([]), trusting=Authority.made()),
        ):
            know_port(federation, keyring)
            federation.refuse = refuse
            async with joined(federation, keyring) as link:
                error = await failure(link)
                assert (type(error), error.message) == (Revoked, "device attic was revoked")
                federation.refuse = lambda context: context.abort(grpc.StatusCode.PERMISSION_DENIED, "no")
                assert isinstance(await failure(link), Refused)

    run(steps)


def test_a_key_is_changed_and_a_lost_answer_is_asked_for_again_by_whoever_comes(
    federation: Federation, tmp_path: Path
) -> None:
    folder = DeviceFolder(tmp_path)
    keyring = Keyring(folder.identity)

    async def steps() -> None:
        async with join_port(federation), devices_port(federation, MemoryServer([])) as bridge:
            know_port(federation, keyring)
            first = kept(keyring)
            second = await change_key(folder)
            assert kept(keyring) == second
            assert second.key != first.key
            federation.lose = 1
            with pytest.raises(Unavailable):
                await change_key(folder)
            assert kept(keyring) == second
            third = await change_key(folder)  # the same request: one key was given for it
            assert len(federation.answered) == 2
            federation.lose = 1
            with pytest.raises(Unavailable):
                await change_key(folder)
            found = await come_back(keyring, third)  # as the agent does when it is refused
            assert isinstance(found, Identity)
            assert len(federation.answered) == 3
            assert len({each.key for each in (first, second, third, found)}) == 4
            async with joined(federation, keyring) as link:
                await link.hello(HELLO)
                assert bridge.serials == [serial_of(found)]

    run(steps)


def test_a_change_that_ends_between_any_two_steps_leaves_an_identity_that_works(
    federation: Federation, tmp_path: Path
) -> None:
    async def change(folder: DeviceFolder, steps: Steps) -> None:
        async with join_port(federation):
            federation.address = "127.0.0.1:1"
            know_port(federation, Keyring(folder.identity))
            with pytest.MonkeyPatch.context() as patch:
                asked = (rpc.EnrollmentClient, "come_back")
                for owner, name in ((os, "fsync"), (Path, "rename"), (Path, "unlink"), asked):
                    steps.around(patch, owner, name)
                with contextlib.suppress(Crash):
                    await change_key(folder)

    async def after(folder: DeviceFolder) -> None:
        async with join_port(federation):
            keyring = Keyring(folder.identity)
            know_port(federation, keyring)
            waiting = keyring.unanswered()
            found = await come_back(keyring, kept(keyring))
            assert isinstance(found, Identity)
            assert kept(keyring) == found
            assert waiting is None or found.key == waiting.key

    crashed = 0
    for left in range(100):
        folder, steps = DeviceFolder(tmp_path / str(left)), Steps(left)
        federation.answered = {}
        asyncio.run(change(folder, steps))
        if steps.left:
            break
        crashed += 1
        asyncio.run(after(folder))
    assert crashed > 10


def test_who_hangs_up_may_be_someone_else_so_the_key_is_asked(
    federation: Federation, keyring: Keyring
) -> None:
    """The device goes on trying when no one answers where it joined."""

    async def steps() -> None:
        async with devices_port(federation, MemoryServer([]), trusting=Authority.made()):
            keyring.keep(federation.identity_for("attic"))
            identity = kept(keyring)
            keyring.keep(replace(identity, joining_port=JoiningPort("127.0.0.1", 1, federation.line.pin)))
            async with joined(federation, keyring) as link:
                error = await failure(link)
                assert isinstance(error, Unavailable)
                assert "127.0.0.1:1 does not answer" in error.message

    run(steps)
