"""Operators pause, resume, change, prune and remove runs."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from fedserver.coordinator.coordinator import Coordinator
from fedserver.coordinator.operator_api import OperatorApi
from fedserver.coordinator.release_api import ReleaseApi
from fedserver.coordinator.status_types import RunChange
from fedserver.rpc.wire import operator_wire
from fedserver.store.identities.audit import Event
from shoal.core.engine.rounds import RoundPolicy, Stage
from shoal.core.errors import ConfigError, NotFound, Refused
from shoal.core.exchange.link import Failure, Idle, Outcome, Report, Task
from shoal.core.server_kit.aggregation.guard import STRIKES, Guard
from shoal.core.server_kit.summing import Summing
from tests.server.servers import DEVICES, ROUNDS, expected, hands, models, scenario, serve_all, server, start
from tests.server.toys import Hands, honest, same_models
from tests.waiting import until


async def fail(device: Hands, task: Task) -> None:
    failure = Failure("learner-failed", "out of memory")
    await device.link.report(Report(task.run, task.round, task.attempt, failure))


async def failed(coordinator: Coordinator) -> Hands:
    """A run that has failed in its second round."""
    policy = RoundPolicy(devices=1, minimum=1, max_abandoned_rounds=1)
    await start(coordinator, policy=policy)
    device = await hands(coordinator, 0)
    await device.do(await device.task(), honest(0))
    await fail(device, await device.task())
    assert OperatorApi(coordinator).runs()[0].stage == "failed"
    return device


async def events(coordinator: Coordinator, *wanted: Event) -> list[str]:
    names = {each.value for each in wanted}
    storage = coordinator.storage
    rows = await storage.call(storage.store.database.query, "SELECT line FROM audit")
    return [name for (line,) in rows for name in names if f'"event":"{name}"' in line]


def test_a_failed_run_goes_on_with_its_last_models_as_if_nothing_had_failed(tmp_path: Path) -> None:
    async def story(coordinator: Coordinator) -> None:
        device = await failed(coordinator)
        (notice,) = (await OperatorApi(coordinator).status()).notices
        assert notice.startswith("run toy has failed: a round was abandoned")
        assert "out of memory" in notice
        status = await OperatorApi(coordinator).resume_run("toy")
        assert (await OperatorApi(coordinator).status()).notices == ()
        assert (status.summary.stage, status.summary.round) == ("waiting", 3)
        while coordinator.runs["toy"].active:
            if isinstance(task := await device.link.next_task(5.0), Task):
                receipt = await device.do(task, honest(0))
                assert receipt.outcome is Outcome.ACCEPTED
        assert coordinator.runs["toy"].reason == "the run is complete"
        assert await events(coordinator, Event.RUN_RESUMED) == ["run-resumed"]

    scenario(story, tmp_path)


def test_a_run_that_failed_while_combining_asks_its_devices_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(coordinator: Coordinator) -> None:
        with monkeypatch.context() as patched:
            patched.setattr("fedserver.coordinator.combining.reduce", lambda *_: 1 / 0)
            await start(coordinator)
            devices = [await hands(coordinator, number) for number in range(DEVICES)]
            tasks = await asyncio.gather(*(device.task() for device in devices))
            for number, task in enumerate(tasks):
                await devices[number].do(task, honest(number))
            await until(lambda: not coordinator.runs["toy"].active)
        await OperatorApi(coordinator).resume_run("toy")
        await serve_all(coordinator)
        assert same_models(models(coordinator), expected())

    scenario(story, tmp_path)


def test_a_resumed_run_stays_resumed_after_a_restart(tmp_path: Path) -> None:
    async def play() -> None:
        async with server(tmp_path / "state") as first:
            await failed(first)
            await OperatorApi(first).resume_run("toy")
        async with server(tmp_path / "state") as second:
            assert second.runs["toy"].active

    asyncio.run(play())


def test_a_run_that_was_stopped_or_has_finished_is_not_resumed(tmp_path: Path) -> None:
    async def story(coordinator: Coordinator) -> None:
        await start(coordinator)
        operator = OperatorApi(coordinator)
        await operator.stop_run("toy", "wrong data")
        for call in (operator.resume_run("toy"), operator.pause_run("toy", "")):
            with pytest.raises(Refused, match="run toy is over: wrong data"):
                await call

    scenario(story, tmp_path)


def test_in_a_pause_the_open_round_ends_and_no_other_opens_also_after_a_restart(tmp_path: Path) -> None:
    async def play() -> None:
        async with server(tmp_path / "state") as first:
            await start(first)
            devices = [await hands(first, number) for number in range(DEVICES)]
            tasks = await asyncio.gather(*(device.task() for device in devices))
            status = await OperatorApi(first).pause_run("toy", "new data arrives")
            assert "it is paused (new data arrives); resume it with: fedserver run resume toy" in (
                status.summary.waiting_for
            )
            await OperatorApi(first).pause_run("toy", "again")  # changes nothing
            for number, task in enumerate(tasks):
                assert (await devices[number].do(task, honest(number))).outcome is Outcome.ACCEPTED
            await until(lambda: first.runs["toy"].engine.round == 2)
            idle = await devices[0].link.next_task(0.3)
            assert isinstance(idle, Idle)
            assert idle.reason == "run toy: it is paused"
        async with server(tmp_path / "state") as second:
            assert second.runs["toy"].paused == "new data arrives"
            device = await hands(second, 0)
            assert isinstance(await device.link.next_task(0.3), Idle)
            await OperatorApi(second).resume_run("toy")
            await serve_all(second)
            assert same_models(models(second), expected())
            assert await events(second, Event.RUN_PAUSED, Event.RUN_RESUMED) == ["run-paused", "run-resumed"]

    asyncio.run(play())


def test_a_round_that_was_open_goes_on_in_a_pause_after_a_restart_and_no_deadline_passes(
    tmp_path: Path,
) -> None:
    async def play() -> None:
        policy = RoundPolicy(devices=DEVICES, minimum=DEVICES, deadline=500.0)
        async with server(tmp_path / "state") as first:
            await start(first, policy=policy)
            devices = [await hands(first, number) for number in range(DEVICES)]
            tasks = await asyncio.gather(*(device.task() for device in devices))
            opened = "UPDATE runs SET opened = opened - 400"  # it was open that many seconds before

            def earlier() -> None:
                with first.storage.store.database.transaction():
                    first.storage.store.database.execute(opened)

            await first.storage.call(earlier)
            await OperatorApi(first).pause_run("toy", "")
        async with server(tmp_path / "state") as second:
            device = await hands(second, 0)
            device.blobs = devices[0].blobs
            await device.join()
            assert (await device.do(tasks[0], honest(0))).outcome is Outcome.ACCEPTED
            await OperatorApi(second).resume_run("toy")
            left = second.runs["toy"].engine.waiting().seconds
            assert left is not None
            assert left > 400.0
        async with server(tmp_path / "state") as third:
            await until(lambda: third.runs["toy"].engine.stage is Stage.OPEN)
            left = third.runs["toy"].engine.waiting().seconds
            assert left is not None
            assert left > 400.0

    asyncio.run(play())


def test_no_deadline_passes_in_a_pause(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(coordinator: Coordinator) -> None:
        await start(coordinator, policy=RoundPolicy(devices=DEVICES, minimum=DEVICES, deadline=500.0))
        devices = [await hands(coordinator, number) for number in range(DEVICES)]
        await asyncio.gather(*(device.task() for device in devices))
        run = coordinator.runs["toy"]
        await OperatorApi(coordinator).pause_run("toy", "")
        run._stood_since -= 400.0  # the pause began that long ago
        left = run.engine.waiting().seconds
        await OperatorApi(coordinator).resume_run("toy")
        after = run.engine.waiting().seconds
        assert left is not None
        assert after is not None
        assert run._stood >= 400.0
        assert left >= after > left - 100.0

    scenario(story, tmp_path)


def test_the_policy_and_the_rounds_of_a_run_change_at_once_and_for_good(tmp_path: Path) -> None:
    async def play() -> None:
        async with server(tmp_path / "state") as first:
            await start(first, parameters={"rounds": 9})
            devices = [await hands(first, number) for number in range(DEVICES)]
            tasks = await asyncio.gather(*(device.task() for device in devices))
            for number in range(DEVICES - 1):
                await devices[number].do(tasks[number], honest(number))
            operator = OperatorApi(first)
            with pytest.raises(ConfigError, match="cannot have a minimum"):
                await operator.change_run("toy", RunChange({"minimum": 9}))
            with pytest.raises(ConfigError, match="0 rounds are complete already"):
                await operator.change_run("toy", RunChange(rounds=0))
            changes = {"devices": DEVICES - 1, "minimum": 1, "deadline": 77.0}
            status = await operator.change_run("toy", RunChange(changes, ROUNDS))
            assert status.spec is not None
            assert (status.spec.policy.deadline, status.spec.parameters["rounds"]) == (77.0, ROUNDS)
            await until(lambda: first.runs["toy"].engine.round == 2)  # two reports suffice now
        async with server(tmp_path / "state") as second:
            run = second.runs["toy"]
            assert (run.spec.policy.devices, run.spec.policy.deadline) == (DEVICES - 1, 77.0)
            await serve_all(second)
            assert run.engine.state.progress == ROUNDS
            assert run.reason == "the run is complete"
            log = "\n".join(line.text for line in await OperatorApi(second).log("toy", 0))
            assert f"an operator changed it: rounds={ROUNDS}, devices=2, minimum=1, deadline=77" in log

    asyncio.run(play())


def test_no_round_is_added_to_a_run_whose_training_is_over(tmp_path: Path) -> None:
    async def story(coordinator: Coordinator) -> None:
        await start(coordinator, policy=RoundPolicy(devices=1), parameters={"rounds": 1, "evaluate": True})
        device = await hands(coordinator, 0)
        await device.do(await device.task(), honest(0))
        await device.task()  # of the final evaluation
        with pytest.raises(Refused, match="the training of this run is over"):
            await OperatorApi(coordinator).change_run("toy", RunChange(rounds=9))

    scenario(story, tmp_path)


def test_an_operator_lets_a_quarantined_device_count_again_for_good(tmp_path: Path) -> None:
    async def play() -> None:
        async with server(tmp_path / "state") as first:
            await start(first)
            run, operator = first.runs["toy"], OperatorApi(first)
            with pytest.raises(
                Refused, match=r"'d2' is not quarantined in this run \(no device of this run is"
            ):
                await operator.change_run("toy", RunChange(readmit=("d2",)))
            strikes = {"global": {"d1": STRIKES, "d2": STRIKES}}
            await run.change(run.spec, replace(run.engine.state, guard=Guard(strikes=strikes)))
            with pytest.raises(Refused, match=r"'d0' is not quarantined in this run \(these are: d1, d2\)"):
                await operator.change_run("toy", RunChange(readmit=("d2", "d0")))
            change = RunChange(readmit=("d2",))
            assert operator_wire.change_from_pb(operator_wire.change_to_pb("toy", change)) == change
            await operator.change_run("toy", change)
        async with server(tmp_path / "state") as second:
            assert list(second.runs["toy"].engine.state.guard.quarantined) == ["d1"]
            log = "\n".join(line.text for line in await OperatorApi(second).log("toy", 0))
            assert "an operator changed it: readmit=d2" in log

    asyncio.run(play())


def test_an_operator_lets_a_device_that_made_a_sum_fail_be_asked_again(tmp_path: Path) -> None:
    async def play() -> None:
        async with server(tmp_path / "state") as coordinator:
            await start(coordinator)
            run, operator = coordinator.runs["toy"], OperatorApi(coordinator)
            await run.change(run.spec, replace(run.engine.state, summing=Summing(excluded=("d1", "d2"))))
            with pytest.raises(Refused, match=r"'d0' is not quarantined in this run \(these are: d1, d2\)"):
                await operator.change_run("toy", RunChange(readmit=("d0",)))
            await operator.change_run("toy", RunChange(readmit=("d2",)))
            assert run.engine.state.summing.excluded == ("d1",)

    asyncio.run(play())


def test_the_rounds_of_a_run_with_noise_for_its_rounds_are_not_raised(tmp_path: Path) -> None:
    async def story(coordinator: Coordinator) -> None:
        await start(coordinator, parameters={"rounds": 3, "dp_epsilon": 5.0})
        operator = OperatorApi(coordinator)
        with pytest.raises(Refused, match="the noise for 3 rounds at epsilon 5"):
            await operator.change_run("toy", RunChange(rounds=4))
        await operator.change_run("toy", RunChange(rounds=2))

    scenario(story, tmp_path)


def test_prune_keeps_the_final_models_and_rm_keeps_only_what_was_released(tmp_path: Path) -> None:
    async def story(coordinator: Coordinator) -> None:
        await start(coordinator)
        operator, state = OperatorApi(coordinator), tmp_path / "state"
        for call in (operator.prune_runs("toy"), operator.remove_run("toy")):
            with pytest.raises(Refused, match="run toy is not over"):
                await call
        assert await operator.prune_runs() == {}
        await serve_all(coordinator)
        assert await operator.prune_runs() == {}, "the newest that has finished is to be named"
        assert await operator.prune_runs("toy") == {"toy": ROUNDS + 1}
        assert await operator.prune_runs("toy") == {}
        (weights,) = (await operator.show("toy")).models.values()
        ((_, names),) = await coordinator.storage.call(coordinator.storage.runs.checkpoints, "toy")
        assert sorted(path.name for path in (state / "blobs").glob("??/*")) == names
        assert weights.blob.sha256 in names
        assert same_models(models(coordinator), expected())
        before = (await operator.status()).released
        with pytest.raises(Refused, match="the channel stable has release toy@3"):
            await operator.remove_run("toy")
        await ReleaseApi(coordinator).remove("stable")
        await operator.remove_run("toy")
        assert operator.runs() == []
        assert not list((state / "blobs").glob("??/*"))
        assert (await operator.status()).released == before != {}
        with pytest.raises(NotFound, match="there is no run 'toy'"):
            await operator.show("toy")
        assert await events(coordinator, Event.RUN_PRUNED, Event.RUN_REMOVED) == ["run-pruned", "run-removed"]

    async def play() -> None:
        async with server(tmp_path / "state") as first:
            await story(first)
        async with server(tmp_path / "state") as second:
            with pytest.raises(ConfigError, match="'toy' was removed; devices may still have results of it"):
                await start(second)

    asyncio.run(play())


def test_what_still_comes_of_a_run_that_was_removed_does_not_end_the_server(tmp_path: Path) -> None:
    async def story(coordinator: Coordinator) -> None:
        await start(coordinator, policy=RoundPolicy(devices=1))
        operator, run = OperatorApi(coordinator), coordinator.runs["toy"]
        device = await hands(coordinator, 0)
        (weights,) = (await device.task()).payload.weights()
        pieces = device.link.fetch(weights.blob, 0)
        arrived = [await anext(pieces)]
        await operator.stop_run("toy", "")
        await operator.remove_run("toy")
        coordinator.meter.down("toy", "d0", 1)  # as for each frame of a call that has the file open
        arrived += [piece async for piece in pieces]
        await coordinator.in_turn(run.note("a report that was checked meanwhile is refused", "d0"))
        await coordinator.in_turn(coordinator.write_journal())
        assert not coordinator.broken.done()
        assert sum(map(len, arrived)) == weights.blob.size

    scenario(story, tmp_path)


def test_a_policy_that_the_algorithm_cannot_work_with_is_refused_and_not_stored(tmp_path: Path) -> None:
    policy = RoundPolicy(minimum=8)

    async def play() -> None:
        async with server(tmp_path / "state") as first:
            secure = {"rounds": 3, "secure_aggregation": True, "aggregation": "mean"}
            await start(first, parameters=secure, policy=policy)
            for change in ({"devices": 8}, {"minimum": 7}):
                with pytest.raises(ConfigError, match="secure aggregation"):
                    await OperatorApi(first).change_run("toy", RunChange(policy=change))
        async with server(tmp_path / "state") as second:
            assert second.runs["toy"].spec.policy == policy

    asyncio.run(play())
