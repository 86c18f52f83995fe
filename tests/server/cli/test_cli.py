"""The operator's command line against a real server: what it prints, its JSON, its exit codes."""

import asyncio
import json
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from grpc import aio
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from fedserver.cli.runs import run as run_verbs
from fedserver.coordinator.status_types import RunStatus, RunSummary
from shoal.core.errors import Unavailable
from shoal.core.exchange.link import Failure, Report
from shoal.core.privacy.report import WEIGHTS
from shoal.shell.console import Console
from shoal.shell.weights import load
from tests.server.commands import Command, commands
from tests.server.processes import Daemon, daemon
from tests.server.servers import DEVICES, ROUNDS, expected
from tests.server.test_daemon import all_devices
from tests.server.toys import MODEL, Hands, same_models
from tests.server.wire_link import WireLink

FILE = f"""
algorithm: fedavg
parameters: {{rounds: {ROUNDS}, inputs: raw}}
policy: {{devices: {DEVICES}, minimum: {DEVICES}}}
seed: 5
initial_weights: first.safetensors
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with daemon(tmp_path_factory.mktemp("cli") / "s") as running:
        yield running


@pytest.fixture
def command(server: Daemon, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    """Run `fedserver` with these arguments: its exit code, its stdout, its stderr."""
    monkeypatch.setenv("FEDSERVER_STATE", str(server.state))
    return commands(capfd)


def data(answer: tuple[int, str, str]) -> dict[str, Any]:
    code, out, _ = answer
    envelope = json.loads(out)
    assert (code, envelope["status"], envelope["error"]) == (0, "ok", None)
    found: dict[str, Any] = envelope["data"]
    return found


def in_order(path: Path) -> None:
    """The first model, as `model export` would write it."""
    save_file(dict(MODEL), path, {"shoal_order": json.dumps(list(MODEL))})


def test_a_run_from_its_start_to_its_model(command: Command, server: Daemon, tmp_path: Path) -> None:
    in_order(tmp_path / "first.safetensors")
    (tmp_path / "run.yaml").write_text(FILE)
    assert data(command("run", "start", "whole", "-f", tmp_path / "run.yaml", "--json"))["run"] == "whole"
    assert "whole: waiting: 0 of 3 devices are here" in command("status")[1]
    assert command("model", "export", "whole", "--out", tmp_path / "x.safetensors")[0] == 0
    assert same_models({"": load(tmp_path / "x.safetensors")}, {"": MODEL})

    devices = threading.Thread(target=lambda: asyncio.run(all_devices(server.address)))
    devices.start()
    code, out, _ = command("run", "wait", "whole", "--timeout", 60)
    assert code == 0
    assert "whole: finished" in out
    assert "inputs=raw" in out
    assert f"rounds={ROUNDS}" in out
    assert "held-out accuracy: " in out
    for run in data(command("run", "ls", "--json"))["runs"]:
        command("run", "stop", run["run"])
    devices.join()

    shown = data(command("run", "show", "whole", "--json"))
    assert shown["stage"] == "finished"
    assert (shown["seed"], shown["parameters"]["rounds"], shown["changed"]) == (
        5,
        ROUNDS,
        ["inputs", "rounds"],
    )
    assert (shown["policy"]["devices"], shown["learner"]) == (
        DEVICES,
        {"name": "", "options": {}, "seed": None},
    )
    assert shown["created"] == pytest.approx(time.time(), abs=600.0)
    assert shown["accuracy"] == pytest.approx(list(shown["accuracies"].values())[-1])
    assert shown["clusters"] == {"global": ["d0", "d1", "d2"]}
    assert [device["device"] for device in shown["devices"]] == ["d0", "d1", "d2"]
    assert 0.0 <= shown["devices"][0]["accuracy"] <= 1.0
    found = data(command("model", "export", "whole", "--out", tmp_path / "m.safetensors", "--json"))
    assert found["sha256"] == shown["models"]["global"]["sha256"]
    assert shown["weights"] == WEIGHTS
    figures = "accuracy, loss and the share of the commonest class as measured"
    summary = f"no guarantee: weights trained without DP-SGD, {figures}"
    assert [shown["released"][device]["summary"] for device in ("d0", "d1", "d2")] == [summary] * 3
    printed = command("model", "export", "whole", "--out", tmp_path / "again.safetensors")[1]
    assert "\nprivacy in this run\nof         what left " in printed
    assert "\nprivacy of the same devices over all runs\nof         what left " in printed
    assert found["privacy"] == found["privacy_over_all_runs"] == f"each of 3 devices: {summary}; {WEIGHTS}"
    with safe_open(tmp_path / "m.safetensors", framework="numpy") as file:
        metadata = file.metadata()
        assert {name: found[name] for name in metadata if name.startswith("privacy")} == {
            "privacy": metadata["privacy"],
            "privacy_over_all_runs": metadata["privacy_over_all_runs"],
        }
    exported = load_file(tmp_path / "m.safetensors")
    assert {name: array.tobytes() for name, array in exported.items()} == {
        name: array.tobytes() for name, array in expected()["global"].items()
    }
    code, out, _ = command("run", "logs", "whole")
    assert code == 0
    assert "open: training round 1 of 3: one model for all, tasks for 3 devices" in out
    followed = data(command("run", "logs", "whole", "--follow", "--json"))["lines"]
    assert "finished" in followed[-1]["text"]
    assert {device["device"] for device in data(command("status", "--json"))["devices"]} == {"d0", "d1", "d2"}


def test_options_alone_start_a_run_too(command: Command, tmp_path: Path) -> None:
    arguments = ("--algorithm", "flux-soft", "--preset", "paper", "--set", "rounds=7", "--seed", 3)
    policy = ("--devices", 2, "--minimum", 1, "--deadline", 60, "--wait-for-devices", 5, "--oversample", 1.5)
    file = tmp_path / "learner.py"
    file.write_text("from torch import nn\n\ndef build():\n    return nn.Linear(4, 2)\n")
    answer = command("run", "start", "options", *arguments, *policy, "--learner", file, "--json")
    run = data(answer)["run"]
    shown = data(command("run", "show", run, "--json"))
    assert (shown["algorithm"], shown["preset"]) == ("flux-soft", "paper")
    assert (shown["learner"]["name"], shown["learner"]["seed"]) == (str(file), 42)
    assert shown["waiting_for"] == "0 of 2 devices are here"
    stopped = data(command("run", "stop", run, "--reason", "only a test", "--json"))
    assert (stopped["stage"], stopped["waiting_for"]) == ("stopped", "only a test")
    code, _, err = command("run", "wait", run)
    assert code == 1
    assert f"run {run} was stopped: only a test" in err


@pytest.mark.parametrize(
    ("arguments", "code", "message", "hint"),
    [
        (("run", "show", "none"), 1, "there is no run 'none'", ""),
        (("run", "start", "x", "--algorithm", "flx"), 3, "no algorithm 'flx'", 'did you mean "flux"?'),
        (("run", "start", "x", "--algorithm", "flux", "--set", "rouns=3"), 3, "'rouns'", '"rounds"'),
        (("run", "start", "x", "--algorithm", "flux", "--set", "rounds"), 3, "not NAME=VALUE", ""),
        (
            ("run", "start", "x", "--algorithm", "flux", "--devices", "2,site=a"),
            3,
            "have labels only",
            "leave",
        ),
        (("run", "start", "x", "--algorithm", "flux", "--devices", "many"), 2, "neither a number nor", ""),
        (("run", "start", "a/b", "--algorithm", "flux"), 3, "is not a name for a run", "letters"),
        (("run", "start", "x", "--algorithm", "flux", "--learner", "none.py"), 3, "no learner file", ""),
        (("run", "start", "x", "--algorithm", "flux", "--initial-weights", "none"), 3, "safetensors", ""),
        (("run", "start", "x", "-f", "none.yaml"), 3, "none.yaml: No such file", ""),
        (("model", "export", "none", "--out", "x"), 1, "no run, release or channel 'none'", ""),
        (("up", "--state", "x"), 3, "cannot prove who they are", "--insecure-loopback"),
        (("status", "--state", "/nowhere"), 4, "there is no server folder at /nowhere", "fedserver init"),
        (("status", "--state", "/"), 4, "no server is running on /", "fedserver up --state /"),
        (("run", "stat"), 2, "No such command", ""),
    ],
)
def test_what_is_wrong_is_said_with_its_mend_and_its_code(
    command: Command, arguments: tuple[str, ...], code: int, message: str, hint: str
) -> None:
    assert command(*arguments)[0] == code
    found, out, err = command(*arguments, "--json")
    envelope = json.loads(out)
    assert (found, envelope["status"]) == (code, "error")
    assert message in envelope["error"]["message"]
    assert hint in envelope["error"]["hint"]
    assert message in err


def test_a_name_that_is_taken_is_refused_and_without_one_a_number_is_added(command: Command) -> None:
    start = ("run", "start", "--algorithm", "fedavg", "--preset", "paper", "--json")
    first = data(command(*start, "taken"))["run"]
    code, out, err = command(*start, "taken")
    assert (first, code) == ("taken", 3)
    assert "a run named 'taken' already exists" in err
    assert "or leave it out" in json.loads(out)["error"]["hint"]
    names = [data(command(*start))["run"] for _ in range(2)]
    assert len(set(names)) == 2
    assert all(name.startswith("fedavg") for name in names)
    for run in (first, *names):
        command("run", "stop", run)


def test_a_wait_says_why_the_devices_of_a_run_failed(command: Command, server: Daemon) -> None:
    policy = ("--devices", 1, "--minimum", 1, "--max-abandoned-rounds", 1)
    command("run", "start", "nan", "--algorithm", "fedavg", *policy)

    async def fail() -> None:
        async with aio.insecure_channel(server.address) as channel:
            device = await Hands(WireLink(channel, "d0")).hello()
            task = await device.task()
            failure = Failure("learner-failed", "the loss is NaN")
            await device.link.report(Report(task.run, task.round, task.attempt, failure))

    asyncio.run(fail())
    code, out, err = command("run", "wait", "nan", "--timeout", 60)
    assert code == 1
    assert "run nan has failed: a round was abandoned because every device that is left has failed" in err
    assert "d0: it failed: the loss is NaN" in err
    assert "0 devices" not in out


def test_a_wait_outlasts_a_server_that_starts_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server goes away twice while a command waits, and is back each time."""
    summary = RunSummary("r", "r", "fedavg", "default", "open", 1)
    watched = iter([[summary], [], [replace(summary, round=2)], [replace(summary, stage="finished")]])

    class Restarting:
        def show(self, run: str) -> RunStatus:
            return RunStatus(summary)

        def watch(self, run: str, timeout: float | None) -> Iterator[RunStatus]:
            found = next(watched)
            yield from map(RunStatus, found)
            if not found or not found[-1].over:
                raise Unavailable("no server is running")

    monkeypatch.setattr("time.sleep", lambda seconds: None)
    last = run_verbs._over(Console(), Restarting(), "r", None)  # type: ignore[arg-type]
    assert last.summary.stage == "finished"
    monkeypatch.setattr(run_verbs, "AWAY", -1.0)
    watched = iter([[]])
    with pytest.raises(Unavailable):
        run_verbs._over(Console(), Restarting(), "r", None)  # type: ignore[arg-type]


