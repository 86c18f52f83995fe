"""The command line as people run it: real processes against a real gRPC server."""

import asyncio
import json
import os
import re
import signal
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedclient.config import WorkConfig
from fedclient.store.state import DeviceFolder
from shoal.core.device_kit.learner import initial_weights
from shoal.core.errors import Unavailable
from shoal.core.exchange.choosing import Choose
from shoal.core.exchange.choosing.compact import compact
from shoal.core.exchange.link import Failure, Placement, Question, Task
from shoal.core.exchange.messages import Describe, Train, TrainingSettings
from shoal.core.exchange.parts import ClusterAssignment
from shoal.core.exchange.payload import Payload, encode
from shoal.core.types import Tensors
from shoal.shell import learners
from tests.client.bridge import Bridge, serving
from tests.client.memory_server import TERMS, MemoryServer
from tests.programs import Verb
from tests.waiting import HANG, until


@dataclass
class Ended:
    code: int
    out: str
    err: str

    @property
    def data(self) -> dict[str, Any]:
        """The data of the one envelope on standard output."""
        envelope = json.loads(self.out)
        assert envelope["schema"] == 1
        return dict(envelope["data"])


@pytest.fixture
def model(work: WorkConfig) -> Tensors:
    assert work.learner.file is not None
    return initial_weights(learners.from_file(work.learner.file), 5)


@pytest.fixture
def settings(work: WorkConfig, tmp_path: Path) -> Path:
    """A settings file without a server."""
    path = tmp_path / "device.yaml"
    path.write_text(
        "device: pi-17\ninsecure_loopback: true\nlearner: {file: learner.py}\ndata: {npz: train.npz}\n"
    )
    return path


def train(server: MemoryServer, model: Tensors, round: int, epochs: int = 1) -> Task:
    message = Train(model, TrainingSettings(epochs=epochs), cluster="c1")
    return Task("r1", round, 0, 7, f"round {round}", encode(message, server.keep), TERMS)


def alter(path: Path, old: str, new: str) -> None:
    """Write something else in a file, where it says `old`."""
    before = path.read_text()
    assert old in before
    path.write_text(before.replace(old, new))


def begin(*arguments: object) -> Verb:
    return Verb(["fedclient", *map(str, arguments)], os.getcwd(), os.environ)


async def end(verb: Verb) -> Ended:
    done = await asyncio.to_thread(verb.end)
    return Ended(done.returncode, done.stdout, done.stderr)


async def call(*arguments: object) -> Ended:
    return await end(begin(*arguments))


def against(server: MemoryServer, steps: Callable[[str, Bridge], Awaitable[None]]) -> None:
    async def run() -> None:
        async with serving(server) as (link, bridge):
            await asyncio.wait_for(steps(link.address, bridge), HANG)

    asyncio.run(run())


def test_run_trains_until_nothing_is_left(settings: Path, model: Tensors, tmp_path: Path) -> None:
    server = MemoryServer([], chunk=1 << 20)
    server.tasks = [train(server, model, 1), train(server, model, 2, epochs=13), train(server, model, 3)]

    async def steps(address: str, bridge: Bridge) -> None:
        ended = await call("run", "-c", settings, "--server", address, "--until-finished", "--json")
        assert ended.code == 0, ended.err
        assert ended.data == {
            "device": "pi-17",
            "server": address,
            "tasks": 3,
            "run": "r1",
            "round": 3,
            "cluster": "c1",
            "outcome": "accepted",
        }
        assert [type(report.result) for report in server.reports] == [Payload, Failure, Payload]
        assert "ZeroDivisionError" in ended.err  # the author's traceback
        assert server.log[-1] == "leave"
        assert {caller["shoal-device"] for caller in bridge.callers} == {"pi-17"}
        logged = (await call("logs", "-c", settings, "--json")).data["lines"]
        assert logged[0].endswith("loading the learner and the data")
        assert any("ZeroDivisionError" in line for line in logged)
        losses = [
            report.result.parts["loss"] for report in server.reports if isinstance(report.result, Payload)
        ]
        for number, loss in zip((1, 3), losses, strict=True):
            assert any(f"r1: round {number}: loss {loss:.4f}, " in line for line in logged)
        assert logged[-1].endswith("stopped")
        seen = await call("status", "-c", settings, "--server", address, "--json")
        assert seen.code == 0
        assert seen.data["answers"] is True
        assert seen.data["running"] is False
        assert seen.data["last_task"] == {
            "run": "r1",
            "round": 3,
            "title": "round 3",
            "outcome": "accepted",
        }
        assert seen.data["last_error"]["code"] == "learner-failed"
        assert f"next: fedclient place --config {settings} --run r1, and then fedclient predict" in ended.err
        people = await call("status", "-c", settings)
        assert people.out.startswith("agent:       not running")
        assert "cluster:     c1" in people.out

    against(server, steps)
    assert not (tmp_path / "state" / "outbox").exists() or os.listdir(tmp_path / "state" / "outbox") == []


