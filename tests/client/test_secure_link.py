"""A link over real TLS both ways: renewal under work, a certificate that is over, and what goes wrong."""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import grpc
import pytest

from fedclient.agent import Agent, Allowance, Until
from fedclient.identity import link as links
from fedclient.identity.keyring import EnrolPort, Identity, Keyring
from fedclient.identity.link import SecureLink
from fedclient.identity.rpc import credentials
from fedclient.rpc import answers
from fedclient.state import Status
from fedclient.watcher import Watcher
from fedcore._pb.fed.v1.fault_pb2 import Fault
from fedcore.errors import Refused, Revoked, ShoalError, Unavailable
from fedcore.link import Hello, Outcome
from tests.client.bridge import serving
from tests.client.crashes import Crash, Steps
from tests.client.federation import DAY, Authority, Federation, devices_port, enrolment_port
from tests.client.memory_server import MemoryServer, until
from tests.client.visits import MODEL, Device, NoJitter, train

HELLO = Hello("test")


@pytest.fixture
def federation() -> Federation:
    return Federation()


@pytest.fixture
def keyring(tmp_path: Path) -> Keyring:
    return Keyring(tmp_path / "identity")


def run(steps: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(steps(), 60))


@asynccontextmanager
async def joined(
    federation: Federation, keyring: Keyring, said: list[str] | None = None, address: str | None = None
) -> AsyncIterator[SecureLink]:
    """A link of a device that has joined; its identity is kept."""
    if keyring.identity() is None:
        keyring.keep(federation.identity_for("attic"))
    say = (said if said is not None else []).append
    link = SecureLink(keyring, kept(keyring), say, address, Random(1))
    try:
        yield link
    finally:
        await link.close()


def kept(keyring: Keyring) -> Identity:
    identity = keyring.identity()
    assert identity is not None
    return identity


async def failure(link: SecureLink) -> ShoalError:
    with pytest.raises(ShoalError) as caught:
        await link.hello(HELLO)
    return caught.value


# -- who calls ------------------------------------------------------------------------------------------


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


def test_a_revoked_device_is_told_so(federation: Federation, keyring: Keyring) -> None:
    async def revoked(context: Any) -> None:
        fault = Fault(code="revoked", message="an operator has revoked attic", mend="ask the operator")
        metadata = (("shoal-fault-bin", fault.SerializeToString()),)
        await context.abort(grpc.StatusCode.PERMISSION_DENIED, "revoked", metadata)

    async def steps() -> None:
        async with devices_port(federation, MemoryServer([])) as bridge, joined(federation, keyring) as link:
            bridge.raising = revoked
            error = await failure(link)
            assert (type(error), error.message) == (Revoked, "an operator has revoked attic")

    run(steps)
    assert federation.log == []  # it does not try to get back in


# -- renewal --------------------------------------------------------------------------------------------


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
            assert link.identity.enrol == first.enrol

    run(steps)
    assert federation.log == ["renew"]
    assert "attic has a new certificate" in said[0]


