"""A series of runs with real devices and their ledgers: who has new data pays and trains, and no one else."""

import asyncio
import itertools
import signal
import time
from dataclasses import replace
from pathlib import Path

import numpy as np

from fedclient.store.state import DeviceFolder
from fedserver.config import Settings
from fedserver.coordinator.coordinator import Coordinator
from fedserver.coordinator.operator_api import OperatorApi
from fedserver.coordinator.series import SKIPPED
from fedserver.rpc.client import OperatorClient
from shoal.core.privacy.budget import Budget
from shoal.core.privacy.ledger.entries import Debit, Failed, Open, Reserved, chosen
from shoal.core.privacy.payment import DESCRIPTOR
from shoal.demo.fleet import Member
from shoal.simulation import images
from shoal.simulation.images import rotate
from tests.e2e.test_private_run import TRAINERS, ledger, member, spec, train_all
from tests.e2e.test_releases import run
from tests.server.processes import daemon
from tests.server.servers import spec as spec_of_toys
from tests.waiting import HANG, until

DAY = 86400.0
BUDGET = Budget(epsilon=1000.0, total_epsilon=1000.0, allow_unprotected=False)


def newer(old: Member) -> Member:
    """The same device with other images of its own kind."""
    train, _ = images.digits()
    return replace(
        old,
        train=replace(
            old.train, x=np.ascontiguousarray(rotate(train.x[-300:], 90 * old.group)), y=train.y[-300:]
        ),
    )


async def due(coordinator: Coordinator, run: str, following: str) -> None:
    coordinator.runs[run].created -= DAY
    await until(lambda: following in coordinator.runs)


def test_devices_pay_for_new_data_and_for_nothing_else_and_clusters_keep_their_keys(tmp_path: Path) -> None:
    members = [member(number) for number in range(TRAINERS)]

    async def work() -> None:
        await train_all(coordinator, tmp_path, members, BUDGET)

    def paid(device: Member) -> list[int]:
        entries = ledger(tmp_path, device, BUDGET).verify()
        return [len(chosen(entries, kind)) for kind in (Debit, Reserved, Open)]

    def paid_for(device: Member, kind: str) -> list[Debit]:
        debits = chosen(ledger(tmp_path, device, BUDGET).entries(), Debit)
        return [each for each in debits if each.payment.kind == kind]

    async def play() -> None:
        nonlocal coordinator
        coordinator = await Coordinator.open(tmp_path / "server", Settings(tick=0.05))
        operator = OperatorApi(coordinator)
        try:
            await operator.start_run(spec("first"), None)
            await work()
            first = coordinator.runs["first"].engine.state
            before = {each.name: paid(each) for each in members}
            policy = replace(spec("").policy, devices=0, minimum=1, wait_for_devices=1.0)
            asked = replace(
                spec("daily"),
                base="stable",
                every=DAY,
                parameters={"rounds": 2, "dp_epsilon": 8.0},
                policy=policy,
            )
            await operator.start_run(asked, None)
            await work()
            daily = coordinator.runs["daily"]
            assert (daily.standing.value, daily.engine.state.progress) == ("finished", 2), daily.reason
            assert daily.engine.state.assignments == first.assignments
            for each in members:
                assert paid(each)[0] > before[each.name][0]
                described = paid_for(each, DESCRIPTOR)
                assert len(described) == 1, "it has given its description again"
            before = {each.name: paid(each) for each in members}

            members[0] = newer(members[0])
            await due(coordinator, "daily", "daily-2")
            await work()
            second = coordinator.runs["daily-2"].engine.state
            assert (coordinator.runs["daily-2"].standing.value, second.progress) == ("finished", 2)
            assert second.assignments.keys() == first.assignments.keys()
            assert all(second.assignments[each.name] == first.assignments[each.name] for each in members[1:])
            assert second.models.keys() >= first.models.keys()
            assert paid(members[0])[0] > before[members[0].name][0]
            for each in members[1:]:
                assert paid(each) == before[each.name]
                (failed,) = chosen(ledger(tmp_path, each, BUDGET).entries(), Failed)
                assert (failed.run, failed.code) == ("daily-2", "no-new-data")
                assert (DeviceFolder(tmp_path / each.name).blobs.parent / "trained.json").exists()

            await due(coordinator, "daily-2", "daily-3")
            await work()
            assert {*coordinator.runs["daily-3"].answers.values()} == {"no-new-data"}
            await due(coordinator, "daily-3", "daily-4")
            assert coordinator.runs["daily-3"].reason == SKIPPED
        finally:
            await coordinator.close()

    coordinator: Coordinator
    asyncio.run(asyncio.wait_for(play(), HANG))


def test_a_series_outlives_kills_between_any_two_steps_and_starts_each_run_once(tmp_path: Path) -> None:
    state, every = tmp_path / "server", 0.5

    def killed_at(point: str, name: str = "") -> None:
        with daemon(state, environment={"SHOAL_CRASH_AT": point}) as server, OperatorClient(state) as client:
            if name:
                client.start_run(spec_of_toys(name=name, base="stable", every=every), None)
            assert server.process.wait(HANG) == -signal.SIGKILL

    with daemon(state) as server:
        run(server, "first", 0.8)
    killed_at("server.run-stored:2", "daily")  # the second run is stored, and nothing else is known of it
    killed_at("server.run-ended")  # the second run is over, as no device came, and the third is not stored
    with daemon(state) as server, OperatorClient(state) as client:
        names = ["daily-4", "daily-3", "daily-2", "daily", "first"]
        found = client.runs()
        while [each.run for each in found][-5:] != names:
            time.sleep(0.05)
            found = client.runs()
        started = [each.created or 0.0 for each in found if each.run != "first"]
        assert all(later - earlier >= every - 0.01 for later, earlier in itertools.pairwise(started))
        assert [each.over for each in found[1:]] == [True] * (len(found) - 1), "one goes on"
        status = client.show(found[0].run).spec
        assert status is not None
        assert (status.base, status.release, status.series) == ("stable", "first@3", "daily")
        assert status.every == every
        last = client.runs()[0].run
        assert client.stop_run(last).summary.stage in ("stopped", "finished")
        assert [each.next_run for each in client.runs()] == [None] * len(client.runs())
