"""The history of a run, from the reports of devices to what an operator reads over the socket."""

import asyncio
from pathlib import Path
from statistics import fmean

from fedserver.coordinator.coordinator import Coordinator
from fedserver.coordinator.operator_api import OperatorApi
from fedserver.rpc.channel import SOCKET
from fedserver.rpc.client import OperatorClient
from fedserver.rpc.server import listen
from fedserver.rpc.wire import operator_wire
from shoal.core.engine.rounds import RoundPolicy
from shoal.core.exchange.link import Failure, Report
from shoal.core.exchange.messages import Message
from shoal.core.server_kit.history.records import RoundHistory
from tests.core.server_kit.history.test_packed import ROUND
from tests.server.servers import DEVICES, ROUNDS, SETTINGS, crash, hands, scenario, serve_all, server, start
from tests.server.toys import honest


async def history(coordinator: Coordinator) -> list[RoundHistory]:
    return await OperatorApi(coordinator).history("toy")


def test_a_run_has_a_history_of_what_devices_reported_and_moved(tmp_path: Path) -> None:
    async def story(coordinator: Coordinator) -> None:
        await start(coordinator)
        devices = [await hands(coordinator, number) for number in range(DEVICES)]
        for device in devices:
            await device.join()
        answers: list[Message] = []
        for number, device in enumerate(devices):
            task = await device.task()
            answers.append(honest(number)(await device.open(task), task.seed))
            await device.send(task, device.payload(answers[-1]))
        await devices[0].task()
        (found,) = await history(coordinator)
        assert (found.round, found.asked, found.reported, found.progress) == (1, 3, 3, 1)
        assert (found.measured_on, found.accuracy) == ("train", None)
        assert found.title == "training round 1 of 3: one model for all"
        assert found.loss is not None
        assert abs(found.loss - fmean(each.loss for each in answers)) < 1e-5  # type: ignore[attr-defined]
        (cluster,) = found.clusters
        checkpoints = await OperatorApi(coordinator).clusters("toy")
        assert cluster.model == checkpoints[0].versions[2].sha256
        assert (cluster.key, cluster.devices, cluster.parents) == ("global", 3, ("global",))
        assert [(each.device, each.cluster, each.examples) for each in found.devices] == [
            ("d0", "global", 10),
            ("d1", "global", 11),
            ("d2", "global", 12),
        ]
        size = sum(weights.blob.size for weights in task.payload.weights())
        assert {(each.bytes_up, each.bytes_down) for each in found.devices} == {(size, size)}
        assert (found.bytes_up, found.bytes_down) == (3 * size, 3 * size)
        for each in found.devices:
            assert each.worked is not None
            assert each.waited is not None
            assert min(each.worked, each.waited) >= 0.0
        # The first device waits for the others, and the last one for no device.
        assert found.devices[0].waited >= found.devices[2].waited  # type: ignore[operator]

    scenario(story, tmp_path)


def test_measured_rounds_have_accuracies_for_each_cluster(tmp_path: Path) -> None:
    async def story(coordinator: Coordinator) -> None:
        await start(coordinator)
        await serve_all(coordinator)
        found = await history(coordinator)
        assert [each.measured_on for each in found] == ["train"] * ROUNDS + ["test"]
        last = found[-1]
        status = await OperatorApi(coordinator).show("toy")
        assert {each.device: each.accuracy for each in last.devices} == {
            each.device: float(f"{each.accuracy:.6g}") for each in status.devices
        }
        assert last.accuracy == last.clusters[0].accuracy == float(f"{status.summary.accuracy:.6g}")

    scenario(story, tmp_path)


def test_a_device_that_fails_has_its_reason_and_an_abandoned_round_its_event(tmp_path: Path) -> None:
    async def story(coordinator: Coordinator) -> None:
        policy = RoundPolicy(devices=DEVICES, minimum=1, max_abandoned_rounds=3)
        await start(coordinator, policy=policy)
        devices = [await hands(coordinator, number) for number in range(DEVICES)]
        for device in devices:
            await device.link.next_task(0.0)
        for number, device in enumerate(devices):
            task = await device.task()
            if number == 1:
                await device.link.report(
                    Report(task.run, task.round, task.attempt, Failure("broken", "no data"))
                )
            else:
                await device.do(task, honest(number))
        for device in devices:
            task = await device.task()
            await device.link.report(Report(task.run, task.round, task.attempt, Failure("broken", "no data")))
        run = coordinator.runs["toy"]
        change = run.changed.next()
        while len(await history(coordinator)) < 2:
            await change.wait()
            change = run.changed.next()
        first, second = await history(coordinator)
        assert [each.missing for each in first.devices] == ["", "it failed: no data", ""]
        assert first.devices[1].loss is None
        assert (first.reported, first.abandoned) == (2, "")
        assert second.abandoned.startswith("every device that is left has failed")
        assert [(each.kind, each.text) for each in second.events] == [("abandoned", second.abandoned)]
        assert second.progress == 1

    scenario(story, tmp_path)


def test_operators_changes_and_roll_backs_are_events(tmp_path: Path) -> None:
    async def story(coordinator: Coordinator) -> None:
        operator = OperatorApi(coordinator)
        await start(coordinator)
        await operator.pause_run("toy", "new data arrive")
        await operator.resume_run("toy")
        await operator.roll_back("toy", 1)
        (found,) = await history(coordinator)
        assert [(each.kind, each.text) for each in found.events] == [
            ("paused", "new data arrive"),
            ("resumed", "an operator resumed it"),
            ("rolled_back", "an operator rolled the run back to what it was after round 0"),
        ]

    scenario(story, tmp_path)


def test_the_history_is_there_after_a_crash_and_goes_on(tmp_path: Path) -> None:
    async def before() -> None:
        coordinator = await Coordinator.open(tmp_path, SETTINGS)
        await start(coordinator)
        devices = [await hands(coordinator, number) for number in range(DEVICES)]
        for device in devices:
            await device.link.next_task(0.0)
        for number, device in enumerate(devices):
            await device.do(await device.task(), honest(number))
        await devices[0].task()
        await crash(coordinator)

    async def after() -> None:
        async with server(tmp_path) as coordinator:
            assert [each.round for each in await history(coordinator)] == [1]
            await serve_all(coordinator)
            assert [each.round for each in await history(coordinator)] == [1, 2, 3, 4]

    asyncio.run(before())
    asyncio.run(after())


def test_an_operator_reads_the_same_over_the_socket(tmp_path: Path) -> None:
    assert operator_wire.ROUND.from_pb(operator_wire.ROUND.to_pb(ROUND)) == ROUND
    assert operator_wire.ROUND.from_pb(operator_wire.ROUND.to_pb(RoundHistory(1))) == RoundHistory(1)

    async def play() -> None:
        async with server(tmp_path / "s") as coordinator:
            listeners = await listen(coordinator, "127.0.0.1:0", tmp_path / "s" / SOCKET)
            await start(coordinator, parameters={"rounds": 1})
            await serve_all(coordinator)

            def read(devices: bool) -> list[RoundHistory]:
                with OperatorClient(tmp_path / "s") as client:
                    return list(client.history("toy", devices=devices))

            assert await asyncio.to_thread(read, True) == await history(coordinator)
            without = await asyncio.to_thread(read, False)
            assert [(each.round, each.devices) for each in without] == [(1, ()), (2, ())]
            coordinator.stop_serving()
            await listeners.stop(1.0)

    asyncio.run(play())
