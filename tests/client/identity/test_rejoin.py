"""A device whose certificate is over: it comes back by itself, and only by the server's clock."""

from dataclasses import replace

import grpc
import pytest

from fedclient.identity.keyring import JoiningPort, Keyring
from shoal.core.errors import Refused, Unavailable
from tests.client.federation import DAY, Federation, devices_port, join_port
from tests.client.memory_server import MemoryServer
from tests.client.secure import HELLO, failure, joined, kept, run
from tests.waiting import until


def test_a_device_that_slept_too_long_rejoins_by_itself(federation: Federation, keyring: Keyring) -> None:
    federation.life, said = -DAY, list[str]()

    async def steps() -> None:
        async with (
            join_port(federation),
            devices_port(federation, MemoryServer([])) as bridge,
            joined(federation, keyring, said) as link,
        ):
            first, federation.life = link.identity, DAY
            error = await failure(link)
            assert (type(error), error.message) == (
                Unavailable,
                "the certificate was not valid now and has been replaced",
            )
            await link.hello(HELLO)
            assert bridge.serials == [link.identity.parsed.serial_number]
            assert kept(keyring) == link.identity
            assert link.identity.key != first.key

    run(steps)
    assert federation.log == ["challenge", "challenge", "rejoin"]
    assert "asking for a new one" in said[0]


def test_a_lost_answer_to_a_rejoin_is_asked_for_again(federation: Federation, keyring: Keyring) -> None:
    federation.life, federation.lose = -DAY, 2

    async def steps() -> None:
        async with (
            join_port(federation),
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
            join_port(federation),
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
            join_port(federation),
            devices_port(federation, MemoryServer([])),
            joined(federation, keyring) as link,
        ):
            assert isinstance(await failure(link), Unavailable)
            assert "rejoin" not in federation.log
            federation.slow = 60 * DAY  # its clock was wrong, so the certificate is not valid yet
            error = await failure(link)
            assert "not valid now and has been replaced" in error.message

    run(steps)
    assert federation.log[-1] == "rejoin"


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
            join_port(federation),
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
    """The device goes on trying: a stranger on the way must not end an agent that no one can visit."""
    federation.life = -DAY

    async def steps() -> None:
        async with devices_port(federation, MemoryServer([])):
            async with join_port(federation):
                keyring.keep(federation.identity_for("attic"))
                federation.life, port = DAY, federation.line.port
            stranger = Federation()
            async with joined(federation, keyring) as link:
                error = await failure(link)
                assert isinstance(error, Unavailable)
                assert f"127.0.0.1:{port} does not answer" in error.message
            async with join_port(stranger):
                identity = kept(keyring)
                joining_port = JoiningPort("127.0.0.1", stranger.line.port, identity.joining_port.pin)
                keyring.keep(replace(identity, joining_port=joining_port))
                async with joined(federation, keyring) as link:
                    error = await failure(link)
                    assert isinstance(error, Unavailable)
                    assert "another server answers" in error.message
            assert stranger.log == []

    run(steps)