def test_without_a_terminal_a_wait_prints_each_step_once(capfd: pytest.CaptureFixture[str]) -> None:
    first = RunSummary("r", "r", "fedavg", "default", "waiting", 1, "", "0 of 2 devices are here")
    working = replace(first, stage="open", title="training round 1 of 1", time_left=30.0)
    evaluating = replace(working, round=2, title="final evaluation")
    over = replace(first, stage="finished", round=3, waiting_for="the run is complete")

    class Watched:
        def show(self, run: str) -> RunStatus:
            return RunStatus(first)

        def watch(self, run: str, timeout: float | None) -> Iterator[RunStatus]:
            seconds = [replace(working, time_left=left, waiting_for=f"{left} reports") for left in (9.0, 8.0)]
            here = replace(first, waiting_for="1 of 2 devices are here")
            again = replace(first, round=2, waiting_for="a round was abandoned because all have failed")
            yield from map(RunStatus, [first, here, working, *seconds, again, evaluating, over])

    run_verbs._over(Console(), Watched(), "r", None)  # type: ignore[arg-type]
    assert capfd.readouterr().err.splitlines() == [
        "r: waiting: 0 of 2 devices are here",
        "r: open, training round 1 of 1",
        "r: waiting: a round was abandoned because all have failed",
        "r: open, final evaluation",
        "r: finished",
    ]


