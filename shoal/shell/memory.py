"""How this process asks for memory."""

import ctypes
from contextlib import suppress

ARENAS = 2
_M_ARENA_MAX = -8
"""The number of this setting in glibc's malloc.h."""


def share_arenas() -> bool:
    """Let all threads take memory from the same few pools. Call it before there are threads.

    glibc gives each thread a pool of its own, and none gives much back: a server whose many threads pass
    buffers of a megabyte on would keep those of each. Returns False where there is no such setting.
    """
    with suppress(OSError, AttributeError):  # another C library
        return bool(ctypes.CDLL(None).mallopt(_M_ARENA_MAX, ARENAS))
    return False
