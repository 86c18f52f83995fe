"""The store on the one thread that may use it, for callers that must not wait."""

import asyncio
import contextlib
import functools
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar

from fedserver.store.blobs import Blobs
from fedserver.store.disk_space import Room
from fedserver.store.store import Store
from shoal.core.errors import DiskFull

P = ParamSpec("P")
T = TypeVar("T")
log = logging.getLogger("shoal.server")

AGAIN = 1.0
"""Seconds between two tries of what a full disk did not take."""


class Storage:
    """`await storage(Store.open_round, run, asked, title)`: one call after another, in order.

    full: what `insist` waits for, or None. room: of the state folder's disk.
    """

    def __init__(self, state: Path) -> None:
        self._state = state
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="store")
        self._store: Store | None = None
        self._ending = asyncio.Event()
        self.room = Room(state)
        self.full: DiskFull | None = None

    async def open(self) -> None:
        """Raises ConfigError when the folder is in use or too new, StorageFault when it cannot be read."""
        await asyncio.to_thread(self.room.make_way)
        self._store = await asyncio.get_running_loop().run_in_executor(self._thread, Store, self._state)

    async def __call__(
        self, method: Callable[Concatenate[Store, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        assert self._store is not None
        work = functools.partial(method, self._store, *args, **kwargs)
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    async def insist(
        self, method: Callable[Concatenate[Store, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """The same, for what is decided already: while the disk is full it waits, until there is room.

        Raises DiskFull only when the server ends meanwhile.
        """
        try:
            while True:
                try:
                    return await self(method, *args, **kwargs)
                except DiskFull as full:
                    if await asyncio.to_thread(self.room.release):
                        log.warning("the disk is full, the reserve is used up: %s", full)
                    elif self._ending.is_set():
                        raise
                    else:
                        if self.full is None:
                            log.error("nothing can go on before there is room on the disk: %s", full)
                        self.full = full
                        with contextlib.suppress(TimeoutError):
                            await asyncio.wait_for(self._ending.wait(), AGAIN)
        finally:
            self.full = None

    @property
    def blobs(self) -> Blobs:
        """Files alone: any thread may use them."""
        assert self._store is not None
        return self._store.blobs

    def wait_no_more(self) -> None:
        """Let what waits for room fail: the next start decides it anew."""
        self._ending.set()

    async def close(self) -> None:
        """Finish what was asked for, and let the folder go."""
        if self._store is not None:
            await self(Store.close)
        self._thread.shutdown()
