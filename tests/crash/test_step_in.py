"""A device that steps in is asked again after a kill, and its report counts if it was stored before."""

import asyncio
import json
import os
import signal
from pathlib import Path

import pytest

from shoal.core.engine.rounds import RoundPolicy
from shoal.core.exchange.link import Failure, Outcome, Report
from shoal.shell import crash
from tests.programs import FORKS
from tests.server.servers import hands, server, start
from tests.server.toys import honest
from tests.waiting import HANG

POLICY = RoundPolicy(devices=2, minimum=2, wait_for_devices=0.0)


async def first_round(root: Path) -> None:
    """d0 fails, d2 steps in, d1 and d2 report; what counted is left in `root`/end.json."""
    async with server(root / "server") as coordinator:
        if "toy" not in coordinator.runs:
            await start(coordinator, policy=POLICY)
        d0, d1 = await hands(coordinator, 0), await hands(coordinator, 1)
        d2 = await hands(coordinator, 2)
        storage = coordinator.storage
        await d0.link.next_task(0.0)
        if await storage.call(storage.reports.get, "toy", 1, "d1") is None:
            assert (await d1.do(await d1.task(), honest(1))).outcome is Outcome.ACCEPTED
            failed = await d0.task()
            await d2.link.next_task(0.0)
            failure = Failure("learner-failed", "out of memory")
            await d0.link.report(Report(failed.run, failed.round, failed.attempt, failure))
        if await storage.call(storage.reports.get, "toy", 1, "d2") is None:
            task = await d2.task()
            assert task.round == 1
            await d2.do(task, honest(2))
        while not (rounds := await storage.call(storage.journal.timeline.read, "toy")):  # noqa: ASYNC110 -- nothing tells it
            await asyncio.sleep(0.01)
        (found,) = rounds
        counted = [report.device for report in await storage.call(storage.reports.of_round, "toy", 1)]
    (root / "end.json").write_text(json.dumps([found.asked, found.reported, counted]))


def life(root: str, point: str) -> None:
    os.environ[crash.VARIABLE] = point
    asyncio.run(asyncio.wait_for(first_round(Path(root)), HANG))


def lived(root: Path, point: str = "") -> int | None:
    process = FORKS.Process(target=life, args=(str(root), point))
    process.start()
    process.join()
    return process.exitcode


@pytest.mark.parametrize("point", ["server.stepped-in", "server.report-stored:2"])
def test_a_device_that_stepped_in_still_has_its_task_after_a_kill(tmp_path: Path, point: str) -> None:
    assert lived(tmp_path, point) == -signal.SIGKILL
    assert lived(tmp_path) == 0
    assert json.loads((tmp_path / "end.json").read_text()) == [3, 2, ["d1", "d2"]]
