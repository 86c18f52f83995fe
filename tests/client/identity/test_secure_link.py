"""A link over real TLS both ways: who calls, renewal under work, and a change of authority."""

import asyncio
import contextlib
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest

from fedclient.agent.agent import Agent, Until
from fedclient.agent.allowance import Allowance
from fedclient.agent.reporter import Reporter
from fedclient.identity import link as links
from fedclient.identity.keyring import Identity, Keyring
from fedclient.identity.rpc import credentials
from fedclient.net.rpc import answers
from fedclient.store.state import Mark, Status
from shoal.core.errors import NotLeader, Revoked, StorageFault, Unavailable
from shoal.core.exchange import wire
from shoal.core.exchange._pb.fed.v1.fault_pb2 import Fault
from shoal.core.exchange.link import Hello, Outcome, Welcome
from tests.client.crashes import Crash, Steps
from tests.client.federation import Authority, Federation, devices_port
from tests.client.memory_server import MemoryServer
from tests.client.secure import HELLO, failure, joined, kept, run
from tests.client.visits import MODEL, Device, NoJitter, train
from tests.waiting import free_port, until


def test_who_calls_is_the_certificate_and_no_metadata(federation: Federation, keyring: Keyring) -> None:
    memory = MemoryServer([])

    async def steps() -> None:
        async with devices_port(federation, memory) as bridge, joined(federation, keyring) as link:
            await link.hello(HELLO)
            await link.next_task(0.0)
            assert [set(caller) for caller in bridge.callers] == [set(), {"shoal-session"}]
            assert set(bridge.serials) == {link.identity.parsed.serial_number}
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


def test_the_certificate_is_renewed_in_time_and_the_link_goes_on_with_it(
    federation: Federation, keyring: Keyring
) -> None:
    memory, said = MemoryServer([], renew_in=0.05), list[str]()

    async def steps() -> None:
        async with devices_port(federation, memory) as bridge, joined(federation, keyring, said) as link:
            first = link.identity
            await link.hello(HELLO)
            await until(lambda: link.identity != first)
            await link.next_task(0.0)
            assert kept(keyring) == link.identity
            assert link.identity.key != first.key
            serials = [first.parsed.serial_number, link.identity.parsed.serial_number]
            assert bridge.serials == serials
            assert link.identity.joining_port == first.joining_port

    run(steps)
    assert federation.log == ["renew"]
    assert "attic has a new certificate" in said[0]