def test_renewals_under_work_lose_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tasks, heartbeats and uploads of many chunks go on while the certificate changes again and again."""
    monkeypatch.setattr(links, "SOONEST", 0.01)
    federation, memory = Federation(renew_in=0.02), MemoryServer([], chunk=40, renew_in=0.0)
    memory.tasks = [train(memory, number, float(number)) for number in range(1, 9)]
    device, keyring = Device(tmp_path, memory), Keyring(tmp_path / "identity")
    device.performer.before = [lambda: asyncio.sleep(0.05) for _ in memory.tasks]
    watcher = Watcher(Status("attic", "memory"), tmp_path, device.doing.append, device.said.append)

    async def steps() -> None:
        async with devices_port(federation, memory) as bridge, joined(federation, keyring) as link:
            store = device.performer.store
            agent = Agent(
                link, device.performer, store, device.outbox, watcher, Allowance(patience=0.0), NoJitter()
            )
            await agent.run(Until.FINISHED)
            assert len(set(bridge.serials)) > 4

    run(steps)
    assert device.performer.performed == [1, 2, 3, 4, 5, 6, 7, 8]
    assert [report.round for report in memory.reports] == [1, 2, 3, 4, 5, 6, 7, 8]
    assert len(memory.calls("hello")) == 1
    assert watcher.status.outcome == Outcome.ACCEPTED.value
    assert watcher.failure is None


def test_a_call_under_way_keeps_its_channel(federation: Federation, keyring: Keyring) -> None:
    memory = MemoryServer([], chunk=1000, renew_in=0.0)
    weights = memory.keep(MODEL)

    async def steps() -> None:
        async with devices_port(federation, memory) as bridge, joined(federation, keyring) as link:
            first = link.identity
            await link.hello(HELLO)
            fetch = aiter(link.fetch(weights.blob, 0))
            data = await anext(fetch)
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
    monkeypatch.setattr("fedclient.backoff.FIRST", 0.01)
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


# -- too late -------------------------------------------------------------------------------------------


def test_a_device_that_slept_too_long_rejoins_by_itself(federation: Federation, keyring: Keyring) -> None:
    federation.life, said = -DAY, list[str]()

    async def steps() -> None:
        async with (
            enrolment_port(federation),
            devices_port(federation, MemoryServer([])) as bridge,
            joined(federation, keyring, said) as link,
        ):
            first, federation.life = link.identity, DAY
            error = await failure(link)
            assert (type(error), error.message) == (
                Unavailable,
                "the certificate was over, and has been replaced",
            )
            await link.hello(HELLO)
            assert bridge.serials == [link.identity.parsed.serial_number]
            assert kept(keyring) == link.identity
            assert link.identity.key != first.key

    run(steps)
    assert federation.log == ["challenge", "challenge", "rejoin"]
    assert "ended on" in said[0]


def test_a_lost_answer_to_a_rejoin_is_asked_for_again(federation: Federation, keyring: Keyring) -> None:
    federation.life, federation.lose = -DAY, 2

    async def steps() -> None:
        async with (
            enrolment_port(federation),
            devices_port(federation, MemoryServer([])),
            joined(federation, keyring) as link,
        ):
            federation.life = DAY
            for _ in range(3):
                await failure(link)
            await link.hello(HELLO)

    run(steps)
    assert len(federation.answered) == 1


def test_a_device_that_may_not_come_back_ends(federation: Federation, keyring: Keyring) -> None:
    federation.life = -DAY
    federation.refuse = lambda context: context.abort(grpc.StatusCode.PERMISSION_DENIED, "gone too long")

    async def steps() -> None:
        async with (
            enrolment_port(federation),
            devices_port(federation, MemoryServer([])),
            joined(federation, keyring) as link,
        ):
            error = await failure(link)
            assert (type(error), error.message) == (Refused, "gone too long")

    run(steps)


def test_the_servers_clock_decides_and_no_other(
    federation: Federation, keyring: Keyring, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A certificate that is over by this machine's clock, and not by the server's, is not replaced."""
    federation.life, federation.slow = -DAY, 3 * DAY

    async def steps() -> None:
        async with (
            enrolment_port(federation),
            devices_port(federation, MemoryServer([])),
            joined(federation, keyring) as link,
        ):
            assert isinstance(await failure(link), Unavailable)
            federation.slow = 60 * DAY
            error = await failure(link)
            assert "begins in 30.0 days" in error.message
            assert "set back" in error.mend

    run(steps)
    assert "rejoin" not in federation.log


