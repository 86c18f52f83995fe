"""What keeps two sides from shaking hands over real TLS, and what is said of it."""

import asyncio
from typing import Any

import pytest

from fedclient.cli.setup.doctor import Finding, _line
from fedclient.identity.connection import Endpoint
from fedclient.identity.keyring import Keyring
from shoal.core.errors import Unavailable
from tests.client.bridge import serving
from tests.client.federation import DAY, Authority, Federation, devices_port, join_port
from tests.client.memory_server import MemoryServer
from tests.client.secure import failure, joined, run


@pytest.mark.parametrize(
    ("port", "said", "hint"),
    [
        (
            {"hosts": ["fl.example.org"]},
            "for another name than the one in its address",
            "a server name that is in its certificate",
        ),
        ({"days": (3, 30)}, "is not valid today", "its operator has to renew it"),
        ({"days": (-30, -3)}, "is not valid today", "its operator has to renew it"),
    ],
)
def test_a_certificate_of_the_server_that_is_not_good(
    federation: Federation, keyring: Keyring, port: dict[str, Any], said: str, hint: str
) -> None:
    async def steps() -> None:
        async with (
            join_port(federation),
            devices_port(federation, MemoryServer([]), **port),
            joined(federation, keyring) as link,
        ):
            error = await failure(link)
            assert isinstance(error, Unavailable)
            assert said in error.message
            assert hint in error.hint

    run(steps)


@pytest.mark.parametrize(("slow", "said"), [(5, "5 days ahead of"), (-5, "5 days behind")])
def test_how_far_a_clock_is_off_is_said(
    federation: Federation, keyring: Keyring, slow: int, said: str
) -> None:
    federation.slow = slow * DAY

    async def steps() -> None:
        async with (
            join_port(federation),
            devices_port(federation, MemoryServer([]), days=(3, 30)),
            joined(federation, keyring) as link,
        ):
            error = await failure(link)
            assert f"this device's clock is {said} the server's" in error.message
            assert error.hint == "set this device's clock"

    run(steps)


@pytest.mark.parametrize("name", ["authority", "another"])
def test_a_server_of_another_federation_is_told(federation: Federation, keyring: Keyring, name: str) -> None:
    other = Federation(authority=Authority.made(name))

    async def steps() -> None:
        async with devices_port(other, MemoryServer([])):
            federation.address = other.address
            async with joined(federation, keyring) as link:
                error = await failure(link)
                assert "not from an authority that this device trusts" in error.message
                assert "ask for a new join string" in error.hint

    run(steps)


def test_a_server_that_does_not_know_our_authority_is_tried_again(
    federation: Federation, keyring: Keyring
) -> None:
    async def steps() -> None:
        async with (
            join_port(federation),
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
                assert "does not speak TLS" in error.message

    run(steps)


def test_doctor_tells_another_server_from_none(federation: Federation) -> None:
    """Both keep the device from its server, and only one of them is cured by starting it."""
    other = Federation(authority=Authority.made("another"))
    identity = federation.identity_for("attic", "127.0.0.1:1")

    async def line(address: str) -> Finding:
        return await asyncio.to_thread(_line, Endpoint(identity, address, "attic"))

    async def steps() -> None:
        async with devices_port(other, MemoryServer([])):
            found = await line(other.address)
            assert "not from an authority that this device trusts" in found.text
            assert "check that this is the right server" in found.hint
        found = await line("127.0.0.1:1")
        assert found.text.startswith("127.0.0.1:1 does not answer: ")
        assert "Connection refused" in found.text
        assert found.hint.startswith("check that the server is running")

    run(steps)
