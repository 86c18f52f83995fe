"""What a report must be to count, and what its sender learns when it does not; the round goes on."""

import asyncio
import errno
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedserver.coordinator.coordinator import Coordinator
from fedserver.coordinator.operator_api import OperatorApi
from shoal.core.engine.rounds import RoundPolicy, Stage
from shoal.core.errors import BadPayload, NotFound, StorageFault, Unavailable
from shoal.core.exchange.link import Failure, Outcome, Report, Task
from shoal.core.exchange.messages import Trained
from shoal.core.exchange.payload import Payload
from shoal.core.types import Tensors
from shoal.shell import disk
from tests.server.servers import DEVICES, ROUNDS, expected, hands, models, scenario, serve_all, server, start
from tests.server.toys import Hands, honest, pieces_of, same_models

FORGIVING = RoundPolicy(devices=DEVICES, minimum=DEVICES - 1)


async def at_work(coordinator: Coordinator, policy: RoundPolicy = FORGIVING) -> tuple[list[Hands], Task]:
    """Devices in the first round of a run, and the task of the first of them."""
    await start(coordinator, policy=policy)
    devices = [await hands(coordinator, number) for number in range(DEVICES)]
    for device in devices:
        await device.link.next_task(0.0)
    return devices, await devices[0].task()


async def trained(device: Hands, task: Task) -> Trained:
    reply = honest(0)(await device.open(task), task.seed)
    assert isinstance(reply, Trained)
    return reply


async def goes_on_without(coordinator: Coordinator, devices: list[Hands], reason: str) -> None:
    """The others finish the round; why the first is missing can be seen; then all finish the run."""
    for number in range(1, DEVICES):
        receipt = await devices[number].do(await devices[number].task(), honest(number))
        assert receipt.outcome is Outcome.ACCEPTED
    await devices[1].task()  # of the next round, so this one is over
    assert re.search(reason, (await OperatorApi(coordinator).show("toy")).missing["d0"])
    assert any(re.search(reason, line.text) for line in await OperatorApi(coordinator).log("toy", 0))
    await serve_all(coordinator)
    assert coordinator.runs["toy"].standing.value == "finished"


Change = Callable[[dict[str, Any]], dict[str, Any]]


def with_model(change: Callable[[Tensors], Tensors]) -> Change:
    return lambda parts: {**parts, "model": change(parts["model"])}


BAD: dict[str, tuple[Change, str]] = {
    "shape": (
        with_model(lambda m: {**m, "layer.bias": np.zeros(2, np.float32)}),
        r"float32 \[2\], expected float32 \[3\]",
    ),
    "dtype": (with_model(lambda m: {**m, "layer.bias": np.zeros(3, np.float16)}), "float16"),
    "missing": (with_model(lambda m: {"steps": m["steps"]}), "lacks tensor 'layer.bias'"),
    "order": (with_model(lambda m: {k: m[k] for k in ("layer.bias", "layer.weight", "steps")}), "order"),
    "nan": (with_model(lambda m: {**m, "layer.bias": m["layer.bias"] * np.nan}), "NaN or infinite"),
    "infinite": (with_model(lambda m: {**m, "layer.bias": m["layer.bias"] / 0}), "NaN or infinite"),
    "loss": (lambda parts: {**parts, "loss": float("nan")}, "trained.loss is nan"),
    "no examples": (lambda parts: {**parts, "examples": 0}, "examples is 0"),
    "type": (lambda parts: {**parts, "examples": 1.5}, "field 'examples'"),
    "unknown field": (lambda parts: {**parts, "gradient": 1.0}, "no field 'gradient'"),
    "no field": (lambda parts: {"model": parts["model"]}, "lacks field"),
}


@pytest.mark.filterwarnings("ignore:divide by zero")
@pytest.mark.parametrize("what", BAD)
def test_a_bad_report_is_refused_with_the_reason(tmp_path: Path, what: str) -> None:
    change, reason = BAD[what]

    async def story(coordinator: Coordinator) -> None:
        devices, task = await at_work(coordinator)
        parts = change(vars(await trained(devices[0], task)) | {"descriptor": None})
        parts = {name: value for name, value in parts.items() if value is not None}
        payload = Payload("trained", {**parts, "model": devices[0].keep(parts["model"])})
        receipt = await devices[0].send(task, payload)
        assert receipt.outcome is Outcome.REFUSED
        assert re.search(reason, receipt.reason), receipt.reason
        again = await devices[0].link.report(Report(task.run, task.round, task.attempt, payload))
        assert again.outcome is not Outcome.ACCEPTED
        await goes_on_without(coordinator, devices, reason)

    scenario(story, tmp_path)