def test_a_wait_prints_the_accuracy_of_each_round_once(capfd: pytest.CaptureFixture[str]) -> None:
    """Rounds that were measured before the wait began are not repeated."""
    here = RunStatus(RunSummary("r", "r", "fedavg", "default", "open", 2), accuracies={1: 0.25})
    later = replace(here, accuracies={1: 0.25, 2: 0.5, 4: 0.625})
    over = replace(later, summary=replace(here.summary, stage="finished"))

    class Measured:
        def show(self, run: str) -> RunStatus:
            return here

        def watch(self, run: str, timeout: float | None) -> Iterator[RunStatus]:
            yield from [here, later, later, over]

    run_verbs._over(Console(), Measured(), "r", None)  # type: ignore[arg-type]
    said = [line for line in capfd.readouterr().err.splitlines() if "accuracy" in line]
    assert said == [
        "r: after round 2: held-out accuracy 50.0 %",
        "r: after round 4: held-out accuracy 62.5 %",
    ]


def test_the_time_can_be_up(command: Command) -> None:
    run = data(command("run", "start", "slow", "--algorithm", "fedavg", "--json"))["run"]
    assert command("run", "wait", run, "--timeout", 0.3)[0] == 6
    command("run", "stop", run)


def test_a_run_that_never_had_a_model_has_none_to_export(command: Command, tmp_path: Path) -> None:
    run = data(command("run", "start", "empty", "--algorithm", "fedavg", "--json"))["run"]
    command("run", "stop", run)
    code, _, err = command("model", "export", run, "--out", tmp_path / "x")
    assert code == 1
    assert "before it had a model" in err
    assert "no run has been started yet" not in command("run", "ls")[1]
