"""What an operator asks for, sees, and is refused."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedserver.coordinator.coordinator import Coordinator
from fedserver.coordinator.operator_api import OperatorApi
from fedserver.coordinator.runs import Run
from fedserver.coordinator.status import summary_of
from fedserver.coordinator.status_types import RunStatus
from fedserver.rpc.wire.operator_wire import SUMMARY
from fedserver.store.records import Standing
from fedserver.store.runs import Runs
from shoal.core.engine.rounds import RoundPolicy
from shoal.core.errors import BadPayload, ConfigError, NotFound, ShoalError, Unavailable
from shoal.core.exchange.link import Failure, Report
from shoal.core.exchange.messages import Message, Train, Trained
from shoal.core.exchange.payload import BlobRef
from tests.server.servers import DEVICES, ROUNDS, hands, link, models, scenario, serve_all, spec, start
from tests.server.toys import MODEL, Hands, honest, pieces_of, serve


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"algorithm": "flx"}, 'did you mean "flux"'),
        ({"preset": "papr"}, 'did you mean "paper"'),
        ({"parameters": {"round": 3}}, 'did you mean "rounds"'),
        ({"parameters": {"rounds": "3"}}, "expected auto, or a whole number"),
        ({"name": "../x"}, "is not a name for a run"),
        ({"policy": RoundPolicy(device_timeout=0.01)}, "too short"),
    ],
)
def test_a_run_that_cannot_work_is_refused(tmp_path: Path, changes: dict[str, Any], reason: str) -> None:
    async def story(coordinator: Coordinator) -> None:
        with pytest.raises(ConfigError, match=reason):
            await OperatorApi(coordinator).start_run(spec(**changes), None)
        assert coordinator.runs == {}

    scenario(story, tmp_path)


def test_initial_weights_are_uploaded_before_and_must_be_finite(tmp_path: Path) -> None:
    async def story(coordinator: Coordinator) -> None:
        operator = OperatorApi(coordinator)
        weights = Hands(operator).keep(MODEL)  # type: ignore[arg-type]
        with pytest.raises(NotFound, match="upload it first"):
            await operator.start_run(spec(), weights)
        with pytest.raises(BadPayload, match="initial model, tensor 'w'"):
            await start(coordinator, {"w": np.array([np.nan])})
        assert coordinator.runs == {}
        assert await operator.uploaded(weights.blob) == 0
        await start(coordinator)

    scenario(story, tmp_path)


def test_a_name_is_had_once_and_without_one_it_is_made_from_the_algorithm(tmp_path: Path) -> None:
    async def story(coordinator: Coordinator) -> None:
        assert await start(coordinator, None) == "toy"
        with pytest.raises(ConfigError, match="a run named 'toy' already exists"):
            await start(coordinator, None)
        for expected in ("flux-soft", "flux-soft-2", "flux-soft-3"):
            assert await start(coordinator, None, name="", algorithm="flux-soft") == expected
        assert [run.run for run in OperatorApi(coordinator).runs()] == [
            "flux-soft-3", "flux-soft-2", "flux-soft", "toy"
        ]  # fmt: skip

    scenario(story, tmp_path)


def test_a_run_says_what_it_waits_for_and_from_whom(tmp_path: Path) -> None:
    async def story(coordinator: Coordinator) -> None:
        await start(coordinator)
        devices = [await hands(coordinator, number) for number in range(DEVICES)]
        await devices[0].link.next_task(0.0)
        (summary,) = (await OperatorApi(coordinator).status()).runs
        assert (summary.stage, summary.round, summary.waiting_for) == (
            "waiting",
            1,
            "1 of 3 devices are here",
        )
        assert summary.waiting_devices == ("d1", "d2")
        assert (await OperatorApi(coordinator).show("toy")).summary.waiting_devices == ("d1", "d2")
        for device in devices:
            await device.link.next_task(0.0)
        await devices[1].do(await devices[1].task(), honest(1))
        status = await OperatorApi(coordinator).status()
        (summary,) = status.runs
        assert (summary.stage, summary.title) == ("open", "training round 1 of 3: one model for all")
        assert (summary.waiting_for, summary.waiting_devices) == ("1 of 3 reports are in", ("d0", "d2"))
        assert summary.time_left is not None
        assert {each.device: each.presence for each in status.devices} == {
            "d0": "working",
            "d1": "idle",
            "d2": "working",
        }
        assert status.devices[0].lease == ("toy", 1, 1)
        assert status.devices[0].software == "toy"
        await devices[0].link.leave()
        assert (await OperatorApi(coordinator).status()).devices[0].presence == "absent"

    scenario(story, tmp_path)


def test_a_run_whose_end_is_not_on_the_disk_yet_can_be_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen, end = [], Run.end

    async def look_and_end(run: Run, standing: Standing, reason: str = "") -> None:
        seen.append(SUMMARY.from_pb(SUMMARY.to_pb(summary_of(run, ()))).stage)
        await end(run, standing, reason)

    async def story(coordinator: Coordinator) -> None:
        await start(coordinator)
        await serve_all(coordinator)

    monkeypatch.setattr(Run, "end", look_and_end)
    scenario(story, tmp_path)
    assert seen == ["reducing"]


def test_versions_are_shown_although_the_oldest_goes_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a full disk, operators do not wait for their turn, and a round may end once there is space."""
    real = Runs.versions

    def versions(runs: Runs, run: str) -> list[int]:
        found = real(runs, run)
        runs.drop_versions(run, found[:1])
        return found

    async def story(coordinator: Coordinator) -> None:
        await start(coordinator)
        await serve_all(coordinator)
        kept = await coordinator.storage.call(coordinator.storage.runs.versions, "toy")
        monkeypatch.setattr(Runs, "versions", versions)
        (found,) = await OperatorApi(coordinator).clusters("toy")
        assert sorted(found.versions) == kept[1:]
        with pytest.raises(NotFound, match=f"run toy has no checkpoint of round {kept[0]}"):
            await coordinator.storage.call(coordinator.storage.runs.checkpoint, "toy", kept[0])

    scenario(story, tmp_path)


