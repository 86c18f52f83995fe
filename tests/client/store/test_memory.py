"""What is remembered counts once the result is in the outbox; a task done again finds it as it was."""

import errno
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedclient.store import memory as module
from fedclient.store.memory import Memory
from fedclient.store.state import Outbox
from shoal.core.errors import DiskFull
from shoal.core.exchange.link import Idle, Report, Task
from shoal.core.exchange.payload import Payload
from tests.client.memory_server import MemoryLink, MemoryServer
from tests.client.visits import Device

FIRST, SECOND, THIRD = "a" * 64, "b" * 64, "c" * 64


def report(run: str = "r1") -> Report:
    return Report(run, 1, 1, Payload("toy", {}))


def remembered(memory: Memory, work: str, run: str = "r1") -> float | None:
    found = memory.before(run, work)
    return None if found is None else float(found["value"])


def propose(memory: Memory, work: str, value: float, run: str = "r1") -> None:
    memory.propose(run, work, {"value": np.array(value)})


@pytest.fixture
def outbox(tmp_path: Path) -> Outbox:
    return Outbox(tmp_path / "outbox")


def files(tmp_path: Path) -> list[Path]:
    return [path for path in (tmp_path / "memory").rglob("*") if path.is_file()]


def test_it_counts_once_the_result_is_in_the_outbox(outbox: Outbox) -> None:
    memory = Memory(outbox.memory._folder)  # the training process has its own
    assert remembered(memory, FIRST) is None
    propose(memory, FIRST, 1.0)
    assert remembered(memory, FIRST) is None
    assert remembered(memory, SECOND) is None
    outbox.keep(FIRST, report())
    assert remembered(memory, SECOND) == 1.0


def test_work_that_never_got_to_the_outbox_leaves_nothing(outbox: Outbox) -> None:
    memory = outbox.memory
    propose(memory, FIRST, 1.0)
    outbox.keep(FIRST, report())
    propose(memory, SECOND, 2.0)
    outbox.clear()  # it was given up, and the next task begins
    assert remembered(memory, THIRD) == 1.0


def test_a_crash_before_the_record_is_made_up_for_before_the_result_can_go(outbox: Outbox) -> None:
    memory = outbox.memory
    propose(memory, FIRST, 1.0)
    (outbox._folder).mkdir()
    (outbox._folder / FIRST).write_bytes(b"the result")
    outbox.clear()
    assert remembered(memory, SECOND) == 1.0


def test_a_disk_without_room_for_the_folder_is_a_full_disk(
    outbox: Outbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which the training process waits for: any other error would lose what the task has paid for."""

    def full(path: Path, *args: object, **given: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    with monkeypatch.context() as patched:
        patched.setattr(Path, "mkdir", full)
        with pytest.raises(DiskFull, match="No space left"):
            propose(outbox.memory, FIRST, 1.0)
    propose(outbox.memory, FIRST, 1.0)


def test_a_clock_that_was_ahead_makes_no_run_older_than_others(outbox: Outbox) -> None:
    """It would be forgotten with each task, and begin from nothing with the next one."""
    for number in range(module.RUNS):
        propose(outbox.memory, FIRST, 1.0, f"other {number}")
        outbox.keep(FIRST, report())
    for path in files(outbox._folder.parent):
        os.utime(path, (1e10, 1e10))
    propose(outbox.memory, SECOND, 2.0)
    outbox.keep(SECOND, report())
    assert remembered(outbox.memory, THIRD) == 2.0
    assert len(list(outbox.memory._paths())) == module.RUNS


def test_work_that_is_done_again_starts_from_what_it_started_from(outbox: Outbox) -> None:
    memory = outbox.memory
    for work, value in ((FIRST, 1.0), (SECOND, 2.0)):
        propose(memory, work, value)
        outbox.keep(work, report())
    outbox.clear()
    assert remembered(memory, SECOND) == 1.0
    propose(memory, SECOND, 2.5)
    outbox.keep(SECOND, report())
    assert remembered(memory, SECOND) == 1.0
    assert remembered(memory, THIRD) == 2.5


def test_settling_twice_is_settling_once(outbox: Outbox) -> None:
    memory = outbox.memory
    propose(memory, FIRST, 1.0)
    proposal = (outbox.memory._folder / "next").read_bytes()
    memory.settle(FIRST)
    (outbox.memory._folder / "next").write_bytes(proposal)  # a crash came before it was removed
    memory.settle(FIRST)
    assert remembered(memory, FIRST) is None
    assert remembered(memory, SECOND) == 1.0


def test_only_what_is_needed_is_kept_and_nothing_of_runs_that_are_over(
    outbox: Outbox, tmp_path: Path
) -> None:
    memory = outbox.memory
    for number in range(5):
        work = f"{number:064}"
        propose(memory, work, float(number))
        memory.settle(work)
    assert len(files(tmp_path)) == 1 + 2  # a record, and the tensors from before and after the last task
    propose(memory, FIRST, 9.0, run="r2")
    memory.settle(FIRST)
    memory.forget({"r2", "r3"})
    assert remembered(memory, SECOND) is None
    assert remembered(memory, SECOND, run="r2") == 9.0
    memory.forget(())
    assert files(tmp_path) == []


def test_the_run_that_was_heard_of_longest_ago_is_forgotten_first(
    outbox: Outbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "RUNS", 2)
    memory = outbox.memory
    for number in range(3):
        run, work = f"r{number}", f"{number:064}"
        propose(memory, work, float(number), run)
        memory.settle(work)
        os.utime(memory._path(run), (number, number))
    assert [remembered(memory, FIRST, f"r{number}") for number in range(3)] == [None, 1.0, 2.0]


def test_what_is_damaged_is_forgotten(outbox: Outbox) -> None:
    memory = outbox.memory
    propose(memory, FIRST, 1.0)
    memory.settle(FIRST)
    (tensors,) = (memory._folder / "tensors").iterdir()
    tensors.write_bytes(b"x" * tensors.stat().st_size)
    assert remembered(Memory(memory._folder), SECOND) is None
    memory._path("r1").write_bytes(b"damaged")
    assert remembered(memory, SECOND) is None
    propose(memory, SECOND, 2.0)
    memory.settle(SECOND)
    assert remembered(memory, THIRD) == 2.0


class Telling(MemoryLink):
    """Names the runs that go on."""

    async def next_task(self, wait: float) -> Task | Idle:
        answer = await super().next_task(wait)
        return answer if isinstance(answer, Task) else replace(answer, going_on=("r7",))


@pytest.mark.parametrize(("link", "left"), [(MemoryLink, {"r1", "r7"}), (Telling, {"r7"})])
def test_an_agent_forgets_the_runs_that_the_server_does_not_name(
    link: type[MemoryLink], left: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.client.visits.MemoryLink", link)
    device = Device(tmp_path, MemoryServer([]))
    for run, work in (("r1", FIRST), ("r7", SECOND)):
        propose(device.outbox.memory, work, 1.0, run)
        device.outbox.memory.settle(work)
    device.run()
    assert {run for run in ("r1", "r7") if remembered(device.outbox.memory, THIRD, run)} == left
