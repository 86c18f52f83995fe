"""Whether a server will answer soon, by the process that has the lock of its folder."""

import os
import subprocess
import sys
from pathlib import Path

from fedserver.cli.options import is_running
from fedserver.store.store import LOCK


def test_a_living_process_runs_and_one_that_has_ended_does_not_even_if_no_one_asked_how(
    tmp_path: Path,
) -> None:
    assert not is_running(tmp_path)
    (tmp_path / LOCK).write_text(f"{os.getpid()}\n")
    assert is_running(tmp_path)
    child = subprocess.Popen([sys.executable, "-c", ""])
    (tmp_path / LOCK).write_text(f"{child.pid}\n")
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert not is_running(tmp_path), "it has ended, though its number is still taken"
    child.wait()
    assert not is_running(tmp_path)
