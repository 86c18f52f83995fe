"""Going back to earlier models: through the operator API, over gRPC, and after a sudden end of the server."""

import asyncio
import json
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

from fedserver.__main__ import main
from fedserver.coordinator.coordinator import Coordinator
from fedserver.coordinator.operator_api import OperatorApi
from fedserver.coordinator.status_types import RunChange
from fedserver.rpc.client import OperatorClient
from fedserver.store.runs import VERSIONS
from shoal.core.algorithms.fedavg import server as server_half
from shoal.core.errors import NotFound, Refused
from shoal.core.exchange.link import Outcome, Report
from shoal.core.exchange.tensors import digest
from tests.server.processes import daemon, restored
from tests.server.servers import (
    DEVICES,
    ROUNDS,
    SETTINGS,
    crash,
    hands,
    models,
    scenario,
    serve_all,
    server,
    spec,
    start,
)
from tests.server.test_daemon import all_devices
from tests.server.toys import MODEL, Hands, honest
from tests.waiting import HANG, until


async def versions(coordinator: Coordinator) -> dict[int, str]:
    """The hash of the one model by round."""
    (found,) = await OperatorApi(coordinator).clusters("toy")
    return {number: blob.sha256 for number, blob in found.versions.items()}


async def until_round(coordinator: Coordinator, wanted: int) -> list[Hands]:
    """Devices that have done every round before `wanted`, which is open."""
    devices = [await hands(coordinator, number) for number in range(DEVICES)]
    for device in devices:
        await device.link.next_task(0.0)
    for _ in range(wanted - 1):
        for number, device in enumerate(devices):
            await device.do(await device.task(), honest(number))
    for device in devices:
        assert (await device.task()).round == wanted
    return devices


def test_the_number_of_rounds_that_an_operator_has_set_since_stays(tmp_path: Path) -> None:
    async def story(coordinator: Coordinator) -> None:
        await start(coordinator)
        await until_round(coordinator, 3)
        operator = OperatorApi(coordinator)
        await operator.change_run("toy", RunChange(rounds=ROUNDS + 1))
        await operator.roll_back("toy", 2)
        await serve_all(coordinator)
        run = coordinator.runs["toy"]
        assert (run.engine.state.progress, run.reason) == (ROUNDS + 1, "the run is complete")

    scenario(story, tmp_path)


def test_an_open_round_is_abandoned_and_the_run_does_again_what_came_after(tmp_path: Path) -> None:
    async def story(coordinator: Coordinator) -> None:
        await start(coordinator)
        quick, slow, _ = await until_round(coordinator, 3)
        known = await versions(coordinator)
        assert list(known) == [1, 2, 3]
        counted = await quick.task()
        assert (await quick.do(counted, honest(0))).outcome is Outcome.ACCEPTED
        task = await slow.task()
        payload = slow.payload(honest(1)(await slow.open(task), task.seed))

        status = await OperatorApi(coordinator).roll_back("toy", 2)
        assert status.abandoned == {3: "an operator rolled the run back to what it was after round 1"}
        assert digest(models(coordinator)["global"]) == known[2]
        assert coordinator.runs["toy"].engine.state.progress == 1
        assert await versions(coordinator) == {**known, 4: known[2]}

        assert not await slow.link.alive(task.run, task.round, task.attempt)
        await slow.upload(payload)
        late = await slow.link.report(Report(task.run, task.round, task.attempt, payload))
        assert (late.outcome, late.reason[:19]) == (Outcome.LATE, "round 3 is not open")
        again = await quick.task()
        assert (again.round, again.title) == (4, "training round 2 of 3: one model for all")
        assert again.payload.weights()[0].blob.sha256 == known[2]

        await serve_all(coordinator)
        assert coordinator.runs["toy"].engine.state.progress == 3
        assert (await OperatorApi(coordinator).show("toy")).summary.stage == "finished"
        log = [line.text for line in await OperatorApi(coordinator).log("toy", 0)]
        assert any(
            "rolled the run back to what it was after round 1; 1 of 3 devices counted" in text for text in log
        )

    scenario(story, tmp_path)


