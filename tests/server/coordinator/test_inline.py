"""Models inside of tasks and reports at the server, and reports that share a commit."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from fedserver.coordinator.coordinator import Coordinator
from fedserver.coordinator.visits import inline
from fedserver.store.reports import Arrival, Reports
from shoal.core.engine.events import Changed
from shoal.core.engine.round.view import View
from shoal.core.engine.rounds import RoundPolicy
from shoal.core.errors import DiskFull, NotFound, Unavailable
from shoal.core.exchange.link import Outcome, Receipt, Report, Task
from shoal.core.exchange.payload import INLINE, Payload
from tests.server.servers import DEVICES, expected, link, models, scenario, serve_all, start
from tests.server.toys import Hands, honest, same_models
from tests.waiting import HANG, until

POLICY = RoundPolicy(devices=DEVICES, minimum=DEVICES)


class Inside(Hands):
    """A device that has models inside of tasks and reports."""

    async def report(self, task: Task, number: int) -> Report:
        """The honest answer, which carries its model."""
        payload = self.payload(honest(number)(await self.open(task), task.seed))
        carried = tuple(self.blobs[each.blob.sha256] for each in payload.weights())
        return Report(task.run, task.round, task.attempt, payload, carried)


async def asked(coordinator: Coordinator) -> list[tuple[Inside, Report]]:
    """Devices in the first round of a run, and what each is about to report."""
    devices = [await Inside(link(coordinator, number)).hello() for number in range(DEVICES)]
    await start(coordinator, policy=POLICY)
    tasks = await asyncio.gather(*(device.task() for device in devices))
    return [(device, await device.report(tasks[n], n)) for n, device in enumerate(devices)]


async def together(
    coordinator: Coordinator, reports: Sequence[tuple[Inside, Report]]
) -> list[Receipt | BaseException]:
    """All of them wait for the same turn."""
    async with coordinator._turn:
        sent = [asyncio.create_task(device.link.report(report)) for device, report in reports]
        await until(lambda: len(coordinator.counting._waiting) == len(reports))
    return await asyncio.gather(*sent, return_exceptions=True)


def outcomes(receipts: Sequence[Receipt | BaseException]) -> list[str]:
    return [each.outcome.value if isinstance(each, Receipt) else type(each).__name__ for each in receipts]


@pytest.fixture
def groups(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The devices whose reports were stored together. If there is a file `full`, d0's find no space."""
    stored, real = list[list[str]](), Reports.add

    def add(reports: Reports, arrivals: Sequence[Arrival]) -> None:
        devices = [arrival.record.device for arrival in arrivals]
        stored.append(devices)
        if "d0" in devices and (reports._blobs._tmp.parent / "full").exists():
            raise DiskFull("no space for d0")
        real(reports, arrivals)

    monkeypatch.setattr(Reports, "add", add)
    return stored


def test_a_model_comes_with_the_task_and_goes_with_the_report(tmp_path: Path) -> None:
    async def story(coordinator: Coordinator) -> None:
        await start(coordinator, policy=POLICY)
        device = await Inside(link(coordinator, 0)).hello()
        others = asyncio.create_task(serve_all(coordinator, range(1, DEVICES)))
        while True:
            work = await device.link.next_task(5.0)
            if not isinstance(work, Task):
                if work.finished:
                    break
                continue
            (weights,) = work.payload.weights()
            assert work.inline_report == INLINE
            assert list(work.payload.blobs_in(work.inline)) == [weights.blob.sha256]
            receipt = await device.link.report(await device.report(work, 0))
            assert receipt.outcome is Outcome.ACCEPTED
            assert receipt.mark
        await others
        assert same_models(models(coordinator), expected())
        assert coordinator.meter.uploaded
        assert not list((tmp_path / "state" / "partial").glob("d0/*"))

    scenario(story, tmp_path)


def test_a_blob_comes_inside_of_a_task_once_in_a_session(tmp_path: Path) -> None:
    async def story(coordinator: Coordinator) -> None:
        ((device, _), *_) = await asked(coordinator)
        task = await device.link.next_task(5.0)
        assert isinstance(task, Task)
        assert task.inline == ()
        await device.fetch(*task.payload.weights())  # it lacks it
        await device.hello()
        again = await device.link.next_task(5.0)
        assert isinstance(again, Task)
        assert len(again.inline) == 1

    scenario(story, tmp_path)


def test_reports_that_wait_together_share_a_commit(tmp_path: Path, groups: list[list[str]]) -> None:
    async def story(coordinator: Coordinator) -> None:
        receipts = await together(coordinator, await asked(coordinator))
        assert outcomes(receipts) == ["accepted"] * DEVICES
        assert [sorted(group) for group in groups] == [["d0", "d1", "d2"]]
        await serve_all(coordinator)
        assert same_models(models(coordinator), expected())

    scenario(story, tmp_path)


