"""The folder that releases are published in, at an https address or on this machine. It is not believed."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import closing
from http.client import HTTPException, HTTPSConnection
from pathlib import Path
from typing import IO
from urllib.parse import quote, urlsplit

from fedclient.net.throttle import Throttle
from shoal.core.engine.timeouts import CONNECTION
from shoal.core.errors import BadPayload, Unavailable
from shoal.core.exchange.wire import CHUNK

LONGEST = 600.0
"""Seconds that one file may take."""


class Source:
    """where: an https address, or the path of a folder. bandwidth: the owner's limit, bytes a second."""

    def __init__(self, where: str, bandwidth: float) -> None:
        self._where, self._throttle = where, Throttle(bandwidth)

    async def get(self, name: str, most: int) -> bytes | None:
        """A file; None if there is none of this name. Raises Unavailable, and BadPayload if it has more than
        `most` bytes."""
        found = bytearray()
        try:
            async with asyncio.timeout(LONGEST):
                async for chunk in self._chunks(name):
                    found += chunk
                    if len(found) > most:
                        raise BadPayload(f"{name} at {self._where} has more than {most} bytes", "")
                    await self._throttle.take(len(chunk))
        except FileNotFoundError:
            return None
        except (OSError, HTTPException) as error:
            why = str(error) or type(error).__name__
            raise Unavailable(f"{self._where} does not give {name}: {why}", "check updates.source") from None
        return bytes(found)

    async def _chunks(self, name: str) -> AsyncIterator[bytes]:
        if self._where.startswith("/"):
            with (Path(self._where) / name).open("rb") as file:
                while chunk := await asyncio.to_thread(file.read, CHUNK):
                    yield chunk
            return
        address = urlsplit(self._where)
        with closing(HTTPSConnection(address.hostname or "", address.port or 443, timeout=CONNECTION)) as way:
            answer = await asyncio.to_thread(_get, way, f"{address.path.rstrip('/')}/{quote(name)}")
            while chunk := await asyncio.to_thread(answer.read, CHUNK):
                yield chunk


def _get(way: HTTPSConnection, path: str) -> IO[bytes]:
    way.request("GET", path)
    answer = way.getresponse()
    if answer.status == 404:
        raise FileNotFoundError
    if answer.status != 200:
        raise HTTPException(f"it answers with status {answer.status}")
    return answer
