"""The store on the one thread that may use it, for callers that must not wait."""

import asyncio
import functools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar

from fedserver.blobs import Blobs
from fedserver.store import Store

P = ParamSpec("P")
T = TypeVar("T")


class Storage:
    """`await storage(Store.open_round, run, asked, title)`: one call after another, in order."""

    def __init__(self, state: Path) -> None:
        self._state = state
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="store")
        self._store: Store | None = None

    async def open(self) -> None:
        """Raises ConfigError when the folder is in use or too new, StorageFault when it cannot be read."""
        self._store = await asyncio.get_running_loop().run_in_executor(self._thread, Store, self._state)

    async def __call__(
        self, method: Callable[Concatenate[Store, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        assert self._store is not None
        work = functools.partial(method, self._store, *args, **kwargs)
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    @property
    def blobs(self) -> Blobs:
        """Files alone: any thread may use them."""
        assert self._store is not None
        return self._store.blobs

    async def close(self) -> None:
        """Finish what was asked for, and let the folder go."""
        if self._store is not None:
            await self(Store.close)
        self._thread.shutdown()