def test_a_report_beyond_those_that_a_round_lacks_is_late(tmp_path: Path, groups: list[list[str]]) -> None:
    async def story(coordinator: Coordinator) -> None:
        reports = await asked(coordinator)
        engine = coordinator.runs["toy"].engine
        engine.feed(Changed(replace(POLICY, devices=2, minimum=2), engine.state))
        assert sorted(outcomes(await together(coordinator, reports))) == ["accepted", "accepted", "late"]
        assert len(await coordinator.storage.call(coordinator.storage.reports.of_round, "toy", 1)) == 2
        assert [len(group) for group in groups] == [2]

    scenario(story, tmp_path)


def test_a_report_and_its_copy_in_one_group_count_once(tmp_path: Path, groups: list[list[str]]) -> None:
    async def story(coordinator: Coordinator) -> None:
        first, second, _ = await asked(coordinator)
        receipts = await together(coordinator, [first, first, second])
        assert sorted(outcomes(receipts)) == ["accepted", "accepted", "duplicate"]
        assert sorted(groups[0]) == ["d0", "d1"]
        other = replace(first[1], result=second[1].result, inline=second[1].inline)
        assert outcomes([await first[0].link.report(other)]) == ["refused"]

    scenario(story, tmp_path)


def test_one_that_cannot_be_stored_does_not_keep_others_out(tmp_path: Path, groups: list[list[str]]) -> None:
    async def story(coordinator: Coordinator) -> None:
        reports = await asked(coordinator)
        (tmp_path / "state" / "full").touch()
        receipts = await together(coordinator, reports)
        assert outcomes(receipts) == [Unavailable.__name__, "accepted", "accepted"]
        (tmp_path / "state" / "full").unlink()
        assert (await reports[0][0].link.report(reports[0][1])).outcome is Outcome.ACCEPTED
        await serve_all(coordinator)
        assert same_models(models(coordinator), expected())

    scenario(story, tmp_path)


def test_of_reports_that_are_stored_one_by_one_those_after_the_deadline_are_late(
    tmp_path: Path, groups: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(coordinator: Coordinator) -> None:
        reports, add = await asked(coordinator), Reports.add
        engine = coordinator.runs["toy"].engine

        def slow(stored: Reports, arrivals: Sequence[Arrival]) -> None:
            add(stored, arrivals)
            engine.feed(Changed(replace(POLICY, minimum=1, deadline=0.0), engine.state))

        monkeypatch.setattr(Reports, "add", slow)
        (tmp_path / "state" / "full").touch()
        receipts = await together(coordinator, reports)
        assert outcomes(receipts) == [Unavailable.__name__, "accepted", "late"]
        assert [group for group in groups if len(group) == 1] == [["d0"], ["d1"]]

    scenario(story, tmp_path)


def test_bytes_that_were_damaged_on_their_way_are_missing(tmp_path: Path) -> None:
    async def story(coordinator: Coordinator) -> None:
        ((device, report), *_) = await asked(coordinator)
        damaged = bytes([report.inline[0][0] ^ 1]) + bytes(report.inline[0][1:])
        for pieces in ((damaged,), (), (report.inline[0][:-1],)):
            with pytest.raises(NotFound):
                await device.link.report(replace(report, inline=pieces))
        assert isinstance(report.result, Payload)
        await device.upload(report.result)
        assert (await device.link.report(replace(report, inline=()))).outcome is Outcome.ACCEPTED

    scenario(story, tmp_path)


def test_a_report_carries_no_more_than_may_be_uploaded(tmp_path: Path) -> None:
    async def story(coordinator: Coordinator) -> None:
        coordinator.settings = replace(coordinator.settings, model=100)
        await start(coordinator, None, policy=POLICY)
        devices = [await Inside(link(coordinator, number)).hello() for number in range(DEVICES)]
        asking = {asyncio.create_task(device.task()): device for device in devices}
        (first, *_), others = await asyncio.wait(asking, return_when=asyncio.FIRST_COMPLETED)
        for other in others:
            other.cancel()
        receipt = await asking[first].link.report(await asking[first].report(first.result(), 0))
        assert receipt.outcome is Outcome.REFUSED
        assert "at most 100" in receipt.reason

    scenario(story, tmp_path)


def test_of_many_devices_reports_carry_less(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inline, "AT_ONCE", 300)

    async def story(coordinator: Coordinator) -> None:
        await asked(coordinator)
        device = await Inside(link(coordinator, 0)).hello()
        assert (await device.task()).inline_report == 300 // DEVICES

    scenario(story, tmp_path)


def test_a_round_that_is_full_and_still_open_takes_reports_one_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a restart in a pause, in which no round is closed."""
    monkeypatch.setattr(View, "lacks", property(lambda engine: 0))

    async def story(coordinator: Coordinator) -> None:
        await start(coordinator)
        await asyncio.wait_for(serve_all(coordinator), HANG)
        assert same_models(models(coordinator), expected())

    scenario(story, tmp_path)
