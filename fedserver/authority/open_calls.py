"""The open calls of a listener, by caller, and what is carried out even if its caller goes away."""

import asyncio
import functools
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


def to_the_end(method: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, Awaitable[T]]:
    """Carry out `method` to its end, even if its caller is canceled."""

    @functools.wraps(method)
    async def whole(*args: P.args, **kwargs: P.kwargs) -> T:
        return await asyncio.shield(asyncio.create_task(method(*args, **kwargs)))

    return whole


class OpenCalls:
    """The calls that are open, so that those of a caller whose certificate was revoked can be ended."""

    def __init__(self) -> None:
        self._calls: dict[str, set[asyncio.Task[object]]] = {}

    @contextmanager
    def calling(self, caller: str, check: Callable[[], None]) -> Iterator[None]:
        """Around a call. check: raises the error with which a call ends that `cut` has cut."""
        task = asyncio.current_task()
        assert task is not None
        calls = self._calls.setdefault(caller, set())
        calls.add(task)
        try:
            yield
        except asyncio.CancelledError:
            if self._calls.get(caller) is calls:
                raise  # the caller went away
            task.uncancel()
            check()
            raise
        finally:
            calls.discard(task)
            if not calls and self._calls.get(caller) is calls:
                del self._calls[caller]

    def count(self, caller: str) -> int:
        """How many calls a caller has open."""
        return len(self._calls.get(caller, ()))

    def cut(self, caller: str) -> int:
        """End the open calls of a caller; return how many there were."""
        calls = self._calls.pop(caller, set())
        for task in calls:
            task.cancel()
        return len(calls)
