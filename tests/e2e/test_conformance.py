"""`fedserver conformance` and a device in another language: it keeps all rules, and where it is made to break
some, exactly these are named. Real processes, over mutual TLS, where Node.js and its packages are there."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from fedserver.conformance.situations import RULES
from shoal.simulation.images import digits
from tests.waiting import HANG

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples/nodejs"
NODE = shutil.which("node")
pytestmark = pytest.mark.skipif(
    NODE is None or not (EXAMPLE / "node_modules/@grpc").is_dir(),
    reason="it needs Node.js and, in examples/nodejs, npm ci",
)
Faults = Mapping[str, tuple[tuple[str, str, str], ...]]

SENDS = 'return (await this.ask("Report", { report: { lease, ...result, inline } })).receipt;'
FORGETS = """const request = { session: this.client.session, report: { lease, ...result, inline } };
    try { return (await this.client.call("DeviceService", "Report", request)).receipt; }
    catch (error) { if (error.again) return { outcome: 1, reason: "", mark: "" }; throw error; }"""
CARELESS: Faults = {
    "unknown-part": (("wire.js", "Payload.encode(payload).finish().length !== bytes.length", "false"),),
    "unknown-terms": (("work.js", "!has(terms, TERMS) ||", ""),),
    "damaged-blob": (("device.js", "if (sha256(bytes).equals(Buffer.from(blob.sha256))) return", "return"),),
    "heartbeat": (("device.js", "1000 * seconds(this.welcome.heartbeat)", "1e9"),),
    "retry-window": (("device.js", "error.window ?? [0, ", "[0, 0 * "),),
    "broken-upload": (("device.js", "upload(blob, bytes, known)", "upload(blob, bytes, 0)"),),
    "lost-receipt": (("device.js", SENDS, FORGETS),),
    "new-session": (("device.js", "newest_protocol: 1, mark }", "newest_protocol: 1 }"),),
}
"""By rule: the file of the example, what is in it, and what stands there instead."""
STUBBORN: Faults = {
    "withdrawn": (("device.js", "wanted || stop.abort()", "wanted"),),
    "same-result": (
        ("device.js", "if (found?.key !== key) return undefined;", "return undefined;"),
        (
            "device.js",
            "work.answer(payload, task.seed,",
            "work.answer(payload, Math.floor(1e9 * Math.random()),",
        ),
    ),
    "idle-window": (
        ("device.js", "await wait(earliest + Math.random() * (latest - earliest));\n        }", "}"),
    ),
    "leave": (
        ("device.js", 'return await this.ask("Leave", {});', "for (;;) await this.ask('NextTask', {});"),
    ),
}


@contextmanager
def foreign(folder: Path, faults: Faults) -> Iterator[tuple[Path, dict[str, str]]]:
    """A copy of the example with these faults, and the environment in which it runs."""
    device = folder / "device"
    shutil.copytree(EXAMPLE, device, ignore=shutil.ignore_patterns("node_modules"))
    (device / "node_modules").symlink_to(EXAMPLE / "node_modules")
    for name, before, after in (each for edits in faults.values() for each in edits):
        text = (device / name).read_text()
        assert before in text
        (device / name).write_text(text.replace(before, after))
    train, _ = digits()
    for name, rows in (("data", slice(100)), ("new", slice(100, 140))):
        x = np.asarray(train.x[rows], np.float64).reshape(len(train.x[rows]), -1) / 255.0
        (folder / f"{name}.json").write_text(json.dumps({"x": x.tolist(), "y": train.y[rows].tolist()}))
    yield device, {**os.environ, "SHOAL_PROTO": str(ROOT / "proto")}


def verdict(folder: Path, faults: Faults) -> tuple[int, dict[str, str | None]]:
    """The exit code, and what is wrong by rule, of a device with these faults."""
    with foreign(folder, faults) as (device, environment):
        command = [sys.executable, "-m", "fedserver", "conformance", "--json"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as server:
            assert server.stderr is not None
            line = next(each.strip() for each in server.stderr if each.startswith("shoal1:"))
            steps = (
                ("join", line, "foreign"),
                ("train", str(folder / "data.json"), "16"),
                ("place", str(folder / "new.json"), "16"),
            )
            program = f"{NODE} {device}/device.js {folder}/state"
            shell = " && ".join(f"{program} {' '.join(each)}" for each in steps)
            with (
                (folder / "device.log").open("w") as log,
                subprocess.Popen(
                    ["sh", "-c", shell], env=environment, stdout=log, stderr=log, start_new_session=True
                ) as process,
            ):
                out, _ = server.communicate(timeout=3 * HANG)
                if process.poll() is None:
                    os.killpg(process.pid, 9)
    return server.returncode, json.loads(out)["data"]["rules"]


def test_a_device_in_javascript_keeps_every_rule(tmp_path: Path) -> None:
    code, rules = verdict(tmp_path, {})
    assert rules == dict.fromkeys(RULES, ""), (tmp_path / "device.log").read_text()
    assert code == 0


@pytest.mark.parametrize(
    ("faults", "also"),
    [(CARELESS, {"order", "withdrawn"}), (STUBBORN, {"placement"})],
    ids=["careless", "stubborn"],
)
def test_each_rule_that_a_device_breaks_is_named(tmp_path: Path, faults: Faults, also: set[str]) -> None:
    code, rules = verdict(tmp_path, faults)
    assert {rule for rule, problem in rules.items() if problem != ""} == faults.keys() | also
    assert code == 8
