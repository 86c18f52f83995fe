"""TLS handshakes of any caller: many at once end no server, and each meets the key of now."""

import asyncio
import contextlib
import ssl
from pathlib import Path

from fedserver.authority import setup
from fedserver.authority.authority import Authority
from fedserver.rpc.tls import CertificateSource
from tests.server.processes import daemon

HOST = "127.0.0.1"
HANDSHAKES, AT_ONCE = 800, 24


def made(state: Path) -> Path:
    setup.init(state, (HOST,), f"{HOST}:0", f"{HOST}:0", "clinic")
    return state


def test_tls_is_given_a_change_once_and_nothing_while_there_is_none(tmp_path: Path) -> None:
    authority = Authority.open(made(tmp_path / "s"))
    source = CertificateSource(authority)
    assert source.now() is not None
    assert [source.changed() for _ in range(3)] == [None] * 3
    authority.rotate()
    assert source.changed() is not None
    assert source.changed() is None


def test_a_storm_of_handshakes_ends_no_server(tmp_path: Path) -> None:
    """Callers without a certificate, in threads that gRPC has many of."""
    stranger = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    stranger.check_hostname, stranger.verify_mode = False, ssl.CERT_NONE

    async def knock(port: int, turns: asyncio.Semaphore) -> None:
        async with turns:
            _, writer = await asyncio.open_connection(HOST, port, ssl=stranger)
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def storm(port: int) -> None:
        turns = asyncio.Semaphore(AT_ONCE)
        await asyncio.gather(*(knock(port, turns) for _ in range(HANDSHAKES)))

    with daemon(made(tmp_path / "s"), options=()) as server:
        asyncio.run(storm(int(server.address.rpartition(":")[2])))
        assert server.process.poll() is None
