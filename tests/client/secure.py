"""A device's end of mutual TLS, for tests: a link of a device that has joined."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from fedclient.identity.keyring import Identity, Keyring
from fedclient.identity.link import SecureLink
from shoal.core.errors import ShoalError
from shoal.core.exchange.link import Hello
from tests.client.federation import Federation
from tests.waiting import HANG

HELLO = Hello("test")


def run(steps: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(steps(), HANG))


@asynccontextmanager
async def joined(
    federation: Federation, keyring: Keyring, said: list[str] | None = None, address: str | None = None
) -> AsyncIterator[SecureLink]:
    """A link of a device that has joined; its identity is kept."""
    if keyring.identity() is None:
        keyring.keep(federation.identity_for("attic"))
    say = (said if said is not None else []).append
    link = SecureLink(keyring, kept(keyring), say, address)
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
