"""Models from a bucket, by an address that the server has signed, so that their bytes do not pass the server.

The server is not believed about where this device may connect: its owner names the hosts (`blob_hosts`). What
comes is compared with its hash, as always. If the bucket does not give it, the server does.
"""

import asyncio
import ipaddress
import time
from collections.abc import AsyncIterator, Callable, Collection
from typing import TYPE_CHECKING
from urllib.parse import SplitResult, urlsplit

from shoal.core.engine import timeouts
from shoal.core.engine.timeouts import CONNECTION, STALL, Progress
from shoal.core.errors import Unavailable
from shoal.core.exchange.wire import CHUNK

if TYPE_CHECKING:
    from http.client import HTTPConnection, HTTPResponse

PAUSE = 600.0
"""Seconds for which the server is asked for bytes again, after the bucket did not give them."""


class Direct:
    """hosts: those that the owner trusts, as "host" or "host:port"; without any, nothing is fetched.

    clock: any monotonic one, in seconds.
    """

    def __init__(self, hosts: Collection[str] = (), clock: Callable[[], float] = time.monotonic) -> None:
        self._hosts, self._clock, self._until = frozenset(hosts), clock, 0.0
        self._begun = ""

    def wants(self, name: str, start: int) -> bool:
        """Whether the server should name an address for a blob, whose bytes are wanted from `start` on.

        What is fetched once more from its beginning was damaged: the server gives that, and repairs it.
        """
        again = start == 0 and name == self._begun
        self._begun = name
        return bool(self._hosts) and self._clock() >= self._until and not again

    async def chunks(self, address: str, start: int) -> AsyncIterator[bytes]:
        """The bytes at an address, from `start` on.

        Raises Unavailable, and then the next attempts go to the server: for an address that the owner has not
        allowed, too.
        """
        try:
            async for chunk in self._chunks(address, start):
                yield chunk
        except Unavailable:
            self._until = self._clock() + PAUSE
            raise

    async def _chunks(self, address: str, start: int) -> AsyncIterator[bytes]:
        found = self._checked(address)
        progress = Progress(self._clock())
        connection = _connection(found)
        try:
            answer = await asyncio.to_thread(_get, connection, found, start)
            left = answer.length or 0
            while chunk := await asyncio.to_thread(_read, answer, found):
                if self._clock() > progress.until():
                    raise _away(found, f"less than {timeouts.LEAST} bytes came in {STALL:.0f} s")
                progress.moved(len(chunk), self._clock())
                left -= len(chunk)
                yield chunk
            if left > 0:
                raise _away(found, f"the connection ended {left} bytes too early")
        finally:
            connection.close()

    def _checked(self, address: str) -> SplitResult:
        """Raises Unavailable unless the owner allows this address."""
        try:
            found = urlsplit(address)
            named = {found.hostname, f"{found.hostname}:{found.port or 443}"}
        except ValueError:
            raise Unavailable(
                "the server named an address that is none", "ask the server's operator"
            ) from None
        secure = found.scheme == "https" or (found.scheme == "http" and _is_loopback(found.hostname))
        if not secure or found.username is not None or not named & self._hosts:
            where = f"{found.scheme}://{found.hostname}"
            raise Unavailable(
                f"the server named {where} for a model, which blob_hosts does not allow",
                "add the host to blob_hosts in this device's settings if you trust it",
            )
        return found


def _is_loopback(host: str | None) -> bool:
    try:
        return ipaddress.ip_address(host or "").is_loopback
    except ValueError:
        return False


def _connection(address: SplitResult) -> "HTTPConnection":
    """It is not open yet, uses no proxy, and follows no redirection."""
    from http.client import HTTPConnection, HTTPSConnection

    cls = HTTPSConnection if address.scheme == "https" else HTTPConnection
    # Without a port, http.client takes the end of a number such as 2001:db8::1 for one.
    return cls(address.hostname or "", address.port or cls.default_port, timeout=CONNECTION)


def _get(connection: "HTTPConnection", address: SplitResult, start: int) -> "HTTPResponse":
    from http.client import HTTPException

    headers = {"Range": f"bytes={start}-"} if start else {}
    try:
        connection.request("GET", f"{address.path}?{address.query}", headers=headers)
        answer = connection.getresponse()
    except (OSError, HTTPException, ValueError) as error:
        raise _away(address, str(error) or type(error).__name__) from None
    if answer.status != (206 if start else 200):
        raise _away(address, f"it answers with status {answer.status}")
    return answer


def _read(answer: "HTTPResponse", address: SplitResult) -> bytes:
    from http.client import HTTPException

    try:
        return answer.read1(CHUNK)
    except (OSError, HTTPException) as error:
        raise _away(address, str(error) or type(error).__name__) from None


def _away(address: SplitResult, why: str) -> Unavailable:
    return Unavailable(f"{address.hostname} does not give a model: {why}", "the server is asked for it")
