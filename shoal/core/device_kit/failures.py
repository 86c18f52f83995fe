"""Whose fault it was: failures in an author's code become a LearnerFault with the author's own traceback."""

import importlib
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

import torch

from shoal.core.errors import LearnerFault, ShoalError

MAX_DETAILS = 4000
"""Characters of a traceback that are kept: its end, where the cause stands."""

_OURS = (str(Path(__file__).parents[2]), str(Path(importlib.__file__).parent), "<frozen importlib")
_TORCH = str(Path(torch.__file__).parent)


@contextmanager
def authors(what: str) -> Iterator[None]:
    """Around a call of the author's code `what`, such as "train()": whatever it raises is a LearnerFault.

    A ShoalError passes as it is. SystemExit does not: `sys.exit()` in a learner must not end the device.
    """
    try:
        yield
    except ShoalError:
        raise
    except (Exception, SystemExit) as error:
        raise LearnerFault(
            f"the learner's {what} failed: {type(error).__name__}: {error}"[:MAX_DETAILS],
            "fix it where the traceback points",
            details=_details(error),
        ) from error


def _details(error: BaseException) -> str:
    """The traceback from the author's first frame on, without ours and torch's above it."""
    frames = error.__traceback__
    # A network made of torch's own layers alone may have no frame of the author's at all.
    start = _first_frame(frames, (*_OURS, _TORCH)) or _first_frame(frames, _OURS)
    return "".join(traceback.format_exception(type(error), error, start))[-MAX_DETAILS:]


def _first_frame(frames: TracebackType | None, skipped: tuple[str, ...]) -> TracebackType | None:
    while frames is not None and frames.tb_frame.f_code.co_filename.startswith(skipped):
        frames = frames.tb_next
    return frames
