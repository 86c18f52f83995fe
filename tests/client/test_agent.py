"""A device's visit against a server in memory: every cut is taken up where it was."""

import asyncio
import contextlib
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from fedclient.agent import Agent, Allowance, Until
from fedclient.blobs import BlobStore
from fedclient.performer import Facts
from fedclient.state import Outbox, Status
from fedclient.watcher import Watcher
from fedcore.errors import NotFound, Refused, Unavailable
from fedcore.link import Failure, Outcome, Receipt, Task
from fedcore.messages import Evaluate, Evaluated, Train, Trained, TrainingSettings
from fedcore.payload import Payload, decode, encode
from tests.client.memory_server import MemoryLink, MemoryServer, SessionLost, until


class NoJitter(Random):
    """Waits as short as the window allows."""

    def uniform(self, a: float, b: float) -> float:
        return a


class Doubler:
    """In the place of a training process: twice the weights. before: what happens first, task by task."""

    def __init__(self, store: BlobStore) -> None:
        self.store = store
        self.performed: list[int] = []
        self.abandoned = 0
        self.before: list[Callable[[], Any]] = []

    async def start(self) -> Facts:
        return Facts(1, True, "cpu")

    async def perform(self, task: Task) -> Payload | Failure:
        self.performed.append(task.round)
        try:
            if self.before:
                happened = self.before.pop(0)()
                if isinstance(happened, Failure):
                    return happened
                if happened is not None:
                    await happened
        except asyncio.CancelledError:
            self.abandoned += 1
            raise
        message = decode(task.payload, {"train": Train, "evaluate": Evaluate}, self.store.load)
        if isinstance(message, Evaluate):
            return encode(Evaluated(0.5, 1.0, 10), self.store.keep)
        assert isinstance(message, Train)
        doubled = {name: array * 2 for name, array in message.model.items()}
        return encode(Trained(doubled, 1, 0.0), self.store.keep)

    async def stop(self) -> None:
        pass


class Device:
    """A device's folder, and agents on it: a new agent is the device after a restart."""

    def __init__(self, root: Path, server: MemoryServer) -> None:
        self.root, self.server = root, server
        self.said: list[str] = []
        self.doing: list[str] = []
        self.performer = Doubler(BlobStore(root / "blobs"))
        self.outbox = Outbox(root / "outbox")

    def agent(self, **allowance: Any) -> Agent:
        self.watcher = Watcher(Status("pi", "memory"), self.root, self.doing.append, self.said.append)
        link, store = MemoryLink(self.server), BlobStore(self.root / "blobs")
        limits = Allowance(**allowance)
        return Agent(link, self.performer, store, self.outbox, self.watcher, limits, NoJitter())

    def run(self, until: Until = Until.FINISHED, **allowance: Any) -> None:
        asyncio.run(asyncio.wait_for(self.agent(**allowance).run(until), 60))


MODEL = {"w": np.arange(1000, dtype=np.float32)}


def train(server: MemoryServer, round: int, value: float = 1.0) -> Task:
    message = Train({"w": MODEL["w"] * np.float32(value)}, TrainingSettings(), cluster="c1")
    return Task("r1", round, 0, 7, f"round {round}", encode(message, server.keep))


@pytest.fixture
def server() -> MemoryServer:
    server = MemoryServer([])
    server.tasks += [train(server, 1), train(server, 2, 3.0)]
    return server


@pytest.fixture
def device(tmp_path: Path, server: MemoryServer) -> Device:
    return Device(tmp_path, server)


def trained(server: MemoryServer, index: int) -> list[float]:
    """The first weights of a report, out of what was uploaded."""
    result = server.reports[index].result
    assert isinstance(result, Payload)
    data = server.uploads[result.weights()[0].blob.sha256]
    return np.frombuffer(data, np.float32)[:3].tolist()


def test_a_visit(device: Device, server: MemoryServer) -> None:
    device.run()
    assert [report.round for report in server.reports] == [1, 2]
    assert trained(server, 0) == [0.0, 2.0, 4.0]
    assert trained(server, 1) == [0.0, 6.0, 12.0]
    steps = [line.split()[0] for line in server.log]
    visit = ["next_task", "fetch", "uploaded", "upload", "report"]
    assert [s for s in steps if s != "alive"] == ["hello", *visit, *visit, "next_task", "leave"]
    assert device.outbox.pending() is None
    status = device.watcher.status
    assert (status.tasks, status.round, status.cluster, status.outcome) == (2, 2, "c1", "accepted")
    assert device.said == []


