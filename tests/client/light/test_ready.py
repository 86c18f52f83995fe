"""The end of an installation without PyTorch: what is used works, and has its bytecode."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("onnxruntime", reason="ONNX Runtime is not installed")


def ready(**environment: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    path = os.pathsep.join([environment.pop("first", ""), *filter(None, sys.path)])
    return subprocess.run(
        [sys.executable, "-P", "-m", "fedclient.light.ready"],
        env={**kept, "PYTHONPATH": path, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def test_it_writes_the_bytecode_of_every_process(tmp_path: Path) -> None:
    done = ready(PYTHONPYCACHEPREFIX=str(tmp_path))
    assert done.returncode == 0, done.stderr
    written = {path.name.partition(".")[0] for path in tmp_path.rglob("fedclient/**/*.pyc")}
    assert {"placement", "endpoint", "worker", "session", "status", "rpc"} <= written
    assert not list(tmp_path.rglob("torch/**/*.pyc"))


def test_it_says_what_is_missing(tmp_path: Path) -> None:
    (tmp_path / "onnxruntime.py").write_text("raise ImportError('there is none')")
    done = ready(first=str(tmp_path), PYTHONPYCACHEPREFIX=str(tmp_path / "bytecode"))
    assert done.returncode == 1
    assert "error: ONNX Runtime cannot be used on this device: there is none" in done.stderr
    assert "Traceback" not in done.stderr