def test_once_with_a_failure_is_an_error(settings: Path, model: Tensors) -> None:
    server = MemoryServer([], chunk=1 << 20)
    server.tasks = [train(server, model, 1, epochs=13)]

    async def steps(address: str, bridge: Bridge) -> None:
        ended = await call("run", "-c", settings, "--server", address, "--once", "--json")
        assert ended.code == 8
        assert json.loads(ended.out)["error"]["code"] == "learner-failed"

    against(server, steps)


@pytest.mark.parametrize(("until_finished", "code"), [(False, 0), (True, 143)])
def test_sigterm_takes_leave(settings: Path, tmp_path: Path, until_finished: bool, code: int) -> None:
    server = MemoryServer([], finished=False)

    async def steps(address: str, bridge: Bridge) -> None:
        arguments = ["--until-finished"] if until_finished else []
        process = begin("run", "-c", settings, "--server", address, *arguments)
        await until(lambda: len(server.calls("next_task")) > 1)
        assert DeviceFolder(tmp_path / "state").busy()
        second = await call("run", "-c", settings, "--server", address)
        assert second.code == 4, "systemd starts it again: what has the folder may be a short command"
        assert "error[in-use]" in second.err
        assert "is in use by another fedclient" in second.err
        process.process.send_signal(signal.SIGTERM)
        ended = await end(process)
        assert ended.code == code, ended.err
        assert server.log[-1] == "leave"

    against(server, steps)


def test_a_killed_device_sends_what_it_had_finished(settings: Path, model: Tensors) -> None:
    """SIGKILL between the work and the report; the next process reports it without working again."""
    server = MemoryServer([], chunk=1 << 20)
    server.tasks = [train(server, model, 1)]

    async def steps(address: str, bridge: Bridge) -> None:
        server.away, server.away_from = 1 << 30, ("report",)
        process = begin("run", "-c", settings, "--server", address)
        await until(lambda: bool(server.calls("report")))
        process.process.kill()
        await end(process)
        server.away, server.uploads = 0, {}
        ended = await call("run", "-c", settings, "--server", address, "--once")
        assert ended.code == 0, ended.err
        assert "training" not in ended.err
        assert [(report.round, report.attempt) for report in server.reports] == [(1, 2)]

    against(server, steps)


