"""The pools of memory of a process, and what its garbage collector looks at."""

import gc
import subprocess
import sys

import pytest

from shoal.shell.memory import ARENAS, freeze_loaded

PROGRAM = """
import ctypes, sys, threading
from shoal.shell.memory import share_arenas

if sys.argv[1] == "shared" and not share_arenas():
    sys.exit("no such setting")
libc, together = ctypes.CDLL(None), threading.Barrier(17)
libc.malloc.restype = ctypes.c_void_p


def take():
    libc.malloc(100_000)
    together.wait()
    together.wait()


for _ in range(16):
    threading.Thread(target=take).start()
together.wait()
libc.malloc_info(0, ctypes.c_void_p.in_dll(libc, "stdout"))
libc.fflush(None)
together.wait()
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="a setting of glibc")
def test_threads_share_pools() -> None:
    def pools(how: str) -> int:
        program = [sys.executable, "-c", PROGRAM, how]
        found = subprocess.run(program, capture_output=True, text=True)
        if "no such setting" in found.stderr:
            pytest.skip("another C library")
        assert found.returncode == 0, found.stderr
        return found.stdout.count("<heap nr=")

    assert pools("shared") <= ARENAS < pools("apart")


def test_what_is_loaded_is_not_looked_at_again_and_what_comes_later_is() -> None:
    try:
        freeze_loaded()
        assert gc.get_freeze_count() > 10_000
        later: list[object] = []
        later.append(later)
        del later
        assert gc.collect() >= 1
    finally:
        gc.unfreeze()