def test_one_line_of_the_audit_log_is_about_all_bad_reports_of_a_device_in_a_round(tmp_path: Path) -> None:
    """The log is never shortened, and with a new session a device has its task again."""

    async def story(coordinator: Coordinator) -> None:
        (device, *_), task = await at_work(coordinator)
        bad = device.payload(replace(await trained(device, task), loss=float("nan")))
        for _ in range(3):
            assert (await device.send(task, bad)).outcome is Outcome.REFUSED
            await device.hello()
            task = await device.task()
        rows = await coordinator.storage.call(
            coordinator.storage.store.database.query, "SELECT line FROM audit"
        )
        assert sum('"event":"update-refused"' in line for (line,) in rows) == 1

    scenario(story, tmp_path)


def test_a_model_with_a_tensor_too_many_is_not_even_taken(tmp_path: Path) -> None:
    async def story(coordinator: Coordinator) -> None:
        devices, task = await at_work(coordinator)
        reply = await trained(devices[0], task)
        larger = Trained({**reply.model, "x": np.zeros(9)}, reply.examples, reply.loss)
        payload = devices[0].payload(larger)
        with pytest.raises(BadPayload, match="but the task's answer needs at most 136"):
            await devices[0].upload(payload)
        receipt = await devices[0].link.report(Report(task.run, task.round, task.attempt, payload))
        assert receipt.outcome is Outcome.REFUSED
        assert "unknown tensor 'x'" in receipt.reason
        await goes_on_without(coordinator, devices, "unknown tensor 'x'")

    scenario(story, tmp_path)


def test_a_report_of_another_kind_is_refused(tmp_path: Path) -> None:
    async def story(coordinator: Coordinator) -> None:
        devices, task = await at_work(coordinator)
        payload = Payload("evaluated", {"accuracy": 1.0, "loss": 0.0, "examples": 1})
        receipt = await devices[0].send(task, payload)
        assert receipt.outcome is Outcome.REFUSED
        assert "answers a 'train' task" in receipt.reason
        await goes_on_without(coordinator, devices, "answers a 'train' task")

    scenario(story, tmp_path)


def test_a_report_whose_blob_never_came_or_only_half_can_be_made_again(tmp_path: Path) -> None:
    async def story(coordinator: Coordinator) -> None:
        devices, task = await at_work(coordinator)
        payload = devices[0].payload(await trained(devices[0], task))
        blob = payload.weights()[0].blob
        await devices[0].link.upload(blob, 0, pieces_of(devices[0].blobs[blob.sha256][:-1]))
        report = Report(task.run, task.round, task.attempt, payload)
        with pytest.raises(NotFound, match="upload it first"):
            await devices[0].link.report(report)
        await devices[0].upload(payload)
        assert (await devices[0].link.report(report)).outcome is Outcome.ACCEPTED

    scenario(story, tmp_path)


def test_whether_a_report_counts_that_a_failing_disk_took_only_a_restart_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(folder: Path) -> None:
        if folder.parent.name == "blobs":  # the blob has its new name by then
            raise OSError(errno.EIO, "Input/output error")

    async def play() -> None:
        async with server(tmp_path) as coordinator:
            devices, task = await at_work(coordinator)
            payload = devices[0].payload(await trained(devices[0], task))
            await devices[0].upload(payload)
            report = Report(task.run, task.round, task.attempt, payload)
            with monkeypatch.context() as patched:
                patched.setattr(disk, "sync_folder", failing)
                with pytest.raises(StorageFault):
                    await devices[0].link.report(report)
            assert isinstance(await coordinator.broken, StorageFault)
            with pytest.raises(Unavailable, match="the server has stopped"):
                await devices[1].link.report(
                    replace(report, result=Failure("x", "nothing is decided any more"))
                )
        async with server(tmp_path) as coordinator:
            again = await hands(coordinator, 0)
            again.blobs = devices[0].blobs
            for number in range(1, DEVICES):
                await (await hands(coordinator, number)).link.next_task(0.0)
            assert (await again.send(await again.task(), payload)).outcome is Outcome.ACCEPTED

    asyncio.run(play())


