"""What keeps two sides from shaking hands over real TLS, and what is said of it."""

import asyncio

from fedclient.cli.setup.doctor import Finding, _line
from fedclient.identity.connection import Endpoint
from fedclient.identity.keyring import Keyring
from shoal.core.errors import Unavailable
from tests.client.bridge import serving
from tests.client.federation import Authority, Federation, devices_port, join_port
from tests.client.memory_server import MemoryServer
from tests.client.secure import failure, joined, run


def test_a_server_with_another_key_is_told(federation: Federation, keyring: Keyring) -> None:
    other = Federation()

    async def steps() -> None:
        async with devices_port(other, MemoryServer([])):
            federation.address = other.address
            async with joined(federation, keyring) as link:
                error = await failure(link)
                assert isinstance(error, Unavailable)
                assert "is not the one that this device knows" in error.message

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
    assert federation.log == ["challenge", "return"]


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
    other = Federation()
    identity = federation.identity_for("attic", "127.0.0.1:1")

    async def line(address: str) -> Finding:
        return await asyncio.to_thread(_line, Endpoint(identity, address, "attic"))

    async def steps() -> None:
        async with devices_port(other, MemoryServer([])):
            found = await line(other.address)
            assert "is not the one that this device knows" in found.text
            assert "check that this is the right server" in found.hint
        found = await line("127.0.0.1:1")
        assert found.text.startswith("127.0.0.1:1 does not answer: ")
        assert "Connection refused" in found.text
        assert found.hint.startswith("check that the server is running")

    run(steps)