def test_a_cluster_alone_goes_back_and_the_run_keeps_its_progress(tmp_path: Path) -> None:
    async def story(coordinator: Coordinator) -> None:
        await start(coordinator)
        await until_round(coordinator, 3)
        known = await versions(coordinator)
        await OperatorApi(coordinator).roll_back("toy", 1, "global")
        assert digest(models(coordinator)["global"]) == known[1] == digest(MODEL)
        assert coordinator.runs["toy"].engine.state.progress == 2
        await serve_all(coordinator)
        assert coordinator.runs["toy"].engine.state.progress == 3

    scenario(story, tmp_path)


def test_before_any_device_came_and_after_the_end_it_works_the_same(tmp_path: Path) -> None:
    async def play() -> None:
        async with server(tmp_path) as coordinator:
            await start(coordinator)
            assert (await OperatorApi(coordinator).roll_back("toy", 1)).summary.stage == "waiting"
            await serve_all(coordinator)
            known = await versions(coordinator)
            assert len(known) == VERSIONS
            last = await OperatorApi(coordinator).show("toy")
            assert last.models["global"].blob.sha256 == list(known.values())[-1] != known[3]
            status = await OperatorApi(coordinator).roll_back("toy", 3)
            assert status.summary.stage == "finished"
            assert status.models["global"].blob.sha256 == known[3]
        async with server(tmp_path) as coordinator:
            assert await OperatorApi(coordinator).show("toy") == status
            undone = await OperatorApi(coordinator).roll_back("toy", status.summary.round - 1)
            assert undone.models == last.models

    asyncio.run(play())


def test_what_is_not_kept_or_not_there_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    async def story(coordinator: Coordinator) -> None:
        await start(coordinator)
        await until_round(coordinator, 2)
        before = await OperatorApi(coordinator).show("toy")
        operator = OperatorApi(coordinator)
        with pytest.raises(NotFound, match="does not have the models that round 3 opened with"):
            await operator.roll_back("toy", 3)
        with pytest.raises(NotFound, match="no cluster 'c7' now"):
            await operator.roll_back("toy", 1, "c7")
        with pytest.raises(NotFound, match="no run 'other'"):
            await operator.roll_back("other", 1)
        after = await operator.show("toy")
        assert (after.summary.round, after.abandoned) == (before.summary.round, {})

    scenario(story, tmp_path)


def test_a_run_that_has_no_model_yet_can_start_over_but_has_no_cluster(tmp_path: Path) -> None:
    async def story(coordinator: Coordinator) -> None:
        await start(coordinator, None)
        assert await OperatorApi(coordinator).clusters("toy") == []
        await until_round_two_without_weights(coordinator)
        with pytest.raises(NotFound, match="no cluster 'global' then"):
            await OperatorApi(coordinator).roll_back("toy", 1, "global")
        await OperatorApi(coordinator).roll_back("toy", 1)
        assert models(coordinator) == {}
        await serve_all(coordinator)
        assert (await OperatorApi(coordinator).show("toy")).summary.stage == "finished"

    async def until_round_two_without_weights(coordinator: Coordinator) -> None:
        devices = [await hands(coordinator, number) for number in range(DEVICES)]
        for device in devices:
            await device.link.next_task(0.0)
        for number, device in enumerate(devices):  # all of them make initial weights
            await device.do(await device.task(), honest(number))
        assert (await devices[0].task()).round == 2

    scenario(story, tmp_path)


def test_while_reports_are_combined_it_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    began, go_on, real = threading.Event(), threading.Event(), server_half.reduce

    def slow(state: server_half.State, reports: Any) -> server_half.State:
        began.set()
        go_on.wait(HANG)
        return real(state, reports)

    monkeypatch.setattr(server_half, "reduce", slow)

    async def story(coordinator: Coordinator) -> None:
        await start(coordinator)
        devices = await until_round(coordinator, 1)
        for number, device in enumerate(devices):
            await device.do(await device.task(), honest(number))
        await asyncio.to_thread(began.wait, HANG)
        with pytest.raises(Refused, match="is combining the reports of round 1"):
            await OperatorApi(coordinator).roll_back("toy", 1)
        go_on.set()
        assert (await devices[0].task()).round == 2

    scenario(story, tmp_path)