def test_renewals_under_work_lose_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tasks, heartbeats and uploads of many chunks go on while the certificate changes again and again."""
    monkeypatch.setattr(links, "SOONEST", 0.01)
    federation, memory = Federation(renew_in=0.02), MemoryServer([], chunk=40, renew_in=0.0)
    memory.tasks = [train(memory, number, float(number)) for number in range(1, 9)]
    device, keyring = Device(tmp_path, memory), Keyring(tmp_path / "identity")

    async def until_renewed_again() -> None:
        before = federation.log.count("renew")
        await until(lambda: federation.log.count("renew") > before)

    device.executor.before = [until_renewed_again for _ in memory.tasks]
    reporter = Reporter(Status("attic", "memory"), tmp_path, device.doing.append, device.said.append)

    async def steps() -> None:
        async with devices_port(federation, memory) as bridge, joined(federation, keyring) as link:
            store, mark, allowance = (
                device.executor.store,
                Mark(tmp_path / "mark"),
                Allowance(give_up_after=0.0),
            )
            agent = Agent(link, device.executor, store, device.outbox, mark, reporter, allowance, NoJitter())
            await agent.run(Until.FINISHED)
            assert len(set(bridge.serials)) > 4

    run(steps)
    assert device.executor.performed == [1, 2, 3, 4, 5, 6, 7, 8]
    assert [report.round for report in memory.reports] == [1, 2, 3, 4, 5, 6, 7, 8]
    assert len(memory.calls("hello")) == 1
    assert reporter.status.outcome == Outcome.ACCEPTED.value
    assert reporter.failure is None


def test_who_comes_for_a_model_alone_renews_before_it_goes_once_it_is_time(
    federation: Federation, keyring: Keyring
) -> None:
    memory, said = MemoryServer([], renew_in=60.0), list[str]()

    async def steps() -> None:
        async with devices_port(federation, memory), joined(federation, keyring, said) as link:
            first = link.identity
            await link.renew_if_required(HELLO)
            assert (link.identity, federation.log) == (first, [])
            memory.renew_in = 0.0
            await link.renew_if_required(HELLO)
            assert kept(keyring) == link.identity != first
            federation.refuse = lambda context: context.abort(grpc.StatusCode.PERMISSION_DENIED, "not you")
            await link.renew_if_required(HELLO)

    run(steps)
    assert federation.log == ["renew", "renew"]
    assert said[-1] == "the certificate could not be renewed: not you; trying again at the next visit"


def test_a_call_under_way_keeps_its_channel(federation: Federation, keyring: Keyring) -> None:
    memory = MemoryServer([], chunk=1000, renew_in=0.0)
    weights = memory.keep(MODEL)

    async def steps() -> None:
        async with devices_port(federation, memory) as bridge, joined(federation, keyring) as link:
            first = link.identity
            await link.hello(HELLO)
            fetch = aiter(link.fetch(weights.blob, 0))
            data = bytearray(await anext(fetch))
            await until(lambda: link.identity != first)
            assert await link.uploaded(weights.blob) == 0
            assert set(bridge.serials) == {first.parsed.serial_number}
            async for chunk in fetch:
                data += chunk
            assert data == memory.blobs[weights.blob.sha256]
            await link.uploaded(weights.blob)
            assert bridge.serials[-1] == link.identity.parsed.serial_number

    run(steps)


def test_a_lost_answer_to_a_renewal_is_asked_for_again(
    federation: Federation, keyring: Keyring, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedclient.net.backoff.FIRST", 0.01)
    federation.lose = 3

    async def steps() -> None:
        memory = MemoryServer([], renew_in=0.0)
        async with devices_port(federation, memory), joined(federation, keyring) as link:
            first = link.identity
            await link.hello(HELLO)
            await until(lambda: link.identity != first)

    run(steps)
    assert federation.log == ["renew"] * 4
    assert len(federation.answered) == 1


def test_a_refused_renewal_is_said_and_the_link_goes_on(federation: Federation, keyring: Keyring) -> None:
    federation.refuse = lambda context: context.abort(grpc.StatusCode.PERMISSION_DENIED, "not you")
    said: list[str] = []

    async def steps() -> None:
        memory = MemoryServer([], renew_in=0.0)
        async with devices_port(federation, memory), joined(federation, keyring, said) as link:
            await link.hello(HELLO)
            await until(lambda: bool(said))
            await link.next_task(0.0)

    run(steps)
    assert said == ["the certificate could not be renewed: not you; trying again at the next hello"]


def test_a_renewal_that_ends_between_any_two_steps_leaves_an_identity_that_works(
    federation: Federation, tmp_path: Path
) -> None:
    async def renew(keyring: Keyring, steps: Steps) -> None:
        async with devices_port(federation, MemoryServer([])), joined(federation, keyring) as link:
            with pytest.MonkeyPatch.context() as patch:
                for owner, name in ((os, "fsync"), (Path, "rename"), (Path, "unlink"), (links, "renewed")):
                    steps.around(patch, owner, name)
                with contextlib.suppress(Crash):
                    await link._renew()

    async def after(keyring: Keyring) -> None:
        async with devices_port(federation, MemoryServer([])) as bridge:
            here = federation.address
            async with joined(federation, keyring, address=here) as link:
                await link.hello(HELLO)  # with whichever of the two is there
                assert bridge.serials == [kept(keyring).parsed.serial_number]
                before, answered = link.identity, list(federation.answered.values())
                waited = [given for given in answered if given.certificate != before.certificate]
                await link._renew()
                assert link.identity != before
                if waited:  # the certificate that was given before the end, and no third one
                    assert kept(keyring).certificate == waited[0].certificate

    crashed = 0
    for left in range(100):
        keyring, steps = Keyring(tmp_path / str(left)), Steps(left)
        federation.answered = {}
        asyncio.run(renew(keyring, steps))
        if steps.left:
            break
        crashed += 1
        asyncio.run(after(keyring))
    assert crashed > 10


def test_a_new_authority_comes_with_a_renewal_and_the_server_may_then_use_it(
    federation: Federation, keyring: Keyring
) -> None:
    old, new = federation.authority, Authority.made("the next authority")

    async def steps() -> None:
        memory = MemoryServer([], renew_in=0.0)
        async with devices_port(federation, memory) as bridge, joined(federation, keyring) as link:
            first = link.identity
            federation.authorities = [old, new]
            await link.hello(HELLO)
            await until(lambda: link.identity != first)
            assert kept(keyring).authorities == old.pem + new.pem
        federation.authority, federation.authorities = new, [new, old]
        async with devices_port(federation, memory) as bridge:
            keyring.keep(replace(kept(keyring), address=federation.address))
            async with joined(
                federation, keyring
            ) as link:  # its certificate is the old one's, the server's not
                second = link.identity
                await link.hello(HELLO)
                await until(lambda: link.identity != second)
                await link.next_task(0.0)
                assert bridge.serials[-1] == link.identity.parsed.serial_number
                assert kept(keyring).parsed.issuer == new.certificate.subject

    run(steps)