def test_people_read_the_run_and_its_own_count(device: Device, server: MemoryServer) -> None:
    """The engine's number, which counts other rounds too, is for machines."""
    server.tasks = [
        replace(train(server, 9), run="digits", title="training round 4 of 10: devices describe their data"),
        replace(train(server, 10), run="digits", title=""),
    ]
    server.outcomes = [Receipt(Outcome.LATE, "it was over"), Receipt(Outcome.ACCEPTED)]
    device.run()
    told = [text for text in device.doing if text.startswith("digits: ")]
    assert told == ["digits: training round 4 of 10: devices describe their data", "digits: train"]
    assert device.said == [f"{told[0]}: the result was late: it was over"]
    assert device.watcher.status.round == 10


def test_once_is_one_report(device: Device, server: MemoryServer) -> None:
    device.run(Until.ONCE)
    assert [report.round for report in server.reports] == [1]
    assert server.log[-1] == "leave"


def test_without_an_end_it_goes_on_until_it_is_stopped(device: Device, server: MemoryServer) -> None:
    async def stopped() -> None:
        serving = asyncio.create_task(device.agent().run())
        await until(lambda: len(server.calls("next_task")) >= 6)  # two tasks, then idle after idle
        serving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await serving

    asyncio.run(stopped())
    assert server.log[-1] == "leave"
    assert len(server.reports) == 2
    assert "waiting: nothing to do" in device.doing


@pytest.mark.parametrize(
    "kind", ["hello", "next_task", "fetch", "uploaded", "upload", "report", "alive", "leave"]
)
def test_a_server_that_is_away_is_asked_again(device: Device, server: MemoryServer, kind: str) -> None:
    server.away, server.away_from = 3, (kind,)
    device.performer.before = [lambda: asyncio.sleep(0.05)]
    device.run()
    assert [report.round for report in server.reports] == [1, 2]
    assert device.performer.performed == [1, 2]
    if kind not in ("alive", "leave"):
        assert any("waiting for the server: nobody there" in text for text in device.doing)


def test_patience_has_an_end_where_the_owner_sets_one(device: Device, server: MemoryServer) -> None:
    server.away = 1 << 30
    with pytest.raises(Unavailable, match="nobody there"):
        device.run(patience=0.05)


def test_a_cut_download_goes_on(device: Device, server: MemoryServer) -> None:
    server.cut = [2000, 3000]
    device.run(Until.ONCE)
    assert trained(server, 0) == [0.0, 2.0, 4.0]
    assert len(server.calls("fetch")) == 3


def test_a_cut_upload_goes_on_where_the_server_is(device: Device, server: MemoryServer) -> None:
    device.performer.before = [lambda: server.cut.append(1500)]
    device.run(Until.ONCE)
    assert trained(server, 0) == [0.0, 2.0, 4.0]
    assert server.calls("upload") == ["upload 0", "upload 1500"]


def test_what_the_server_has_is_not_uploaded(device: Device, server: MemoryServer) -> None:
    doubled = server.keep({"w": MODEL["w"] * 2}).blob.sha256
    server.uploads[doubled] = server.blobs[doubled]
    device.run(Until.ONCE)
    assert server.calls("upload") == []
    assert len(server.reports) == 1


def test_wrong_bytes_are_fetched_once_more_and_then_reported(device: Device, server: MemoryServer) -> None:
    for name in server.blobs:
        server.blobs[name] = bytes(len(server.blobs[name]))
    device.run()
    assert [r.result.code for r in server.reports if isinstance(r.result, Failure)] == ["bad-payload"] * 2
    assert device.performer.performed == []
    assert len(server.calls("fetch")) == 4


def test_a_blob_that_is_gone_is_reported(device: Device, server: MemoryServer) -> None:
    server.blobs.clear()
    device.run(Until.ONCE)
    result = server.reports[0].result
    assert isinstance(result, Failure)
    assert result.code == NotFound.code


def test_a_model_beyond_the_owners_limit_is_not_fetched(device: Device, server: MemoryServer) -> None:
    device.run(Until.ONCE, download_bytes=3999)
    result = server.reports[0].result
    assert isinstance(result, Failure)
    assert "4000 bytes" in result.message
    assert "limits.download_bytes" in result.message
    assert server.calls("fetch") == []


def test_a_failure_is_reported_and_the_device_goes_on(device: Device, server: MemoryServer) -> None:
    device.performer.before = [lambda: Failure("learner-failed", "train() failed", "Traceback: boom")]
    device.run()
    assert isinstance(server.reports[0].result, Failure)
    assert isinstance(server.reports[1].result, Payload)
    assert device.said == ["Traceback: boom\nerror[learner-failed]: train() failed"]
    assert device.watcher.failure is None  # the last one worked
    assert device.watcher.status.error["code"] == "learner-failed"


@pytest.mark.parametrize("outcome", [Outcome.LATE, Outcome.REFUSED])
def test_what_was_not_taken_is_said(device: Device, server: MemoryServer, outcome: Outcome) -> None:
    server.outcomes = [Receipt(outcome, "because of that")]
    device.run()
    assert any(f"{outcome.value}: because of that" in text for text in device.said)
    assert len(server.reports) == 2
    assert device.outbox.pending() is None


