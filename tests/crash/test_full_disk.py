"""Both sides on a real file system that runs full in the middle of a round, and has room again later."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from shoal.core.device_kit.learner import builtin, initial_weights
from shoal.shell.weights import save
from tests.waiting import HANG

MOUNT = "mount -t tmpfs -o size=8m shoal-test"


def mounts_here(folder: Path) -> bool:
    """Whether a mount of one's own is possible."""
    if shutil.which("unshare") is None:
        return False
    command = ["unshare", "-Urm", "sh", "-c", f"{MOUNT} {folder}"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def test_a_full_disk_holds_everything_up_and_loses_nothing(tmp_path: Path) -> None:
    if not mounts_here(tmp_path):
        pytest.skip("this machine lets no user mount a small file system of their own (unshare -Urm)")
    line = f'{MOUNT} {tmp_path} && exec "$0" -m tests.crash.full_disk {tmp_path}'
    command = ["unshare", "-Urm", "sh", "-c", line, sys.executable]
    result = subprocess.run(command, capture_output=True, text=True, timeout=HANG, check=False)
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout)
    assert found["same"]
    assert found["standing"] == "finished"
    assert "disk" in found["notices"][0]


@pytest.mark.parametrize("verb", ["init", "up"])
def test_a_server_that_cannot_be_set_up_or_started_says_that_the_disk_is_full(
    tmp_path: Path, verb: str
) -> None:
    if not mounts_here(tmp_path):
        pytest.skip("this machine lets no user mount a small file system of their own (unshare -Urm)")
    fill = f"head -c 9m /dev/zero > {tmp_path}/junk 2> /dev/null"
    init, up = (f'"$0" -m fedserver {each} --state {tmp_path}/s' for each in ("init --host 127.0.0.1", "up"))
    lines = (fill, init) if verb == "init" else (init, fill, up)
    command = ["unshare", "-Urm", "sh", "-c", "; ".join((f"{MOUNT} {tmp_path}", *lines)), sys.executable]
    result = subprocess.run(command, capture_output=True, text=True, timeout=HANG, check=False)
    assert (result.returncode, "error[disk-full]" in result.stderr) == (8, True), result.stderr


def test_predictions_that_do_not_fit_leave_the_file_that_was_there(tmp_path: Path) -> None:
    if not mounts_here(tmp_path):
        pytest.skip("this machine lets no user mount a small file system of their own (unshare -Urm)")
    small, learner = tmp_path / "small", builtin("mlp", {"inputs": 4, "classes": 2})
    small.mkdir()
    save(initial_weights(learner, 0), tmp_path / "model.safetensors", {})
    np.savez(tmp_path / "new.npz", x=np.ones((9000, 4), np.float32))
    (tmp_path / "device.yaml").write_text("learner: {builtin: mlp, options: {inputs: 4, classes: 2}}\n")
    fill = f"echo before > {small}/classes.csv; head -c 9m /dev/zero > {small}/junk 2> /dev/null"
    predict = (
        f'"$0" -m fedclient predict {tmp_path}/new.npz -c {tmp_path}/device.yaml'
        f" --model {tmp_path}/model.safetensors --out {small}/classes.csv"
    )
    kept = f"code=$?; ls -A {small}; cat {small}/classes.csv; exit $code"
    command = ["unshare", "-Urm", "sh", "-c", f"{MOUNT} {small}; {fill}; {predict}; {kept}", sys.executable]
    result = subprocess.run(command, capture_output=True, text=True, timeout=HANG, check=False)
    assert (result.returncode, "error[disk-full]" in result.stderr) == (8, True), result.stderr
    assert result.stdout.split() == ["classes.csv", "junk", "before"]
