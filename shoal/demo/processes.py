"""The demo's processes: one server, eight trainers, two newcomers without labels, over mutual TLS.

What comes out is measured in the run: nothing here knows the outcome beforehand.
"""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from fedserver.authority.answers import Known
from fedserver.coordinator.status_types import RunStatus, RunSummary
from fedserver.page.serve import RUNNING, key_of, running
from fedserver.rpc.client import OperatorClient
from fedserver.store.identities.records import Terms
from fedserver.store.records import RunSpec
from shoal.core.data.dataset import Dataset
from shoal.core.engine.timeouts import ANSWER, GRACE
from shoal.core.errors import ConfigError, ShoalError, Unavailable
from shoal.core.identity.joining import Role
from shoal.core.types import RunId
from shoal.demo import fleet
from shoal.demo.fleet import Member
from shoal.demo.summary import summary_of, table_of
from shoal.shell.console import Console

MARK = ".shoal-demo"
"""Lies in a folder that the demo made, and may therefore empty."""
POLL_SECONDS = 0.2
"""Seconds between two looks at the runs."""
ALGORITHMS = ("fedavg", "flux")


def play(directory: Path, console: Console, page: bool = False) -> dict[str, Any]:
    """The whole demo; what it leaves in `directory`/summary.json.

    page: also serve the live page, and leave it and the server up until Ctrl-C.
    """
    started = time.monotonic()
    stage = Stage(prepared(directory), console)
    operator = OperatorClient(stage.folder / "server")
    with stage.server(), stage.page() if page else nullcontext(), operator:
        stage.join(operator)
        runs = {name: operator.start_run(spec(name), None).run for name in ALGORITHMS}
        with stage.trainers():
            statuses = stage.watch(operator, runs)
        placements = stage.place(runs["flux"])
        certified = [known.device for known in operator.devices() if has_called(known)]
        summary = summary_of(statuses, placements, certified, time.monotonic() - started)
        (stage.folder / "summary.json").write_text(json.dumps(summary, indent=2) + "\n")
        if page:
            stage.stay(table_of(summary))
    return summary


def spec(algorithm: str) -> RunSpec:
    """The run of the demo by one algorithm; devices are asked for the initial weights."""
    return RunSpec(
        name=algorithm,
        algorithm=algorithm,
        parameters=fleet.PARAMETERS[algorithm],
        policy=fleet.POLICY,
        seed=fleet.SEED,
        learner=str(fleet.LEARNER["builtin"]),
    )


def prepared(directory: Path) -> Path:
    """The demo's folder, empty. Raises ConfigError for a folder with something else in it."""
    folder = directory.absolute()
    if folder.exists() and any(folder.iterdir()) and not (folder / MARK).exists():
        raise ConfigError(f"{folder} is not empty, and no demo made it", "give another --directory")
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "logs").mkdir(parents=True)
    (folder / MARK).touch()
    return folder