def test_place_and_predict(settings: Path, model: Tensors, tmp_path: Path) -> None:
    server = MemoryServer([], chunk=1 << 20)
    projector = {"mean": np.zeros(8), "components": np.eye(2, 8)}
    server.question = Question("r1", encode(Describe(model, projector), server.keep))
    near = ClusterAssignment("c1", 0.5, "c0", 2.0, 0.75)
    far = replace(near, abstained=True, reason="farther than any member")
    server.placement = Placement("r1", far, server.keep(model))
    np.savez(tmp_path / "new.npz", x=np.ones((30, 4), np.float32))

    async def steps(address: str, bridge: Bridge) -> None:
        given = ("-c", settings, "--server", address)
        stored = tmp_path / "state" / "model"
        refused = await call("place", tmp_path / "new.npz", *given, "--json")
        assert refused.code == 1
        assert json.loads(refused.out)["error"]["code"] == "abstained"
        assert refused.data["reason"] == "farther than any member"
        assert not stored.exists()
        server.placement = Placement("r1", near, server.keep(model))
        ended = await call("place", tmp_path / "new.npz", *given)
        assert ended.code == 0, ended.err
        assert "cluster c1 of run r1, distance 0.5, the next is c0 at 2\nconfidence 0.75\n" in ended.out
        assert sorted(os.listdir(stored)) == ["model.safetensors", "placement.json"]
        out = tmp_path / "classes.csv"
        predicted = await call("predict", tmp_path / "new.npz", "-c", settings, "--out", out, "--json")
        assert predicted.code == 0, predicted.err
        assert predicted.data["samples"] == 30
        assert len(out.read_text().splitlines()) == 31
        seen = await call("status", *given, "--json")
        assert seen.data["placed"]["cluster"] == "c1"

    against(server, steps)


def test_several_models_predict_together_and_one_if_it_is_named(
    settings: Path, model: Tensors, tmp_path: Path
) -> None:
    """The samples do not tell two models apart that are equally sure of other classes."""
    server = MemoryServer([], chunk=1 << 20)
    sure = {name: array * np.float32(20.0) for name, array in model.items()}
    other = {name: array[[1, 0, 2]] if name.startswith("2.") else array for name, array in sure.items()}
    nothing = {name: np.zeros_like(array) for name, array in model.items()}
    question = Choose((sure, other, nothing), "c0 c1 global", (1.0, 1.0))
    server.question = Question("r1", encode(compact(question), server.keep))
    np.savez(tmp_path / "new.npz", x=np.random.default_rng(3).normal(size=(40, 4)).astype(np.float32))

    async def steps(address: str, bridge: Bridge) -> None:
        given, data = ("-c", settings, "--server", address), tmp_path / "new.npz"
        placed = await call("place", data, *given)
        assert placed.code == 0, placed.err
        assert "predictions mix c0 (0.5" in placed.out
        assert (await call("ledger", "-c", settings, "--json")).data["entries"] == []
        said = []
        for more in ((), ("--model", tmp_path / "state" / "model" / "model.safetensors")):
            ended = await call("predict", data, "-c", settings, "--out", tmp_path / "out.npz", *more)
            assert ended.code == 0, ended.err
            with np.load(tmp_path / "out.npz") as found:
                said.append(found["probabilities"])
        together, one = said
        swapped = one[:, [1, 0, 2]]
        share = (together[0, 0] - swapped[0, 0]) / (one[0, 0] - swapped[0, 0])
        assert 0.4 < share < 0.6
        assert together == pytest.approx(share * one + (1.0 - share) * swapped, abs=1e-4)

    against(server, steps)


def test_a_placed_device_follows_its_model(settings: Path, model: Tensors, tmp_path: Path) -> None:
    """The hook writes a file of predictions by each new model."""
    server, log = MemoryServer([], chunk=1 << 20), tmp_path / "hook.log"
    new, out = tmp_path / "new.npz", tmp_path / "classes.csv"
    predict = f"{sys.executable} -m fedclient predict {new} -c {settings} --out {out}"
    first = ClusterAssignment("c1", 0.5, "c0", 2.0, 0.75)
    better = {name: array * 2 for name, array in model.items()}
    np.savez(new, x=np.ones((30, 4), np.float32))

    def hooked() -> list[str]:
        return log.read_text().split() if log.exists() else []

    async def steps(address: str, bridge: Bridge) -> None:
        server.placement = Placement("r1", first, server.keep(model))
        following = begin(
            *("place", new, "-c", settings, "--server", address, "--follow", "--every", 1),
            *("--hook", f"sh -c '{predict} && echo $SHOAL_CLUSTER >> {log}'"),
        )
        try:
            await until(lambda: hooked() == ["c1"])
            assert len(out.read_text().splitlines()) == 31
            server.placement = Placement("r1", replace(first, cluster="c2"), server.keep(better))
            await until(lambda: hooked() == ["c1", "c2"])
            followed, wanted = tmp_path / "state" / "model" / "followed", server.placement.model
            assert wanted is not None
            await until(lambda: followed.exists() and followed.read_text() == wanted.blob.sha256)
        finally:
            following.process.send_signal(signal.SIGINT)
            assert (await end(following)).code == 0

    against(server, steps)


