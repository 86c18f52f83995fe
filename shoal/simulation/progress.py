"""How far a simulation is: one line on stderr, where a person looks at it."""

import math
import sys
import time
from collections.abc import Callable
from typing import Self

Progress = Callable[[str], None]
"""Is given each line."""
PATIENCE = 3.0
"""Seconds after which a person wants to know: what is over before says nothing."""
WIDTH = 110


class Shown:
    """What a simulation says while it goes on, until the end of a `with` block.

    wanted: a function that is given each line; True: one line on stderr, which each next one overwrites, in a
    terminal as in a notebook; None: the same after `PATIENCE`, if stderr is a terminal's or a notebook's, and
    the line is taken away at the end; False: nothing.
    """

    def __init__(self, wanted: bool | Progress | None) -> None:
        self._tell = wanted if callable(wanted) else None
        self._passing = wanted is None
        self._after = 0.0 if wanted is True else PATIENCE if wanted is None and _is_watched() else math.inf
        self._began, self._written = time.monotonic(), False

    def __call__(self, text: str) -> None:
        if self._tell is not None:
            self._tell(text)
        elif time.monotonic() - self._began >= self._after:
            self._write(f"\r{text:<{WIDTH}}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        if self._written:
            self._write(f"\r{'':<{WIDTH}}\r" if self._passing else "\n")

    def _write(self, text: str) -> None:
        sys.stderr.write(text)
        sys.stderr.flush()
        self._written = True


def _is_watched() -> bool:
    """Whether a person sees what is written to stderr at once: a notebook's kernel is no terminal."""
    return sys.stderr.isatty() or type(sys.stderr).__module__.startswith("ipykernel.")