class Stage:
    """The demo's processes. Each has a folder, a log, and an end: nothing outlives the demo."""

    def __init__(self, folder: Path, console: Console) -> None:
        self.folder, self._console = folder, console
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    @contextmanager
    def server(self) -> Iterator[None]:
        """The daemon, with an authority of its own, on ports that the system chose."""
        state = self.folder / "server"
        self._console.progress("starting the server")
        ports = ["--listen", "127.0.0.1:0", "--join-listen", "127.0.0.1:0"]
        init = ["fedserver", "init", "--state", str(state), "--host", "127.0.0.1", *ports, "--json"]
        with self._process("init", init):
            self._answer("init")
        with self._process("server", ["fedserver", "up", "--state", str(state)]):
            self._await("server", state / "address", "listen")
            yield

    @contextmanager
    def page(self) -> Iterator[None]:
        """The live page of the server, on a port that the system chose."""
        serve = ["fedserver", "page", "--state", str(self.folder / "server"), "--listen", "127.0.0.1:0"]
        with self._process("page", serve):
            self._await("page", self.folder / "server" / RUNNING, "answer")
            self._console.say(f"open the page, once and within five minutes: {self._link()}")
            yield

    def _await(self, name: str, path: Path, does: str) -> None:
        """Return as soon as a process has written `path`. Raises Unavailable; does: what it then does not."""
        until = time.monotonic() + ANSWER
        while not path.exists():
            self._check_alive(name)
            if time.monotonic() > until:
                raise Unavailable(f"the {name} does not {does} after {ANSWER:.0f} s", self._log(name))
            time.sleep(0.05)

    def stay(self, table: str) -> None:
        """Say what was found, and leave the page and the server up until Ctrl-C."""
        self._console.say(f"{table}\n\nthe page and its server stay up until Ctrl-C: {self._link()}")
        with suppress(KeyboardInterrupt):
            while True:
                self._check_alive("page")
                time.sleep(POLL_SECONDS)

    def _link(self) -> str:
        state = self.folder / "server"
        return running(state).link(key_of(state))

    def join(self, operator: OperatorClient) -> None:
        """Every device gets an identity, as its owner would get it: by a join string, from its own folder."""
        everybody = (*fleet.trainers(), *fleet.newcomers())
        self._console.progress(f"{len(everybody)} devices join")
        with ExitStack() as stack:
            for role, members in ((Role.TRAIN, fleet.trainers()), (Role.INFER_ONLY, fleet.newcomers())):
                _, line = operator.create_token(Terms(role, uses=len(members)))
                for member in members:
                    self._prepare(member)
                    config = str(self._settings(member))
                    join = ["fedclient", "join", "-", "--config", config, "--device", member.name, "--json"]
                    stack.enter_context(self._process(member.name, join, line))
            for member in everybody:
                self._answer(member.name)

    @contextmanager
    def trainers(self) -> Iterator[None]:
        """Eight devices, each with its own data, until no run needs them."""
        with self._many(fleet.trainers(), "run", "--until-finished"):
            yield

    def watch(self, operator: OperatorClient, runs: dict[str, RunId]) -> dict[str, RunStatus]:
        """Say what the runs wait for until they are over; their end."""
        while True:
            found = {summary.run: summary for summary in operator.runs()}
            summaries = {name: found[run] for name, run in runs.items()}
            self._console.progress("   ".join(f"{name}: {waits(s)}" for name, s in summaries.items()))
            if all(summary.over for summary in summaries.values()):
                break
            for name in self._processes:
                self._check_alive(name)
            time.sleep(POLL_SECONDS)
        for name, summary in summaries.items():
            if summary.stage != "finished":
                raise ShoalError(f"{name} {summary.stage}: {summary.waiting_for}", self._log("server"))
        return {name: operator.show(run) for name, run in runs.items()}

    def place(self, run: RunId) -> list[dict[str, Any]]:
        """Two newcomers ask for a model, side by side, and use it. With the truth, for the report."""
        members = fleet.newcomers()
        self._console.progress("two newcomers without labels ask for a model")
        with self._many(members, "place", "--run", run, "--json"):
            answers = [self._answer(member.name) for member in members]
        self._console.progress("the newcomers use their models")
        classes = [self.folder / member.name / "classes.npz" for member in members]
        with self._many(members, "predict", "--json", outs=classes):
            for member in members:
                self._answer(member.name)
        placements = []
        for member, answer, path in zip(members, answers, classes, strict=True):
            with np.load(path, allow_pickle=False) as found:
                accuracy = float((found["classes"] == member.train.y).mean())
            placements.append({"device": member.name, "group": member.group, "accuracy": accuracy, **answer})
        return placements

    # -- processes ------------------------------------------------------------------------------------------

    @contextmanager
    def _many(self, members: list[Member], *arguments: str, outs: list[Path] | None = None) -> Iterator[None]:
        """`fedclient` with these arguments for every member, started together, ended together."""
        with ExitStack() as stack:
            for index, member in enumerate(members):
                config = self._settings(member)
                extra = ["--out", str(outs[index])] if outs else []
                line = ["fedclient", arguments[0], "--config", str(config), *arguments[1:], *extra]
                stack.enter_context(self._process(member.name, line))
            yield

    def _settings(self, member: Member) -> Path:
        return self.folder / member.name / "device.yaml"

    def _prepare(self, member: Member) -> None:
        """A device's folder with its data and its settings, as its owner would write them."""
        folder = self.folder / member.name
        folder.mkdir(exist_ok=True)
        data: dict[str, Any] = {"npz": "data.npz", "shape": [1, 8, 8]}
        if member.test is None:
            np.savez(folder / "data.npz", x=member.train.x)  # a newcomer: its labels stay with us
        else:
            write_labelled(folder / "data.npz", member.train)
            write_labelled(folder / "test.npz", member.test)
            data["test"] = "test.npz"
        # The demo's devices are unattended, so their owners consent by rule.
        privacy = {"allow_unprotected": True, "allow_plain_weights": True}
        settings = {"learner": fleet.LEARNER, "data": data, "privacy": privacy}
        self._settings(member).write_text(yaml.safe_dump(settings, sort_keys=False))

    @contextmanager
    def _process(self, name: str, line: list[str], given: str = "") -> Iterator[None]:
        """A process of ours: its output in a log, its end at the end of the block. given: what it reads."""
        command = [sys.executable, "-m", *line]
        environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
        out, log = self.folder / "logs" / f"{name}.out", self.folder / "logs" / f"{name}.log"
        with out.open("wb") as stdout, log.open("ab") as stderr:
            process = subprocess.Popen(  # noqa: S603 - our own programs, with our own arguments
                command, stdin=subprocess.PIPE, stdout=stdout, stderr=stderr, env=environment
            )
            self._processes[name] = process
            assert process.stdin is not None
            process.stdin.write(given.encode())
            process.stdin.close()
            try:
                yield
            finally:
                del self._processes[name]
                process.terminate()
                try:
                    process.wait(GRACE)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()

    def _answer(self, name: str) -> dict[str, Any]:
        """What a verb with --json found, once it has ended."""
        self._processes[name].wait()
        output = (self.folder / "logs" / f"{name}.out").read_text()
        envelope: dict[str, Any] = json.loads(output) if output else {}
        if envelope.get("status") != "ok":
            message = envelope["error"]["message"] if envelope else "it ended without an answer"
            raise ShoalError(f"{name}: {message}", self._log(name))
        data: dict[str, Any] = envelope["data"]
        return data

    def _check_alive(self, name: str) -> None:
        code = self._processes[name].poll()
        if code:
            raise ShoalError(f"{name} ended with exit code {code}", self._log(name))

    def _log(self, name: str) -> str:
        return f"see {self.folder / 'logs' / name}.log"


def has_called(known: Known) -> bool:
    """Whether a device has called, as the server saw it."""
    return known.last_seen is not None


def write_labelled(path: Path, data: Dataset) -> None:
    assert data.y is not None
    np.savez(path, x=data.x, y=data.y)


def waits(summary: RunSummary) -> str:
    """A run in a few words: where it is, and what it waits for."""
    if summary.over:
        return summary.stage
    devices = summary.waiting_devices
    whom = f", waiting for {', '.join(devices)}" if 0 < len(devices) <= 3 else ""
    title = f"{summary.title}: " if summary.title else ""
    return f"{title}{summary.waiting_for}{whom}"
