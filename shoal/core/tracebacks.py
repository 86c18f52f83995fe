"""Which line of an author's own code an error came from, for people who wrote a learner or a data set.

Lines of Shoal and of torch, through which every error comes, tell them nothing.
"""

import importlib
import sys
import sysconfig
import traceback
from collections.abc import Iterator
from pathlib import Path

_PACKAGES = ("shoal", "fedserver", "fedclient", "shoal_lab", "torch")
"""Whose lines are left out."""


def line_of_author(error: BaseException) -> str:
    """The last line of an author's own code that an error came through; "" where there is none.

    Example: 'learner.py, line 12, in forward: x = self.conv(x)'
    """
    if isinstance(error, SyntaxError) and error.filename:
        return f"{Path(error.filename).name}, line {error.lineno}"
    found = [each for each in traceback.extract_tb(error.__traceback__) if not _is_ours(each.filename)]
    own = [each for each in found if not each.filename.startswith(_installed())] or found
    if not own:
        return ""
    text = f": {own[-1].line}" if own[-1].line else ""
    return f"{Path(own[-1].filename).name}, line {own[-1].lineno}, in {own[-1].name}{text}"


def traceback_of_author(error: BaseException) -> str:
    """The traceback of an error, and of those that led to it, without the lines of Shoal and of torch; ""
    where no line is left, as for a network of torch's layers only."""
    found = traceback.TracebackException.from_exception(error)
    for each in _chained(found):
        each.stack[:] = [frame for frame in each.stack if not _is_ours(frame.filename)]
    is_empty = not any(each.stack for each in _chained(found)) and not isinstance(error, SyntaxError)
    return "" if is_empty else "".join(found.format())


def _chained(found: traceback.TracebackException) -> Iterator[traceback.TracebackException]:
    """It and those that led to it."""
    waiting: list[traceback.TracebackException | None] = [found]
    while waiting:
        each = waiting.pop()
        if each is not None:
            yield each
            waiting += [each.__cause__, each.__context__]


def _is_ours(file: str) -> bool:
    loaded = (getattr(sys.modules.get(name), "__file__", None) for name in _PACKAGES)
    folders = tuple(f"{Path(each).parent}/" for each in loaded if each)
    return file.startswith((*folders, f"{Path(importlib.__file__).parent}/", "<frozen "))


def _installed() -> tuple[str, ...]:
    return tuple(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib"))