def test_a_stopped_run_wants_nothing_any_more_and_keeps_its_models(tmp_path: Path) -> None:
    async def story(coordinator: Coordinator) -> None:
        await start(coordinator)
        devices = [await hands(coordinator, number) for number in range(DEVICES)]
        for device in devices:
            await device.link.next_task(0.0)
        task = await devices[0].task()
        status = await OperatorApi(coordinator).stop_run("toy", "wrong data")
        assert (status.summary.stage, status.summary.waiting_for) == ("stopped", "wrong data")
        assert list(status.models) == ["global"]
        assert not await devices[0].link.alive(task.run, task.round, task.attempt)
        assert await OperatorApi(coordinator).stop_run("toy", "again") == status
        with pytest.raises(NotFound):
            await OperatorApi(coordinator).stop_run("other", "")

    scenario(story, tmp_path)


def test_who_watches_sees_each_round_and_the_end(tmp_path: Path) -> None:
    async def story(coordinator: Coordinator) -> None:
        await start(coordinator)
        seen: list[RunStatus] = []

        async def look() -> None:
            async for status in OperatorApi(coordinator).watch("toy"):
                seen.append(status)

        watching = asyncio.create_task(look())
        await serve_all(coordinator)
        await watching
        assert seen[-1].summary.stage == "finished"
        rounds = [status.summary.round for status in seen]
        assert rounds == sorted(rounds)
        assert rounds[-1] == ROUNDS + 2

    scenario(story, tmp_path)


def test_a_stop_of_the_server_ends_watching(tmp_path: Path) -> None:
    async def story(coordinator: Coordinator) -> None:
        await start(coordinator)
        watched = OperatorApi(coordinator).watch("toy")
        await anext(watched)
        coordinator.stop_serving()
        with pytest.raises(Unavailable, match="is stopping"):
            await anext(watched)
        with pytest.raises(Unavailable, match="is stopping"):
            await OperatorApi(coordinator).start_run(spec(), None)

    scenario(story, tmp_path)


def test_an_operator_may_fetch_any_blob_and_resume_an_upload(tmp_path: Path) -> None:
    async def story(coordinator: Coordinator) -> None:
        operator = OperatorApi(coordinator)
        own = Hands(operator)  # type: ignore[arg-type]
        blob = own.keep(MODEL).blob
        data = own.blobs[blob.sha256]
        assert await operator.upload(blob, 0, pieces_of(data[:100])) == 100
        assert await operator.uploaded(blob) == 100
        assert await operator.upload(blob, 100, pieces_of(data[100:])) == blob.size
        await operator.start_run(spec(), own.keep(MODEL))
        assert b"".join([frame.data async for frame in operator.frames(blob, 0)]) == data
        with pytest.raises(NotFound, match="is gone"):
            await anext(operator.frames(BlobRef("ab" * 32, 5), 0))

    scenario(story, tmp_path)


def test_the_log_is_read_page_by_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedserver.store.journal.journal.PAGE", 2)

    async def story(coordinator: Coordinator) -> None:
        operator = OperatorApi(coordinator)
        await start(coordinator, policy=RoundPolicy(devices=1, minimum=1))
        device = await hands(coordinator, 0)
        task = await device.task()
        failure = Failure("learner-failed", "no memory", "MemoryError")
        await device.link.report(Report(task.run, task.round, task.attempt, failure))
        first = await operator.log("toy", 0)
        assert len(first) == 2
        assert first[0].text.startswith("open: training round 1 of 3: one model for all, tasks for 1 device")
        second = await operator.log("toy", first[-1].number)
        because = "every device that is left has failed: d0: it failed: no memory"
        assert second[0].text.startswith(
            f"no result: training round 1 of 3: one model for all: {because}; 0 of 1"
        )
        assert await operator.log("toy", 1_000) == []
        with pytest.raises(ShoalError, match="no run 'other'"):
            await operator.log("other", 0)

    scenario(story, tmp_path)


def test_a_device_that_was_held_back_is_in_the_log_once(tmp_path: Path) -> None:
    """What holds on is not written again; a measurement after it says nothing new."""

    lengths = iter((1000, 2000))

    def alike(message: Message, seed: int) -> Message:
        return honest(0)(message, 0)

    def hostile(message: Message, seed: int) -> Message:
        answer = alike(message, seed)
        if not isinstance(answer, Trained):
            return answer
        assert isinstance(message, Train)
        base = message.model
        times = next(lengths)
        far = {
            name: (base[name] + times * (array - base[name])).astype(array.dtype)
            for name, array in answer.model.items()
        }
        return replace(answer, model=far, examples=10**9)

    async def story(coordinator: Coordinator) -> None:
        await start(coordinator, parameters={"rounds": 2, "aggregation": "clipped"})
        answers = [alike, alike, hostile]
        await asyncio.gather(*(serve(link(coordinator, n), answer) for n, answer in enumerate(answers)))
        texts = [line.text for line in await OperatorApi(coordinator).log("toy", 0)]
        cut = [text for text in texts if "updates too long to count in full: d2 (" in text]
        heavy = [text for text in texts if "not all of the samples of d2 count" in text]
        assert (len(cut), len(heavy)) == (2, 1)
        assert np.abs(models(coordinator)["global"]["layer.weight"]).max() < 1000.0

    scenario(story, tmp_path)