def test_a_duplicate_is_as_good(device: Device, server: MemoryServer) -> None:
    server.outcomes = [Receipt(Outcome.DUPLICATE)] * 2
    device.run()
    assert device.said == []


# -- restarts -------------------------------------------------------------------------------------------


def crash(device: Device, server: MemoryServer, kind: str) -> None:
    """End the agent without ceremony at the first call of this kind after the work is done."""

    def away() -> None:
        server.away, server.away_from = 1 << 30, (kind, "leave")

    device.performer.before = [away]
    with pytest.raises(Unavailable):
        device.run(patience=0.05)
    server.away, server.away_from = 0, ()


@pytest.mark.parametrize("kind", ["uploaded", "upload", "report"])
def test_a_finished_result_survives_a_restart(device: Device, server: MemoryServer, kind: str) -> None:
    crash(device, server, kind)
    assert server.reports == []
    restarted = Device(device.root, server)
    restarted.run()
    assert restarted.performer.performed == [2]  # round 1 was not trained again
    assert [(r.round, r.attempt) for r in server.reports] == [(1, 2), (2, 2)]
    assert trained(server, 0) == [0.0, 2.0, 4.0]


def test_a_result_of_other_work_is_thrown_away(device: Device, server: MemoryServer) -> None:
    crash(device, server, "report")
    server.tasks = [train(server, 1, 5.0)]  # the same round of the same run, and another model
    restarted = Device(device.root, server)
    restarted.run()
    assert restarted.performer.performed == [1]
    assert trained(server, 0) == [0.0, 10.0, 20.0]


def test_a_damaged_outbox_costs_the_work_and_no_more(device: Device, server: MemoryServer) -> None:
    crash(device, server, "report")
    (name,) = os.listdir(device.root / "outbox")
    (device.root / "outbox" / name).write_bytes(b"\xff" * 20)
    restarted = Device(device.root, server)
    restarted.run(Until.ONCE)
    assert restarted.performer.performed == [1]
    assert os.listdir(device.root / "outbox") == []


def test_a_result_whose_blob_is_gone_is_made_again(device: Device, server: MemoryServer) -> None:
    crash(device, server, "report")
    device.performer.store.trim(0)
    server.uploads.clear()
    restarted = Device(device.root, server)
    restarted.run(Until.ONCE)
    assert restarted.performer.performed == [1]
    assert trained(server, 0) == [0.0, 2.0, 4.0]


def test_the_result_is_on_the_disk_before_anything_is_sent(device: Device, server: MemoryServer) -> None:
    seen: list[bool] = []

    class Looking(MemoryLink):
        async def uploaded(self, blob: Any) -> int:
            seen.append(device.outbox.pending() is not None)
            return await super().uploaded(blob)

    agent = device.agent()
    agent._link = Looking(server)
    asyncio.run(agent.run(Until.ONCE))
    assert seen == [True]


# -- sessions -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["next_task", "fetch", "uploaded", "upload", "report"])
def test_a_lost_session_is_begun_again(device: Device, server: MemoryServer, kind: str) -> None:
    class Forgetful(MemoryLink):
        def _call(self, name: str, detail: object = "", session: bool = True) -> None:
            lost = name == kind and server.attempt == 1
            server.forget = server.forget or lost
            super()._call(name, detail, session or lost)

    agent = device.agent()
    agent._link = Forgetful(server)
    asyncio.run(agent.run(Until.FINISHED))
    assert [(r.round, r.attempt) for r in server.reports] == [(1, 2), (2, 2)]
    assert device.performer.performed == [1, 2]


def test_a_session_that_is_lost_in_an_upload_is_no_failure(device: Device, server: MemoryServer) -> None:
    class Forgetful(MemoryLink):
        async def upload(self, blob: Any, start: int, chunks: Any) -> int:
            if server.attempt == 1:
                raise SessionLost("no such session", "say hello")
            return await super().upload(blob, start, chunks)

    agent = device.agent()
    agent._link = Forgetful(server)
    asyncio.run(agent.run(Until.ONCE))
    assert isinstance(server.reports[0].result, Payload)
    assert device.performer.performed == [1]


def test_work_goes_on_over_a_lost_session(device: Device, server: MemoryServer) -> None:
    async def until_a_new_session() -> None:
        server.forget = True
        await until(lambda: server.attempt == 2 and "alive 2" in server.log)

    device.performer.before = [until_a_new_session]
    device.run()
    assert device.performer.performed == [1, 2]
    assert device.performer.abandoned == 0
    assert [(r.round, r.attempt) for r in server.reports] == [(1, 2), (2, 2)]
    assert "alive 2" in server.log  # under the new lease