def test_damaged_bytes_are_refused_at_once_and_can_be_sent_again(tmp_path: Path) -> None:
    async def story(coordinator: Coordinator) -> None:
        devices, task = await at_work(coordinator)
        payload = devices[0].payload(await trained(devices[0], task))
        blob = payload.weights()[0].blob
        data = devices[0].blobs[blob.sha256]
        with pytest.raises(BadPayload, match="do not match blob"):
            await devices[0].link.upload(blob, 0, pieces_of(b"\x01" + data[1:]))
        assert (await devices[0].send(task, payload)).outcome is Outcome.ACCEPTED

    scenario(story, tmp_path)


def test_the_same_report_again_is_a_duplicate_and_another_is_refused(tmp_path: Path) -> None:
    async def story(coordinator: Coordinator) -> None:
        devices, task = await at_work(coordinator)
        reply = await trained(devices[0], task)
        payload = devices[0].payload(reply)
        assert (await devices[0].send(task, payload)).outcome is Outcome.ACCEPTED
        report = Report(task.run, task.round, task.attempt, payload)
        assert (await devices[0].link.report(report)).outcome is Outcome.DUPLICATE
        other = devices[0].payload(Trained(reply.model, reply.examples + 1, reply.loss))
        receipt = await devices[0].link.report(replace(report, result=other))
        assert receipt.outcome is Outcome.REFUSED
        assert "another report of this device" in receipt.reason
        assert (await devices[0].link.report(replace(report, result=other))).outcome is Outcome.REFUSED
        said = [
            line
            for line in await OperatorApi(coordinator).log("toy", 0)
            if "was refused: another" in line.text
        ]
        assert [line.device for line in said] == ["d0"]
        for number in range(1, DEVICES):
            await devices[number].do(await devices[number].task(), honest(number))
        assert (await devices[0].link.report(report)).outcome is Outcome.DUPLICATE
        await serve_all(coordinator)
        assert same_models(models(coordinator), expected())

    scenario(story, tmp_path)


def test_a_report_for_a_round_attempt_or_run_that_is_over_is_late(tmp_path: Path) -> None:
    async def story(coordinator: Coordinator) -> None:
        devices, task = await at_work(coordinator, RoundPolicy(devices=DEVICES, minimum=DEVICES))
        payload = devices[0].payload(await trained(devices[0], task))
        await devices[0].upload(payload)
        for report, reason in (
            (Report(task.run, task.round + 1, task.attempt, payload), "round 2 is not open"),
            (Report(task.run, task.round, task.attempt + 1, payload), "was replaced by attempt"),
            (Report("other", task.round, task.attempt, payload), "there is no run 'other'"),
        ):
            receipt = await devices[0].link.report(report)
            assert receipt.outcome is Outcome.LATE
            assert reason in receipt.reason
        assert (await devices[0].send(task, payload)).outcome is Outcome.ACCEPTED
        await OperatorApi(coordinator).stop_run("toy", "enough")
        receipt = await devices[1].link.report(Report(task.run, task.round, task.attempt, payload))
        assert receipt.outcome is Outcome.LATE
        assert "run toy is over: enough" in receipt.reason

    scenario(story, tmp_path)


def test_a_device_that_has_nothing_new_is_asked_no_more_even_if_it_says_so_after_its_round(
    tmp_path: Path,
) -> None:
    async def story(coordinator: Coordinator) -> None:
        devices, task = await at_work(coordinator)
        others = range(1, DEVICES)
        for number in others:
            await devices[number].do(await devices[number].task(), honest(number))
        nothing = Failure("no-new-data", "no samples since the last run", "")
        late = Report(task.run, task.round - 1, task.attempt, nothing)
        assert (await devices[0].link.report(late)).outcome is Outcome.LATE
        assert coordinator.runs["toy"].answers["d0"] == "no-new-data"
        assert (await devices[1].task()).round == task.round + 1, "the round waits for it no more"
        assert not isinstance(await devices[0].link.next_task(0.0), Task)
        await serve_all(coordinator, others)
        assert (await OperatorApi(coordinator).show("toy")).missing == {}

    scenario(story, tmp_path)


def test_a_refusal_that_comes_after_its_round_is_still_the_device_s_answer(tmp_path: Path) -> None:
    async def story(coordinator: Coordinator) -> None:
        devices, task = await at_work(coordinator, RoundPolicy(devices=DEVICES, minimum=1))
        report = Report(task.run, task.round + 1, task.attempt, Failure("no-consent", "ask the owner", ""))
        assert (await devices[0].link.report(report)).outcome is Outcome.LATE
        assert coordinator.runs["toy"].answers == {"d0": "no-consent"}

    scenario(story, tmp_path)


