"""The blobs of an agent's tasks and results: small ones inside of the messages, others by themselves."""

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from typing import Protocol, TypeVar

from fedclient.net.throttle import Throttle
from fedclient.store.blobs import BlobStore
from shoal.core.errors import BadPayload, Refused, Unavailable
from shoal.core.exchange.link import Failure, Link
from shoal.core.exchange.payload import BlobRef, Payload
from shoal.core.types import Bytes
from shoal.shell import crash

T = TypeVar("T")

TRIES = 4
"""How often a result is uploaded when the server finds its bytes wrong: a power cut may have damaged what the
server holds of an earlier attempt, and then it starts from the beginning."""


class Patiently(Protocol):
    """Makes a call until the server answers it."""

    async def __call__(self, call: Callable[[], Awaitable[T]], /) -> T: ...


class Transfers:
    """download_bytes: the size of the largest model that the owner allows. bandwidth: bytes a second, in both
    directions together."""

    def __init__(
        self, link: Link, store: BlobStore, patiently: Patiently, download_bytes: int, bandwidth: float
    ) -> None:
        self._link, self._store, self._patiently = link, store, patiently
        self._download_bytes, self._throttle = download_bytes, Throttle(bandwidth)

    async def fetch(self, blob: BlobRef, inline: Mapping[str, Bytes]) -> None:
        """Have a blob in the store: out of `inline` if it is there, or else from the server."""
        if blob.size > self._download_bytes:
            raise Refused(
                f"a model of {blob.size} bytes; this device accepts at most {self._download_bytes}",
                "raise limits.download_bytes in this device's settings",
            )
        if blob.sha256 in inline:
            await self._throttle.take(blob.size)
            self._store.put(blob, inline[blob.sha256])
            return
        try:
            await self._patiently(lambda: self._store.fetch(blob, self._received))
        except BadPayload:  # an earlier part may be damaged: once more from the start
            await self._patiently(lambda: self._store.fetch(blob, self._received))

    async def _received(self, blob: BlobRef, start: int) -> AsyncIterator[Bytes]:
        async for chunk in self._link.fetch(blob, start):
            await self._throttle.take(len(chunk))
            yield chunk

    async def inline(self, result: Payload | Failure, most: int) -> dict[str, Bytes]:
        """The blobs that the report of a result carries itself, each of at most `most` bytes."""
        found: dict[str, Bytes] = {}
        for blob in result.small_blobs(most) if isinstance(result, Payload) else ():
            found[blob.sha256] = b"".join(self._store.chunks(blob, 0))
            await self._throttle.take(blob.size)
        return found

    async def upload(
        self, result: Payload | Failure, but: Collection[str], check: Callable[[], None]
    ) -> None:
        """Upload the blobs of a result, but these. check: raises an error once no more of it may leave; it is
        called before each chunk, since the server may be away for days. Raises BadPayload if the server finds
        the bytes of one wrong `TRIES` times."""
        for weights in result.weights() if isinstance(result, Payload) else ():
            if weights.blob.sha256 not in but:
                await self._upload(weights.blob, check)

    async def _upload(self, blob: BlobRef, check: Callable[[], None]) -> None:
        for _ in range(TRIES - 1):
            with contextlib.suppress(BadPayload):
                await self._patiently(lambda: self._go_on_with(blob, check))
                return
        await self._patiently(lambda: self._go_on_with(blob, check))

    async def _go_on_with(self, blob: BlobRef, check: Callable[[], None]) -> None:
        check()
        held = await self._link.uploaded(blob)
        crash.point("device.upload-asked")
        while held < blob.size:
            before, held = held, await self._link.upload(blob, held, self._chunks(blob, held, check))
            if held <= before:
                raise Unavailable(
                    f"the server accepted no more bytes of a result after {before} of {blob.size}"
                )

    async def _chunks(self, blob: BlobRef, start: int, check: Callable[[], None]) -> AsyncIterator[Bytes]:
        for chunk in self._store.chunks(blob, start):
            await self._throttle.take(len(chunk))
            check()
            yield chunk
            crash.point("device.chunk-sent")
