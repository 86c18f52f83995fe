"""The training process: real ones, spawned, with an author's code that prints, fails, dies and hangs."""

import asyncio
import errno
import os
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedclient.config import DataConfig, LearnerConfig, WorkConfig
from fedclient.store.blobs import BlobStore
from fedclient.work.executor import Executor, Spawned, WorkerInfo
from fedclient.work.failures import MAX_DETAILS
from fedclient.work.runtime import Runtime, halves
from shoal.core.errors import ConfigError, DataFault, LearnerFault
from shoal.core.exchange.link import Failure, Task
from shoal.core.exchange.messages import Build, Built, Evaluate, Message, Train, Trained, TrainingSettings
from shoal.core.exchange.payload import Payload, decode, encode
from shoal.core.types import Tensors
from tests.client.in_process import InProcess
from tests.waiting import HANG


def task(message: Message, store: BlobStore, seed: int = 7) -> Task:
    return Task("r1", 3, 1, seed, "a title", encode(message, store.keep))


def answer(payload: Payload | Failure, cls: type[Message], store: BlobStore) -> Any:
    assert isinstance(payload, Payload), payload
    return decode(payload, {cls.kind: cls}, store.load)


async def initial(executor: Executor, store: BlobStore) -> Tensors:
    built: Tensors = answer(await executor.perform(task(Build(), store)), Built, store).model
    return built


def wait_for(mark: Path) -> None:
    """Until the author's code, which hangs then, has written who it is."""
    while not mark.is_file() or not mark.read_text():
        time.sleep(0.02)


def with_executor(work: WorkConfig, steps: Callable[[Spawned], Awaitable[None]]) -> None:
    async def run() -> None:
        executor = Spawned(work)
        try:
            await steps(executor)
        finally:
            await executor.stop()

    asyncio.run(run())


def test_it_builds_trains_and_evaluates_in_one_process(
    work: WorkConfig, store: BlobStore, capfd: pytest.CaptureFixture[str]
) -> None:
    async def steps(executor: Spawned) -> None:
        assert await executor.start() == WorkerInfo(50, True, "cpu")
        process = executor._process
        model = await initial(executor, store)
        settings = TrainingSettings(epochs=3, learning_rate=0.1)
        results = [await executor.perform(task(Train(model, settings), store)) for _ in range(2)]
        assert results[0] == results[1]  # the same seed, the same bits
        trained = answer(results[0], Trained, store)
        assert trained.examples == 40
        assert any((trained.model[name] != model[name]).any() for name in model)
        found = await executor.perform(task(Evaluate(trained.model), store))
        assert isinstance(found, Payload)
        assert found.parts["examples"] == 10
        assert executor._process is process

    with_executor(work, steps)
    captured = capfd.readouterr()
    assert captured.out == ""
    assert "loading" in captured.err
    assert "raw bytes as well" in captured.err
    assert "training" in captured.err


@pytest.mark.usefixtures("forked_workers")
def test_a_process_gives_what_this_process_gives(work: WorkConfig, store: BlobStore) -> None:
    async def steps(executor: Spawned) -> None:
        here = InProcess(Runtime.open(work))
        assert await here.start() == await executor.start()
        model = await initial(here, store)
        asked = task(Train(model, TrainingSettings(epochs=2)), store)
        assert await here.perform(asked) == await executor.perform(asked)

    with_executor(work, steps)


@pytest.mark.usefixtures("forked_workers")
def test_failures_say_whose_fault_it_is_and_the_process_goes_on(work: WorkConfig, store: BlobStore) -> None:
    async def steps(executor: Spawned) -> None:
        model = await initial(executor, store)
        process = executor._process

        async def fails(message: Message) -> Failure:
            result = await executor.perform(task(message, store))
            assert isinstance(result, Failure)
            return result

        failure = await fails(Train(model, TrainingSettings(epochs=13)))
        assert failure.code == "learner-failed"
        assert "ZeroDivisionError: division by zero" in failure.message
        assert "in deep" in failure.details
        assert len(failure.details) <= MAX_DETAILS
        left = await fails(Train(model, TrainingSettings(epochs=7)))
        assert (left.code, "SystemExit: 5" in left.message) == ("learner-failed", True)
        wrong = await fails(Evaluate({"x": np.zeros(3, np.float32)}))
        assert wrong.code == "bad-payload"
        unknown = await executor.perform(Task("r1", 1, 1, 0, "", Payload("trian", {})))
        assert isinstance(unknown, Failure)
        assert "no algorithm on this device can do a 'trian' task" in unknown.message
        assert 'did you mean "train"?' in unknown.message
        reply = await executor.perform(Task("r1", 1, 1, 0, "", Payload("trained", {})))
        assert isinstance(reply, Failure)  # an answer is not a task
        missing = task(Train(model, TrainingSettings()), store)
        store.trim(0)
        gone = await executor.perform(missing)
        assert isinstance(gone, Failure)
        assert "is not here" in gone.message
        assert executor._process is process

    with_executor(work, steps)