def test_other_work_after_a_lost_session_ends_the_old(device: Device, server: MemoryServer) -> None:
    async def never() -> None:
        server.tasks.pop(0)
        server.forget = True
        await asyncio.sleep(600)

    device.performer.before = [never]
    device.run()
    assert device.performer.abandoned == 1
    assert device.performer.performed == [1, 2]
    assert [r.round for r in server.reports] == [2]


def test_work_that_nobody_wants_is_ended(device: Device, server: MemoryServer) -> None:
    async def never() -> None:
        server.wanted = False
        await asyncio.sleep(600)

    def again() -> None:
        server.wanted = True

    device.performer.before = [never, again]
    server.tasks.pop()
    device.run()
    assert device.performer.abandoned == 1
    assert device.performer.performed == [1, 1]
    assert len(server.reports) == 1


def test_heartbeats_that_find_no_server_do_not_end_the_work(device: Device, server: MemoryServer) -> None:
    async def a_while() -> None:
        server.away, server.away_from = 3, ("alive",)
        await until(lambda: not server.away)

    device.performer.before = [a_while]
    device.run(Until.ONCE)
    assert device.performer.performed == [1]
    assert len(server.reports) == 1


def test_a_device_that_is_not_let_in_ends(device: Device, server: MemoryServer) -> None:
    server.refuse_hello = True
    with pytest.raises(Refused, match="this device may not"):
        device.run(Until.STOPPED)


def test_stopping_ends_the_work_and_says_goodbye(device: Device, server: MemoryServer) -> None:
    async def stopped() -> None:
        began = asyncio.Event()

        async def never() -> None:
            began.set()
            await asyncio.sleep(600)

        device.performer.before = [never]
        serving = asyncio.create_task(device.agent().run())
        await began.wait()
        serving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await serving

    asyncio.run(stopped())
    assert device.performer.abandoned == 1
    assert server.log[-1] == "leave"


def test_old_models_are_thrown_away(device: Device, server: MemoryServer) -> None:
    device.run(kept_bytes=4000)
    assert len(os.listdir(device.root / "blobs")) == 1


def test_a_task_without_tensors(device: Device, server: MemoryServer) -> None:
    server.tasks = [Task("r1", 1, 0, 0, "", encode(Evaluate(MODEL), server.keep))]
    device.run(Until.ONCE)
    result = server.reports[0].result
    assert isinstance(result, Payload)
    assert result.parts["accuracy"] == 0.5
    assert server.calls("uploaded", "upload") == []


# -- histories ------------------------------------------------------------------------------------------


class Crash(Exception):
    """The end of the process."""


class ChaoticLink(MemoryLink):
    """Any call or answer may be lost, sessions go, transfers are cut, the process dies."""

    def __init__(self, server: MemoryServer, chance: Random) -> None:
        super().__init__(server)
        self._chance = chance

    def _call(self, kind: str, detail: object = "", session: bool = True) -> None:
        roll = self._chance.random()
        if roll < 0.03:
            raise Crash
        if roll < 0.13:
            raise Unavailable("the request was lost")
        if roll < 0.18:
            self._server.forget = True
        if roll > 0.9 and kind in ("fetch", "upload"):
            self._server.cut = [self._chance.randrange(0, 4500)]
        super()._call(kind, detail, session)

    def _maybe_lost(self) -> None:
        roll = self._chance.random()
        if roll < 0.03:
            raise Crash
        if roll < 0.13:
            raise Unavailable("the answer was lost")

    async def next_task(self, wait: float) -> Any:
        found = await super().next_task(wait)
        self._maybe_lost()
        return found

    async def upload(self, blob: Any, start: int, chunks: Any) -> int:
        held = await super().upload(blob, start, chunks)
        self._maybe_lost()
        return held

    async def report(self, report: Any) -> Receipt:
        receipt = await super().report(report)
        self._maybe_lost()
        return receipt


@pytest.mark.parametrize("seed", range(60))
def test_whatever_happens_every_round_gets_its_result_once(tmp_path: Path, seed: int) -> None:
    chance, server = Random(seed), MemoryServer([])
    server.tasks = [train(server, number, float(number)) for number in range(1, 7)]
    performed: list[int] = []
    for _ in range(200):  # lives of the device's process
        device = Device(tmp_path, server)
        agent = device.agent()
        agent._link = ChaoticLink(server, chance)
        with contextlib.suppress(Crash):
            asyncio.run(agent.run(Until.FINISHED))
            break
        performed += device.performer.performed
    else:
        pytest.fail("it never came to an end")
    performed += device.performer.performed
    assert [report.round for report in server.reports] == [1, 2, 3, 4, 5, 6]
    for index in range(6):
        assert trained(server, index) == [0.0, 2.0 * (index + 1), 4.0 * (index + 1)]
    assert sorted(set(performed)) == [1, 2, 3, 4, 5, 6]
