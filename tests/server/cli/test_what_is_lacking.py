"""What a machine lacks, and who has what a server needs, from the command line."""

import os
import socket
import subprocess
import sys
from pathlib import Path

from tests.server.processes import PLAIN, daemon
from tests.waiting import HANG

WITHOUT_TORCH = """
import sys
sys.modules["torch"] = None
from fedserver.__main__ import main
main()
"""


def said(*line: object) -> tuple[int, str]:
    """The exit code of Python with these arguments, and what it wrote to standard error."""
    command = [sys.executable, *map(str, line)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANG, check=False)
    return done.returncode, done.stderr


def test_a_simulation_without_pytorch_names_what_to_install() -> None:
    code, text = said("-c", WITHOUT_TORCH, "simulate", "--dataset", "digits")
    assert (code, "error[missing-package]" in text) == (3, True), text
    assert "pip install torch scikit-learn kneed" in text


def test_a_port_that_is_taken_is_refused_with_the_process_that_has_it(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        code, text = said(
            *("-m", "fedserver", "up", "--state", tmp_path / "s", "--listen", listen, "--insecure-loopback")
        )
    assert (code, f"cannot listen on {listen}: process {os.getpid()} " in text) == (3, True), text


def test_a_folder_that_is_taken_is_refused_with_the_process_that_has_it(tmp_path: Path) -> None:
    with daemon(tmp_path / "s") as server:
        code, text = said("-m", "fedserver", "up", "--state", tmp_path / "s", *PLAIN)
        assert server.process.poll() is None
    assert (code, f"s is in use by another process ({server.process.pid})" in text) == (4, True), text
