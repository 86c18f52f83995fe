"""A process tries models only if the graph, the question or the data are others than last time."""

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from fedclient.config import DataConfig, WorkConfig
from fedclient.light import remembering
from fedclient.light.remembering import Remembering
from fedclient.work.data import state_of
from fedclient.work.pipes import WorkerInfo
from shoal.core.exchange.choosing.compact import ChooseCompact
from shoal.core.exchange.link import Failure, Task
from shoal.core.exchange.payload import Payload

LOADED = WorkerInfo(40, False, "cpu")
CHOICE = ChooseCompact.kind


FIELDS = {"open": "number", "choose_compact": "bits", "describe": "classes", "vote": "epsilon"}
"""What tells two questions of a kind apart here."""


class Played:
    """An executor that notes what it does. There is a process from a start or a task until the next stop."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.failing = False

    async def start(self) -> WorkerInfo:
        self.log.append("start")
        return LOADED

    async def perform(self, task: Task) -> Payload | Failure:
        kind = task.payload.kind
        self.log.append(f"{kind}{task.payload.parts[FIELDS[kind]]}")
        if self.failing:
            return Failure("worker-died", "it ended")
        return Payload(f"result of {kind}", dict(task.payload.parts))

    async def stop(self) -> None:
        self.log.append("stop")

    def noted(self) -> list[str]:
        found, self.log = self.log, []
        return found


def task(kind: str, number: int = 1) -> Task:
    return Task("r1", 1, 0, 0, kind, Payload(kind, {FIELDS[kind]: number}))


def played(story: Callable[[Remembering, Played, list[object]], object]) -> None:
    inner, data = Played(), list[object]([1])
    executor = Remembering(inner, lambda: data[0])

    async def run() -> None:
        assert await executor.start() == LOADED
        assert await executor.start() == LOADED
        assert inner.noted() == ["start"]
        await story(executor, inner, data)  # type: ignore[misc]

    asyncio.run(run())


async def asked(
    executor: Remembering, graph: int = 1, question: int = 1, kind: str = "choose_compact"
) -> object:
    """As a placement does: the graph, and then the question. Returns the question's result."""
    opened = await executor.perform(task("open", graph))
    return opened if isinstance(opened, Failure) else await executor.perform(task(kind, question))


def test_the_same_again_starts_nothing_and_what_changed_starts_one() -> None:
    async def story(executor: Remembering, inner: Played, data: list[object]) -> None:
        first = await asked(executor)
        assert inner.noted() == ["open1", f"{CHOICE}1", "stop"]
        assert await asked(executor) == first
        assert inner.noted() == []
        assert await asked(executor, question=2) != first
        assert inner.noted() == ["open1", f"{CHOICE}2", "stop"]
        await asked(executor, graph=2, question=2)
        assert inner.noted() == ["open2", f"{CHOICE}2", "stop"]
        data[0] = 2
        await asked(executor, graph=2, question=2)
        assert inner.noted() == ["open2", f"{CHOICE}2", "stop"]
        data[0] = None  # of a module, say: it is not known
        for _ in range(2):
            await asked(executor, graph=2, question=2)
            assert inner.noted() == ["open2", f"{CHOICE}2", "stop"]

    played(story)


@pytest.mark.parametrize("kind", ["describe", "vote"])
def test_what_leaves_the_device_is_made_each_time_since_the_ledger_decides(kind: str) -> None:
    async def story(executor: Remembering, inner: Played, data: list[object]) -> None:
        await asked(executor, kind=kind)
        assert inner.noted() == ["open1", f"{kind}1", "stop"]
        await asked(executor, kind=kind)
        assert inner.noted() == ["open1", f"{kind}1", "stop"]

    played(story)


def test_what_failed_is_tried_again_only_after_an_hour(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(executor: Remembering, inner: Played, data: list[object]) -> None:
        inner.failing = True
        assert isinstance(await asked(executor), Failure)
        assert inner.noted() == ["open1", "stop"]
        assert isinstance(await asked(executor), Failure)
        assert inner.noted() == []
        inner.failing = False
        monkeypatch.setattr(remembering, "RETRY", 0.0)
        assert isinstance(await asked(executor), Payload)
        assert inner.noted() == ["open1", f"{CHOICE}1", "stop"]

    played(story)


def test_the_state_of_data_differs_once_they_were_changed(tmp_path: Path) -> None:
    path, folder = tmp_path / "new.npz", tmp_path / "images"
    np.savez(path, x=np.ones((2, 2)))
    (folder / "0").mkdir(parents=True)
    work = WorkConfig(tmp_path, tmp_path, data=DataConfig(npz=path))
    images = WorkConfig(tmp_path, tmp_path, data=DataConfig(images=folder))
    before, of_folder = state_of(work), state_of(images)
    assert before == state_of(work)
    os.utime(path, ns=(1, 1))
    assert before != state_of(work)
    (folder / "0" / "a.png").write_bytes(b"")
    assert of_folder != state_of(images)
    (tmp_path / "linked").mkdir()
    (folder / "1").symlink_to(tmp_path / "linked")
    of_folder = state_of(images)
    (tmp_path / "linked" / "b.png").write_bytes(b"")
    assert of_folder != state_of(images)
    path.unlink()
    assert state_of(work) is None
    assert state_of(WorkConfig(tmp_path, tmp_path, data=DataConfig(module="a:b"))) is None
