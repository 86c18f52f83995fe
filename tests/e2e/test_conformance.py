"""`fedserver conformance` and a device in another language: it keeps all rules, and where it is made to break
some, exactly these are named. Real processes, over mutual TLS, where Node.js and its packages are there."""

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from fedserver.conformance.situations import RULES
from shoal.simulation.images import digits
from tests.waiting import HANG

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples/nodejs"
NODE = shutil.which("node")
needs_node = pytest.mark.skipif(
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
    "heartbeat": (("device.js", "1000 * Math.max(0.1, seconds(this.welcome.heartbeat))", "1e9"),),
    "retry-window": (("device.js", "await waitWithin(error.window ?? ", "await wait(0 && "),),
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
        ("device.js", "await waitWithin([next.idle.earliest, next.idle.latest].map(seconds));", ""),
    ),
    "leave": (
        ("device.js", 'return await this.ask("Leave", {});', "for (;;) await this.ask('NextTask', {});"),
    ),
}


def samples(rows: slice) -> tuple[Any, Any]:
    train, _ = digits()
    assert train.y is not None
    return np.asarray(train.x[rows], np.float32).reshape(len(train.x[rows]), -1) / 255.0, train.y[rows]


def javascript(folder: Path, faults: Faults) -> str:
    """The commands of a copy of the example with these faults; LINE is the join string."""
    device = folder / "device"
    shutil.copytree(EXAMPLE, device, ignore=shutil.ignore_patterns("node_modules"))
    (device / "node_modules").symlink_to(EXAMPLE / "node_modules")
    for name, before, after in (each for edits in faults.values() for each in edits):
        text = (device / name).read_text()
        assert before in text
        (device / name).write_text(text.replace(before, after))
    for name, rows in (("data", slice(100)), ("new", slice(100, 140))):
        x, y = samples(rows)
        labels = {"y": y.tolist()} if name == "data" else {}  # a newcomer has none
        (folder / f"{name}.json").write_text(json.dumps({"x": x.tolist(), **labels}))
    program = f"{NODE} {device}/device.js {folder}/state"
    steps = ("join LINE foreign", f"train {folder}/data.json 16", f"place {folder}/new.json 16")
    return " && ".join(f"{program} {step}" for step in steps)


def ours(folder: Path) -> str:
    """The commands of `fedclient`."""
    x, y = samples(slice(100))
    np.savez(folder / "data.npz", x=x, y=y)
    np.savez(folder / "new.npz", x=samples(slice(100, 140))[0])
    network = {"builtin": "mlp", "options": {"inputs": 64, "hidden": [16], "classes": 10}}
    owner = {"allow_unprotected": True, "allow_plain_weights": True}
    settings = {"learner": network, "data": {"npz": "data.npz"}, "privacy": owner}
    (folder / "device.yaml").write_text(yaml.safe_dump(settings))
    program, config = "fedclient", f"--config {folder}/device.yaml"
    steps = (f"join LINE {config}", f"run {config} --until-finished", f"place {config} {folder}/new.npz")
    return " && ".join(f"{program} {step}" for step in steps)


def verdict(folder: Path, programs: Path, device: str) -> tuple[int, dict[str, str | None]]:
    """The exit code, and what is wrong by rule, of the device that these commands run."""
    path = os.pathsep.join([str(programs), os.environ["PATH"]])
    environment = {**os.environ, "SHOAL_PROTO": str(ROOT / "proto"), "PATH": path}
    server = [programs / "fedserver", "conformance", "--json"]
    with subprocess.Popen(server, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        line = next(each.strip() for each in process.stderr if each.startswith("shoal1:"))
        with (
            (folder / "device.log").open("w") as log,
            subprocess.Popen(
                ["sh", "-c", device.replace("LINE", line)],
                env=environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            ) as running,
        ):
            out, _ = process.communicate(timeout=3 * HANG)
            if running.poll() is None:
                os.killpg(running.pid, signal.SIGKILL)
    answer = json.loads(out)
    assert "rules" in answer["data"], answer
    return process.returncode, answer["data"]["rules"]


def test_our_own_device_keeps_every_rule(tmp_path: Path, programs: Path) -> None:
    code, rules = verdict(tmp_path, programs, ours(tmp_path))
    assert rules == dict.fromkeys(RULES, ""), (tmp_path / "device.log").read_text()
    assert code == 0


@needs_node
def test_a_device_in_javascript_keeps_every_rule(tmp_path: Path, programs: Path) -> None:
    code, rules = verdict(tmp_path, programs, javascript(tmp_path, {}))
    assert rules == dict.fromkeys(RULES, ""), (tmp_path / "device.log").read_text()
    assert code == 0


@needs_node
@pytest.mark.parametrize(
    ("faults", "also", "perhaps"),
    [(CARELESS, {"order", "withdrawn"}, set()), (STUBBORN, {"placement"}, {"order"})],
    ids=["careless", "stubborn"],
)
def test_each_rule_that_a_device_breaks_is_named(
    tmp_path: Path, programs: Path, faults: Faults, also: set[str], perhaps: set[str]
) -> None:
    """Besides, calls are out of order: surely where a receipt is not waited for, and where a report comes
    though nothing is wanted if it comes late, for else it may have been on its way. Without heartbeats it
    cannot be seen if a device heeds their answer; and what never leaves asks for no model."""
    code, rules = verdict(tmp_path, programs, javascript(tmp_path, faults))
    assert {rule for rule, problem in rules.items() if problem != ""} - perhaps == faults.keys() | also
    assert code == 8
