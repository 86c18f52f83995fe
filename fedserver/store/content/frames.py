"""Blobs cut into the messages in which they travel. Devices that fetch the same model share its frames."""

import asyncio
import os
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from shoal.core.exchange.wire import fetch_frame
from shoal.core.types import Bytes

MAX_BYTES = 32 << 20
"""Bytes of frames that are kept: devices that fetch a model at the same time are rarely further apart."""


@dataclass(frozen=True)
class Frame:
    """A message of the contract (FetchResponse), and the bytes of the blob in it."""

    message: bytes
    data: Bytes


class Frames:
    """The frames that were cut last. `get` is for one event loop, `forget` for any thread."""

    def __init__(self, most: int = MAX_BYTES) -> None:
        self._most = most
        self._cut: dict[tuple[str, int, int], asyncio.Task[Frame]] = {}

    async def get(self, file: BinaryIO, sha256: str, at: int, size: int) -> Frame:
        """The frame with `size` bytes of a blob, or what is left of them, from byte `at` on.

        file: the blob. It is read on a thread, and once for all who want this frame. Raises OSError.
        """
        key = sha256, at, size
        if key not in self._cut:
            # Of a second descriptor, since who wanted the frame first may close its file before it is read.
            reading = asyncio.to_thread(_read, os.dup(file.fileno()), at, size)
            self._cut[key] = asyncio.create_task(reading)
            self._trim()
        return await self._found(key)

    async def whole(self, path: Path, sha256: str, size: int) -> Bytes:
        """All bytes of a small blob, in a file at `path`. Raises OSError."""
        key = sha256, 0, size
        if key not in self._cut:
            file = await asyncio.to_thread(path.open, "rb")
            with file:
                return (await self.get(file, sha256, 0, size)).data
        return (await self._found(key)).data

    async def _found(self, key: tuple[str, int, int]) -> Frame:
        """A frame that is read already, or is being read: who calls off one call does not end it for others,
        and an error is not kept for them."""
        found = self._cut[key]
        try:
            return found.result() if found.done() else await asyncio.shield(found)
        except OSError:
            self._cut.pop(key, None)
            raise

    def _trim(self) -> None:
        """Drop the oldest frames, but not the newest one."""
        held = sum(size for _, _, size in self._cut)
        for key in list(self._cut)[:-1]:
            if held <= self._most:
                break
            held -= key[2]
            self._cut.pop(key, None)

    def forget(self, sha256: str) -> None:
        """Read this blob again when it is wanted: its file may have changed, or is gone."""
        for key in [each for each in list(self._cut) if each[0] == sha256]:
            self._cut.pop(key, None)


def _read(descriptor: int, at: int, size: int) -> Frame:
    try:
        data = os.pread(descriptor, size, at)
    finally:
        os.close(descriptor)
    message = fetch_frame(at, data)
    return Frame(message, memoryview(message)[len(message) - len(data) :])