@pytest.mark.usefixtures("forked_workers")
@pytest.mark.parametrize(("epochs", "said"), [(9, "ended by SIGKILL"), (6, "exit code 6")])
def test_a_death_is_a_failure_and_the_next_task_gets_a_new_process(
    work: WorkConfig, store: BlobStore, epochs: int, said: str
) -> None:
    async def steps(executor: Spawned) -> None:
        model = await initial(executor, store)
        dead = await executor.perform(task(Train(model, TrainingSettings(epochs=epochs)), store))
        assert isinstance(dead, Failure)
        assert dead.code == "worker-died"
        assert said in dead.message
        alive = await executor.perform(task(Train(model, TrainingSettings(epochs=1)), store))
        assert isinstance(alive, Payload)

    with_executor(work, steps)


@pytest.mark.usefixtures("forked_workers")
def test_cancelled_work_is_killed(
    work: WorkConfig, store: BlobStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark = tmp_path / "mark"
    monkeypatch.setenv("SHOAL_TEST_MARK", str(mark))

    async def steps(executor: Spawned) -> None:
        model = await initial(executor, store)
        hanging = asyncio.create_task(
            executor.perform(task(Train(model, TrainingSettings(epochs=99)), store))
        )
        await asyncio.to_thread(wait_for, mark)
        hanging.cancel()
        with pytest.raises(asyncio.CancelledError):
            await hanging
        with pytest.raises(ProcessLookupError):
            os.kill(int(mark.read_text()), 0)

    with_executor(work, steps)


@pytest.mark.usefixtures("forked_workers")
def test_it_ends_with_the_agent(
    work: WorkConfig, store: BlobStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even in the middle of an author's code: its input ends when the agent is killed."""
    mark = tmp_path / "mark"
    monkeypatch.setenv("SHOAL_TEST_MARK", str(mark))

    async def steps(executor: Spawned) -> None:
        model = await initial(executor, store)
        assert executor._process is not None
        process = executor._process.process
        assert process.stdin is not None
        hanging = asyncio.create_task(
            executor.perform(task(Train(model, TrainingSettings(epochs=99)), store))
        )
        await asyncio.to_thread(wait_for, mark)
        process.stdin.close()
        assert await asyncio.wait_for(process.wait(), HANG) == 0
        assert isinstance(await hanging, Failure)

    with_executor(work, steps)


def test_no_room_for_a_process_is_a_failure_and_the_next_task_gets_one(
    work: WorkConfig, store: BlobStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, failures = asyncio.create_subprocess_exec, [OSError(errno.ENOMEM, "Cannot allocate memory")]

    async def scarce(*arguments: Any, **options: Any) -> Any:
        if failures:
            raise failures.pop()
        return await real(*arguments, **options)

    async def steps(executor: Spawned) -> None:
        refused = await executor.perform(task(Build(), store))
        assert isinstance(refused, Failure)
        assert (refused.code, "Cannot allocate memory" in refused.message) == ("worker-died", True)
        assert isinstance(await executor.perform(task(Build(), store)), Payload)

    monkeypatch.setattr("asyncio.create_subprocess_exec", scarce)
    with_executor(work, steps)


def test_it_does_not_hear_the_terminal(work: WorkConfig) -> None:
    async def steps(executor: Spawned) -> None:
        await executor.start()
        assert executor._process is not None
        assert os.getsid(executor._process.process.pid) == executor._process.process.pid

    with_executor(work, steps)


@pytest.mark.usefixtures("forked_workers")
def test_what_it_cannot_start_with_is_raised_as_what_it_is(work: WorkConfig, tmp_path: Path) -> None:
    async def raises(changed: WorkConfig, kind: type[Exception], said: str) -> None:
        executor = Spawned(changed)
        with pytest.raises(kind, match=said):
            await executor.start()
        assert executor._process is None

    async def steps() -> None:
        (tmp_path / "broken.py").write_text("import torch\ndef build(:\n")
        broken = replace(work, learner=LearnerConfig(file=tmp_path / "broken.py"))
        await raises(broken, LearnerFault, "SyntaxError")
        await raises(replace(work, learner=LearnerConfig(builtin="nonet")), ConfigError, "nonet")
        missing = replace(work, data=DataConfig(npz=tmp_path / "none.npz"))
        await raises(missing, DataFault, "No such file")
        failed = await Spawned(missing).perform(Task("r1", 1, 1, 0, "", Payload("build", {})))
        assert isinstance(failed, Failure)  # in a task it does not end the agent
        assert failed.code == "bad-data"

    asyncio.run(steps())


@pytest.mark.usefixtures("forked_workers")
def test_an_unlabelled_file_in_the_place_of_the_data(work: WorkConfig, tmp_path: Path) -> None:
    np.savez(tmp_path / "new.npz", x=np.ones((7, 4), np.float32))
    runtime = Runtime.open(replace(work, file=tmp_path / "new.npz"))
    assert runtime.info == WorkerInfo(7, False, "cpu")


def test_every_standard_task_has_a_half() -> None:
    assert {"build", "train", "evaluate", "describe", "score"} <= set(halves())
    assert "trained" not in halves()
