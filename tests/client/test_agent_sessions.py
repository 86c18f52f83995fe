"""Sessions that are lost, work that is no longer wanted, and the end of a visit."""

import asyncio
import os
from typing import Any

import pytest

from fedclient.agent.agent import Until
from fedclient.net.throttle import Throttle
from fedclient.store.blobs import SPARE
from shoal.core.errors import Refused
from shoal.core.exchange.link import Failure, Task
from shoal.core.exchange.messages import Evaluate
from shoal.core.exchange.payload import Payload, encode
from tests.client.memory_server import MemoryLink, MemoryServer, SessionLost
from tests.client.visits import MODEL, Device, NoJitter, train
from tests.waiting import until


@pytest.mark.parametrize("kind", ["next_task", "fetch", "uploaded", "upload", "report"])
def test_a_lost_session_is_begun_again(device: Device, server: MemoryServer, kind: str) -> None:
    class Forgetful(MemoryLink):
        def _call(self, name: str, detail: object = "", session: bool = True) -> None:
            lost = name == kind and server.attempt == 1
            server.forget = server.forget or lost
            super()._call(name, detail, session or lost)

    agent = device.agent(Forgetful(server))
    asyncio.run(agent.run(Until.FINISHED))
    assert [(r.round, r.attempt) for r in server.reports] == [(1, 2), (2, 2)]
    assert device.executor.performed == [1, 2]