def test_nothing_is_decided_by_the_devices_clock(
    federation: Federation, keyring: Keyring, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has none here. TLS itself looks at one, so the server's certificates are good for years."""
    for module in ("link", "rpc"):
        monkeypatch.setattr(f"fedclient.identity.{module}.time", None)
    federation.life = -DAY

    async def steps() -> None:
        memory = MemoryServer([], renew_in=0.0)
        async with (
            enrolment_port(federation),
            devices_port(federation, memory),
            joined(federation, keyring) as link,
        ):
            federation.life = DAY
            await failure(link)
            second = link.identity
            await link.hello(HELLO)
            await until(lambda: link.identity != second)

    run(steps)
    assert federation.log == ["challenge", "challenge", "rejoin", "renew"]


def test_who_hangs_up_may_be_someone_else_so_the_pin_is_asked(
    federation: Federation, keyring: Keyring
) -> None:
    """The device goes on trying: a stranger on the way must not end an agent that nobody can visit."""
    federation.life = -DAY

    async def steps() -> None:
        async with devices_port(federation, MemoryServer([])):
            async with enrolment_port(federation):
                keyring.keep(federation.identity_for("attic"))
                federation.life, port = DAY, federation.line.port
            stranger = Federation()
            async with joined(federation, keyring) as link:
                error = await failure(link)
                assert isinstance(error, Unavailable)
                assert f"127.0.0.1:{port} does not answer" in error.message
            async with enrolment_port(stranger):
                identity = kept(keyring)
                enrol = EnrolPort("127.0.0.1", stranger.line.port, identity.enrol.pin)
                keyring.keep(replace(identity, enrol=enrol))
                async with joined(federation, keyring) as link:
                    error = await failure(link)
                    assert isinstance(error, Unavailable)
                    assert "someone else answers" in error.message
            assert stranger.log == []

    run(steps)


# -- what keeps hands apart -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("port", "said", "mend"),
    [
        ({"hosts": ["fl.example.org"]}, "for another name than the one that was called", "by a name of"),
        ({"days": (3, 30)}, "is not good today", "its operator has to renew it"),
        ({"days": (-30, -3)}, "is not good today", "its operator has to renew it"),
    ],
)
def test_a_certificate_of_the_server_that_is_not_good(
    federation: Federation, keyring: Keyring, port: dict[str, Any], said: str, mend: str
) -> None:
    async def steps() -> None:
        async with (
            enrolment_port(federation),
            devices_port(federation, MemoryServer([]), **port),
            joined(federation, keyring) as link,
        ):
            error = await failure(link)
            assert isinstance(error, Unavailable)
            assert said in error.message
            assert mend in error.mend

    run(steps)


@pytest.mark.parametrize(("slow", "said"), [(5, "5 days ahead of"), (-5, "5 days behind")])
def test_how_far_a_clock_is_off_is_said(
    federation: Federation, keyring: Keyring, slow: int, said: str
) -> None:
    federation.slow = slow * DAY

    async def steps() -> None:
        async with (
            enrolment_port(federation),
            devices_port(federation, MemoryServer([]), days=(3, 30)),
            joined(federation, keyring) as link,
        ):
            error = await failure(link)
            assert f"this device's clock is {said} the server's" in error.message
            assert error.mend == "set this device's clock"

    run(steps)


@pytest.mark.parametrize("name", ["authority", "another"])
def test_a_server_of_another_federation_is_told(federation: Federation, keyring: Keyring, name: str) -> None:
    other = Federation(authority=Authority.made(name))

    async def steps() -> None:
        async with devices_port(other, MemoryServer([])):
            federation.address = other.address
            async with joined(federation, keyring) as link:
                error = await failure(link)
                assert "not of an authority that this device trusts" in error.message
                assert "ask for a new join string" in error.mend

    run(steps)


def test_a_server_that_does_not_know_our_authority_is_tried_again(
    federation: Federation, keyring: Keyring
) -> None:
    async def steps() -> None:
        async with (
            enrolment_port(federation),
            devices_port(federation, MemoryServer([]), trusting=Authority.made()),
            joined(federation, keyring) as link,
        ):
            assert isinstance(await failure(link), Unavailable)

    run(steps)
    assert federation.log == ["challenge"]


def test_a_port_in_plain_text_is_told(federation: Federation, keyring: Keyring) -> None:
    async def steps() -> None:
        async with serving(MemoryServer([])) as (plain, _):
            federation.address = plain.address
            async with joined(federation, keyring) as link:
                error = await failure(link)
                assert "speaks no TLS" in error.message

    run(steps)


# -- another authority ----------------------------------------------------------------------------------


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
