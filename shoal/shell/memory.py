"""How this process asks for memory, and how it looks for memory that is free again."""

import ctypes
import gc
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


def freeze_loaded() -> None:
    """Let the garbage collector never look again at what is there now. Call it once a daemon is ready.

    That is mostly modules, hundreds of thousands of objects, which stay until the end anyway. To go through
    them again and again takes a twelfth of the processor time of a server with small models.
    """
    gc.collect()
    gc.freeze()