def test_a_session_that_is_lost_in_an_upload_is_no_failure(device: Device, server: MemoryServer) -> None:
    class Forgetful(MemoryLink):
        async def upload(self, blob: Any, start: int, chunks: Any) -> int:
            if server.attempt == 1:
                raise SessionLost("no such session", "say hello")
            return await super().upload(blob, start, chunks)

    agent = device.agent(Forgetful(server))
    asyncio.run(agent.run(Until.ONCE))
    assert isinstance(server.reports[0].result, Payload)
    assert device.executor.performed == [1]


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The bounds of all waits, which themselves take no time."""
    bounds: list[float] = []

    def uniform(chance: NoJitter, a: float, b: float) -> float:
        bounds.append(b)
        return a

    monkeypatch.setattr(NoJitter, "uniform", uniform)
    return bounds


def test_a_session_that_is_lost_in_an_outage_is_begun_again_soon_after_it(
    device: Device, server: MemoryServer, waits: list[float]
) -> None:
    class Restarted(MemoryLink):
        async def next_task(self, wait: float) -> Any:
            server.forget = server.forget or (server.away > 0)
            return await super().next_task(wait)

    server.away, server.away_from = 9, ("next_task",)
    asyncio.run(device.agent(Restarted(server)).run(Until.ONCE))
    assert server.attempt == 2
    assert waits == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 45.0, 45.0, 45.0, 1.0]  # the last after the answer


def test_sessions_that_are_lost_again_and_again_are_begun_at_longer_and_longer_intervals(
    device: Device, server: MemoryServer, waits: list[float]
) -> None:
    class Forgetful(MemoryLink):
        async def next_task(self, wait: float) -> Any:
            server.forget = server.attempt < 4 or (server.attempt == 4 and len(server.reports) == 1)
            return await super().next_task(wait)

    asyncio.run(device.agent(Forgetful(server)).run(Until.FINISHED))
    assert [report.round for report in server.reports] == [1, 2]
    assert waits == [1.0, 2.0, 4.0, 1.0]  # a session that brought a task ends the row


def test_work_goes_on_over_a_lost_session(device: Device, server: MemoryServer) -> None:
    async def until_a_new_session() -> None:
        server.forget = True
        await until(lambda: server.attempt == 2 and "alive 2" in server.log)

    device.executor.before = [until_a_new_session]
    device.run()
    assert device.executor.performed == [1, 2]
    assert device.executor.abandoned == 0
    assert [(r.round, r.attempt) for r in server.reports] == [(1, 2), (2, 2)]
    assert "alive 2" in server.log  # under the new lease


def test_other_work_after_a_lost_session_ends_the_old(device: Device, server: MemoryServer) -> None:
    async def never() -> None:
        server.tasks.pop(0)
        server.forget = True
        await asyncio.sleep(600)

    device.executor.before = [never]
    device.run()
    assert device.executor.abandoned == 1
    assert device.executor.performed == [1, 2]
    assert [r.round for r in server.reports] == [2]


def test_work_that_nobody_wants_is_ended(device: Device, server: MemoryServer) -> None:
    async def never() -> None:
        server.wanted = False
        await asyncio.sleep(600)

    def again() -> None:
        server.wanted = True

    device.executor.before = [never, again]
    server.tasks.pop()
    device.run()
    assert device.executor.abandoned == 1
    assert device.executor.performed == [1, 1]
    assert len(server.reports) == 1


def test_heartbeats_that_find_no_server_do_not_end_the_work(device: Device, server: MemoryServer) -> None:
    async def a_while() -> None:
        server.away, server.away_from = 3, ("alive",)
        await until(lambda: not server.away)

    device.executor.before = [a_while]
    device.run(Until.ONCE)
    assert device.executor.performed == [1]
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

        device.executor.before = [never]
        serving = asyncio.create_task(device.agent().run())
        await began.wait()
        serving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await serving

    asyncio.run(stopped())
    assert device.executor.abandoned == 1
    assert server.log[-1] == "leave"


def test_old_models_are_thrown_away(device: Device, server: MemoryServer) -> None:
    device.run(kept_bytes=4000)
    assert len(os.listdir(device.root / "blobs")) == 1


def test_results_that_were_taken_become_one_spare_file_and_models_that_no_task_uses_any_more_are_deleted(
    device: Device, server: MemoryServer
) -> None:
    server.tasks += [train(server, 3, 5.0), train(server, 4, 7.0)]
    *_, last_but_one, last = [task.payload.weights()[0].blob.sha256 for task in server.tasks]
    device.run()
    assert len(server.reports) == 4
    assert set(os.listdir(device.root / "blobs")) == {last_but_one, last, SPARE}


def test_a_task_with_more_models_than_the_owner_keeps_is_refused_before_a_byte_is_fetched(
    device: Device, server: MemoryServer
) -> None:
    (blob,) = {weights.blob for weights in server.tasks[0].payload.weights()}
    device.run(Until.ONCE, kept_bytes=blob.size - 1)
    result = server.reports[0].result
    assert isinstance(result, Failure)
    assert result.code == "refused"
    assert server.calls("fetch") == []
    assert list((device.root / "blobs").iterdir()) == []


def test_the_models_of_a_task_fit_beside_what_is_kept(device: Device, server: MemoryServer) -> None:
    """At the moment at which the work begins, and all models of the task have been fetched."""
    (blob,) = {weights.blob for weights in server.tasks[0].payload.weights()}
    blobs = device.root / "blobs"
    blobs.mkdir(parents=True, exist_ok=True)
    for number in range(4):
        (blobs / f"{number:064x}").write_bytes(bytes(blob.size))
    kept: list[int] = []

    async def look() -> None:
        kept.append(sum(path.stat().st_size for path in blobs.iterdir()))

    device.executor.before = [look]
    device.run(Until.ONCE, kept_bytes=2 * blob.size)
    assert kept == [2 * blob.size]


def test_models_and_results_keep_to_the_bandwidth_of_the_owner(
    device: Device, server: MemoryServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[tuple[float, int]] = []

    async def take(throttle: Throttle, size: int) -> None:
        taken.append((throttle._rate, size))

    monkeypatch.setattr(Throttle, "take", take)
    (blob,) = {weights.blob for weights in server.tasks[0].payload.weights()}
    device.run(Until.ONCE, bandwidth=50_000.0)
    assert sum(size for _, size in taken) == 2 * blob.size  # the result is as large as the model
    assert {rate for rate, _ in taken} == {50_000.0}


def test_a_task_without_tensors(device: Device, server: MemoryServer) -> None:
    server.tasks = [Task("r1", 1, 0, 0, "", encode(Evaluate(MODEL), server.keep))]
    device.run(Until.ONCE)
    result = server.reports[0].result
    assert isinstance(result, Payload)
    assert result.parts["accuracy"] == 0.5
    assert server.calls("uploaded", "upload") == []