def test_a_device_that_could_not_begin_says_so_and_keeps_its_name(settings: Path, tmp_path: Path) -> None:
    async def steps() -> None:
        nowhere = ("-c", settings, "--server", "127.0.0.1:1")
        learner = tmp_path / "learner.py"
        alter(learner, 'latent = "0"', 'latent = "O"')
        failed = await call("run", *nowhere, "--json")
        assert failed.code == 8
        assert f"{learner}: latent: the network has no submodule 'O'" in failed.err
        seen = (await call("status", *nowhere, "--json")).data
        assert seen["last_error"]["code"] == "learner-failed"
        assert "no submodule 'O'" in seen["last_error"]["message"]
        alter(settings, "device: pi-17\n", "")
        assert (await call("status", *nowhere, "--json")).data["device"] == "pi-17"
        other = await call("place", *nowhere, "--device", "pi-18")
        assert other.code == 3
        assert "belongs to device pi-17" in other.err

    asyncio.run(steps())


def test_no_labels_is_the_last_error(settings: Path, tmp_path: Path) -> None:
    async def steps() -> None:
        np.savez(tmp_path / "train.npz", x=np.ones((30, 4), np.float32))
        assert (await call("run", "-c", settings, "--server", "127.0.0.1:1")).code == 8
        seen = await call("status", "-c", settings)
        assert re.search(
            r"last error:  \[bad-data\] the data have no labels to train on .*\(2\d{3}-\d\d-\d\d \d", seen.out
        )

    asyncio.run(steps())


def test_place_opens_its_data_first(settings: Path, tmp_path: Path) -> None:
    """The server, which is not there, is not asked: that would be exit code 4."""

    async def steps() -> None:
        nowhere = ("-c", settings, "--server", "127.0.0.1:1", "--give-up-after", "0")
        missing = await call("place", tmp_path / "MISSING.csv", *nowhere)
        assert missing.code == 8
        assert "MISSING.csv: No such file or directory\n  hint: give the path of a file" in missing.err
        alter(settings, "train.npz", "train.npz, test: none.npz")
        assert (await call("place", *nowhere)).code == Unavailable.exit_code

    asyncio.run(steps())


def test_wrong_settings_and_data_end_before_the_server_is_asked(settings: Path, tmp_path: Path) -> None:
    async def steps() -> None:
        nowhere = ("-c", settings, "--server", "127.0.0.1:1")
        remote = await call("run", "-c", settings, "--server", "10.0.0.5:50051", "--json")
        assert remote.code == 3
        assert "fedclient join" in json.loads(remote.out)["error"]["hint"]
        away = await call("run", *nowhere, "--once", "--give-up-after", "0", "--json")
        assert away.code == Unavailable.exit_code == 4
        np.savez(tmp_path / "train.npz", x=np.ones((30, 4), np.float32))
        unlabelled = await call("run", *nowhere)
        assert unlabelled.code == 8
        assert "use `fedclient place`" in unlabelled.err
        both = await call("run", *nowhere, "--once", "--until-finished", "--json")
        assert both.code == 2
        assert json.loads(both.out)["error"]["code"] == "usage"

    asyncio.run(steps())
