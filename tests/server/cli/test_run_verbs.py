"""The verbs that change a run, and those that show it as it goes on, from the command line."""

import asyncio
import json
from pathlib import Path

import pytest

from fedserver.rpc.client import OperatorClient
from tests.server.cli.conftest import Verb
from tests.server.commands import commands
from tests.server.processes import PLAIN, add_settings, daemon
from tests.server.servers import spec
from tests.server.test_daemon import all_devices
from tests.server.toys import MODEL


def test_a_run_is_paused_changed_resumed_compared_pruned_and_removed(
    tmp_path: Path, verb: Verb, capfd: pytest.CaptureFixture[str]
) -> None:
    state = tmp_path / "s"
    with daemon(state) as server, OperatorClient(state) as client:
        client.start_run(spec(), MODEL)
        paused = verb("pause", "toy", "--reason", "new data arrives")
        assert "it is paused (new data arrives)" in paused["waiting_for"]
        changed = verb("set", "toy", "--rounds", "3", "--deadline", "600", "--minimum", "2")
        assert changed["rounds"] == 3
        assert verb("set", "toy", "--rounds", "+1")["rounds"] == 4
        _, said, _ = commands(capfd)("run", "set", "toy", "--deadline", "601", "--state", state)
        assert said.splitlines()[1:] == ["changed: deadline=601"]
        assert "use 50 for all of them" in verb("set", "toy", "--rounds", "+-1", code=2)["message"]
        assert (changed["policy"]["deadline"], changed["policy"]["minimum"]) == (600.0, 2)
        assert verb("set", "toy", code=3)["message"] == "nothing is to be changed"
        refused = verb("set", "toy", "--readmit", "d7", code=5)
        assert "d7" in refused["message"]
        assert verb("rm", "toy", code=5)["message"] == "run toy is not over"
        assert verb("rm", "--earlier", "toy", code=5)["message"] == "run toy is not over"
        assert "paused" not in verb("resume", "toy")["waiting_for"]
        asyncio.run(all_devices(server.address))
        done = verb("show", "toy")
        assert (done["stage"], done["progress"]) == ("finished", 4)
        assert "is over" in verb("set", "toy", "--rounds", "+1", code=5)["message"]
        compared = verb("show", "toy", "toy")
        assert ([each["run"] for each in compared["runs"]], compared["gains"]) == (["toy", "toy"], [])
        assert "name the run to delete" in verb("rm", code=2)["message"]
        client.start_run(spec(name="stopped"), MODEL)
        verb("stop", "stopped")
        assert "toy" not in verb("rm", "--earlier")["deleted"], "it is the newest that has finished"
        client.start_run(spec(name="newest"), MODEL)
        asyncio.run(all_devices(server.address))
        assert verb("rm", "--earlier")["deleted"] == {"toy": 4}
        assert verb("rm", "--earlier", "newest")["deleted"] == {"newest": 4}
        assert verb("show", "toy")["models"] == done["models"]
        assert "channel stable has release toy@4" in verb("rm", "toy", code=5)["message"]
        assert commands(capfd)("release", "rm", "stable", "--state", state)[0] == 0
        assert verb("rm", "toy") == {"removed": "toy"}
        assert verb("show", "toy", code=1)["code"] == "not-found"
        assert "safetensors" in verb("start", "--evaluate", "model.onnx", code=3)["message"]
        again = verb("start", "toy", "--algorithm", "fedavg", code=3)
        assert "was removed" in again["message"]


def test_a_server_logs_json_and_serves_metrics_where_it_is_told(tmp_path: Path) -> None:
    pytest.importorskip("prometheus_client", reason="metrics need the extra metrics")
    state = tmp_path / "s"
    add_settings(state, "metrics: 127.0.0.1:0\nlog_format: json\n")
    with daemon(state, options=(*PLAIN, "--log-level", "info")) as server:
        assert server.stop() == 0
    lines = [json.loads(line) for line in server.log.read_text().splitlines()]
    assert any(str(line).find("metrics at http://127.0.0.1:") >= 0 for line in lines), lines