def test_a_run_does_not_fail_while_its_devices_ask_their_owners(tmp_path: Path) -> None:
    async def story(coordinator: Coordinator) -> None:
        devices, task = await at_work(coordinator, RoundPolicy(minimum=DEVICES, max_abandoned_rounds=1))
        for device in devices:
            report = Report(task.run, task.round, task.attempt, Failure("no-consent", "ask the owner", ""))
            assert (await device.link.report(report)).outcome is Outcome.ACCEPTED
        assert coordinator.runs["toy"].engine.stage is Stage.WAITING
        # An operator reads once whose owner it is, in the log as well as in what the run waits for.
        summary = (await OperatorApi(coordinator).show("toy")).summary
        (line,) = [
            each.text for each in await OperatorApi(coordinator).log("toy", 0) if "no result" in each.text
        ]
        for text in (summary.waiting_for, line):
            assert "no device is left that takes part: d0, d1, d2: it lacks its owner's consent; " in text
            assert text.count("consent") == text.count("d0") == 1

    scenario(story, tmp_path)


def test_a_lost_acknowledgement_costs_nothing_also_after_a_restart_and_a_new_session(tmp_path: Path) -> None:
    async def play() -> None:
        async with server(tmp_path) as first:
            devices, task = await at_work(first)
            payload = devices[0].payload(await trained(devices[0], task))
            assert (await devices[0].send(task, payload)).outcome is Outcome.ACCEPTED
        async with server(tmp_path) as second:
            again = await hands(second, 0)
            for attempt in (task.attempt, task.attempt + 7):
                report = Report(task.run, task.round, attempt, payload)
                assert (await again.link.report(report)).outcome is Outcome.DUPLICATE
            assert second.runs["toy"].engine.reported == {"d0"}

    asyncio.run(play())


def test_reports_in_any_order_and_twice_give_the_same_models(tmp_path: Path) -> None:
    async def story(coordinator: Coordinator) -> None:
        await start(coordinator)
        devices = [await hands(coordinator, number) for number in range(DEVICES)]
        for device in devices:
            await device.link.next_task(0.0)
        for turn in range(ROUNDS + 1):
            for step in range(DEVICES):
                number = (turn - step) % DEVICES  # another order in every round
                task = await devices[number].task()
                payload = devices[number].payload(honest(number)(await devices[number].open(task), task.seed))
                report = Report(task.run, task.round, task.attempt, payload)
                await devices[number].upload(payload)
                assert (await devices[number].link.report(report)).outcome is Outcome.ACCEPTED
                assert (await devices[number].link.report(report)).outcome is Outcome.DUPLICATE
        await serve_all(coordinator)
        assert same_models(models(coordinator), expected())

    scenario(story, tmp_path)


def test_a_failure_is_logged_and_the_round_goes_on(tmp_path: Path) -> None:
    async def story(coordinator: Coordinator) -> None:
        devices, task = await at_work(coordinator)
        failure = Failure("learner-failed", "no memory", "x" * 20_000 + "\nMemoryError: in build()")
        report = Report(task.run, task.round, task.attempt, failure)
        assert (await devices[0].link.report(report)).outcome is Outcome.ACCEPTED
        assert (await devices[0].link.report(report)).outcome is Outcome.LATE
        (line,) = [line for line in await OperatorApi(coordinator).log("toy", 0) if "no memory" in line.text]
        assert line.device == "d0"
        assert line.text.endswith("MemoryError: in build()")
        assert len(line.text) < 10_000
        await goes_on_without(coordinator, devices, "no memory")

    scenario(story, tmp_path)


def test_a_run_whose_every_device_fails_gives_up_and_says_why(tmp_path: Path) -> None:
    async def story(coordinator: Coordinator) -> None:
        await start(coordinator, policy=RoundPolicy(devices=1, minimum=1, max_abandoned_rounds=2))
        device = await hands(coordinator, 0)
        for _ in range(2):
            task = await device.task()
            await device.link.report(
                Report(task.run, task.round, task.attempt, Failure("learner-failed", "no memory"))
            )
        status = await OperatorApi(coordinator).show("toy")
        assert status.summary.stage == "failed"
        assert "2 rounds in a row were abandoned" in status.summary.waiting_for
        assert list(status.abandoned) == [1, 2]

    scenario(story, tmp_path)