def test_a_run_whose_reports_cannot_be_combined_can_go_back_and_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(coordinator: Coordinator) -> None:
        await start(coordinator)
        operator = OperatorApi(coordinator)
        devices = await until_round(coordinator, 2)
        known = await versions(coordinator)
        with monkeypatch.context() as patched:
            patched.setattr("fedserver.coordinator.combining.reduce", lambda *_: 1 / 0)
            for number, device in enumerate(devices):
                await device.do(await device.task(), honest(number))
            await until(lambda: not coordinator.runs["toy"].active)
        status = await operator.roll_back("toy", 1)
        assert (status.summary.stage, status.summary.round) == ("failed", 3)
        assert status.abandoned == {2: "an operator rolled the run back to what it was after round 0"}
        assert status.models["global"].blob.sha256 == known[1]
        await operator.resume_run("toy")
        await serve_all(coordinator)
        status = await operator.show("toy")
        assert (status.summary.stage, status.summary.round) == (
            "finished",
            3 + ROUNDS + 1,
        )  # and the evaluation

    scenario(story, tmp_path)


def test_a_run_that_was_stopped_while_it_combined_reports_can_go_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on, real = threading.Event(), server_half.reduce

    def slow(state: server_half.State, reports: Any) -> server_half.State:
        go_on.wait(HANG)
        return real(state, reports)

    async def story(coordinator: Coordinator) -> None:
        await start(coordinator)
        operator, run = OperatorApi(coordinator), coordinator.runs["toy"]
        devices = await until_round(coordinator, 2)
        known = await versions(coordinator)
        monkeypatch.setattr(server_half, "reduce", slow)
        for number, device in enumerate(devices):
            await device.do(await device.task(), honest(number))
        await operator.stop_run("toy", "enough")
        assert (await operator.roll_back("toy", 1)).models["global"].blob.sha256 == known[1]
        go_on.set()
        assert run._reduction is not None
        await run._reduction
        status = await operator.show("toy")
        assert (status.summary.stage, status.summary.round) == ("stopped", 3)
        assert status.models["global"].blob.sha256 == known[1], "the late result does not count"

    scenario(story, tmp_path)


@pytest.mark.parametrize("cluster", ["", "global"])
def test_a_death_of_the_server_right_after_forgets_nothing(tmp_path: Path, cluster: str) -> None:
    async def play() -> None:
        first = await Coordinator.open(tmp_path, SETTINGS)
        await start(first)
        await until_round(first, 3)
        known = await versions(first)
        await OperatorApi(first).roll_back("toy", 2, cluster)
        await crash(first)
        async with server(tmp_path) as second:
            assert await versions(second) == {**known, 4: known[2]}
            assert digest(models(second)["global"]) == known[2]
            assert second.runs["toy"].engine.state.progress == (2 if cluster else 1)
            await serve_all(second)
            assert (await OperatorApi(second).show("toy")).summary.stage == "finished"

    asyncio.run(play())


def test_the_verbs_over_grpc_and_a_kill_right_after(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    def verb(*arguments: str) -> dict[str, Any]:
        capfd.readouterr()
        with pytest.raises(SystemExit) as ended:
            main(["model", *arguments, "--state", str(state), "--json"])
        envelope: dict[str, Any] = json.loads(capfd.readouterr().out)
        assert (envelope["status"] == "ok") is (not ended.value.code)
        found: dict[str, Any] = envelope["data"] or envelope["error"]
        return found

    state = tmp_path / "s"
    with daemon(state) as running:
        with OperatorClient(state) as operator:
            operator.start_run(spec(), MODEL)
            asyncio.run(all_devices(running.address))
            (found,) = verb("ls", "toy")["clusters"]
            assert (found["key"], found["members"]) == ("global", ["d0", "d1", "d2"])
            assert list(found["versions"]) == [str(number) for number in range(ROUNDS + 1)]
            assert {blob["sha256"] for blob in found["versions"].values()} >= {digest(MODEL)}
            assert verb("rollback", "toy", "--to-round", "99")["code"] == "not-found"
            assert verb("rollback", "toy", "--to-round", "0", "--cluster", "c9")["code"] == "not-found"
            back = verb("rollback", "toy", "--to-round", "0", "--cluster", "global")
            assert back["models"]["global"]["sha256"] == digest(MODEL)
        running.stop(signal.SIGKILL)
    with daemon(state), OperatorClient(state) as operator:
        status = restored(operator, "toy")
        assert status.summary.stage == "finished"
        assert digest(operator.fetch(status.models["global"])) == digest(MODEL)
