"""A link over real TLS both ways: who calls, and where."""

from dataclasses import replace
from typing import Any

import grpc
import pytest

from fedclient.identity.keyring import Identity, Keyring
from fedclient.identity.rpc import credentials
from fedclient.net.rpc import answers
from shoal.core.errors import NotLeader, Revoked, StorageFault, Unavailable
from shoal.core.exchange import wire
from shoal.core.exchange._pb.fed.v1.fault_pb2 import Fault
from shoal.core.exchange.link import Hello, Welcome
from shoal.core.identity.certificates import certificate
from tests.client.federation import Federation, devices_port
from tests.client.memory_server import MemoryServer
from tests.client.secure import HELLO, failure, joined, kept, run
from tests.waiting import free_port


def test_who_calls_is_the_certificate_and_no_metadata(federation: Federation, keyring: Keyring) -> None:
    memory = MemoryServer([])

    async def steps() -> None:
        async with devices_port(federation, memory) as bridge, joined(federation, keyring) as link:
            await link.hello(HELLO)
            await link.next_task(0.0)
            assert [set(caller) for caller in bridge.callers] == [set(), {"shoal-session"}]
            assert set(bridge.serials) == {certificate(link.identity.certificate).serial_number}
            assert await answers(link.address, 5.0, credentials(link.identity))

    run(steps)


def test_a_device_that_knows_several_servers_goes_on_to_the_one_that_leads(
    federation: Federation, keyring: Keyring
) -> None:
    standing_by = NotLeader("this server stands by", "", (0.0, 0.0))

    async def stands_by(context: Any) -> None:
        metadata = (("shoal-fault-bin", wire.fault_to_pb(standing_by).SerializeToString()),)
        await context.abort(grpc.StatusCode.UNAVAILABLE, standing_by.message, metadata)

    async def steps() -> None:
        async with devices_port(federation, MemoryServer([])) as bridge:
            dead, leading = f"localhost:{free_port()}", federation.address
            known = federation.identity_for("attic")
            keyring.keep(replace(known, address=dead, addresses=(dead, leading)))
            async with joined(federation, keyring) as link:
                assert isinstance(await failure(link), Unavailable)
                await link.hello(HELLO)
                assert link.address == leading
                bridge.raising = stands_by
                assert isinstance(await failure(link), NotLeader)
                assert link.address == dead
            async with joined(federation, keyring, address=dead) as fixed:
                assert isinstance(await failure(fixed), Unavailable)
                assert fixed.address == dead  # an address that a person has given stays

    run(steps)


def test_a_device_remembers_the_servers_that_it_learned_of(
    federation: Federation, keyring: Keyring, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read_only(identity: Identity) -> None:
        raise StorageFault("the folder is read-only")

    async def steps() -> None:
        async with devices_port(federation, MemoryServer([])) as bridge, joined(federation, keyring) as link:
            welcome = bridge.link.hello

            async def answer(hello: Hello) -> Welcome:
                return replace(await welcome(hello), addresses=("a.example:1", federation.address))

            monkeypatch.setattr(bridge.link, "hello", answer)
            with monkeypatch.context() as broken:
                broken.setattr(keyring, "keep", read_only)
                await link.hello(HELLO)
                assert link.addresses == ("a.example:1", federation.address)
            link.addresses = ()
            await link.hello(HELLO)
            assert kept(keyring).addresses == ("a.example:1", federation.address)
            assert link.address == federation.address

    run(steps)


def test_a_revoked_device_is_told_so(federation: Federation, keyring: Keyring) -> None:
    async def revoked(context: Any) -> None:
        fault = Fault(code="revoked", message="an operator has revoked attic", hint="ask the operator")
        metadata = (("shoal-fault-bin", fault.SerializeToString()),)
        await context.abort(grpc.StatusCode.PERMISSION_DENIED, "revoked", metadata)

    async def steps() -> None:
        async with devices_port(federation, MemoryServer([])) as bridge, joined(federation, keyring) as link:
            bridge.raising = revoked
            error = await failure(link)
            assert (type(error), error.message) == (Revoked, "an operator has revoked attic")

    run(steps)
    assert federation.log == []  # it does not try to get back in
