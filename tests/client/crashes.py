"""A process that dies between any two steps: everything that a test names as a step raises from there on."""

import inspect
from collections.abc import Callable
from typing import Any

import pytest


class Crash(BaseException):
    """The process is gone: no handler for errors hears of it."""


class Steps:
    """Counts what happens; after `left` of it, nothing more does."""

    def __init__(self, left: int) -> None:
        self.left = left

    def step(self) -> None:
        if self.left == 0:
            raise Crash
        self.left -= 1

    def around(self, patch: pytest.MonkeyPatch, owner: object, name: str) -> None:
        """Before and after each call of `owner.name` is a step."""
        original: Callable[..., Any] = getattr(owner, name)

        async def later(*arguments: Any, **options: Any) -> Any:
            self.step()
            result = await original(*arguments, **options)
            self.step()
            return result

        def now(*arguments: Any, **options: Any) -> Any:
            self.step()
            result = original(*arguments, **options)
            self.step()
            return result

        patch.setattr(owner, name, later if inspect.iscoroutinefunction(original) else now)
