"""A bucket that is away for a while: rounds wait and say why, and the models are the same in the end."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from fedserver.coordinator import combining
from fedserver.coordinator.coordinator import Coordinator
from fedserver.coordinator.operator_api import OperatorApi
from fedserver.store.engines import Elsewhere
from shoal.core.engine.rounds import RoundPolicy
from shoal.core.errors import ServerFull, Unavailable
from shoal.core.exchange.link import Idle, Outcome, Task
from tests.buckets import Buckets
from tests.postgresql import Cluster
from tests.server.servers import DEVICES, ROUNDS, expected, link, models, serve_all, server, start
from tests.server.toys import Hands, honest, same_models
from tests.waiting import until

pytest.importorskip("psycopg", reason="psycopg is not installed")
DEADLINE = 600.0
HELD = 2
"""The devices do nothing for this round until a test lets them."""


async def patient(coordinator: Coordinator, number: int, let: asyncio.Event) -> None:
    """A device that tries again whenever the server cannot take what it has."""
    hands = await Hands(link(coordinator, number)).hello()
    while True:
        try:
            work = await hands.link.next_task(1.0)
            if isinstance(work, Task):
                if work.round >= HELD:
                    await let.wait()
                assert (await hands.do(work, honest(number))).outcome in (Outcome.ACCEPTED, Outcome.DUPLICATE)
            elif isinstance(work, Idle) and work.finished:
                return
        except Unavailable:
            await asyncio.sleep(0.05)


def devices(coordinator: Coordinator, let: asyncio.Event) -> list["asyncio.Task[None]"]:
    return [asyncio.create_task(patient(coordinator, each, let)) for each in range(DEVICES)]


async def held(coordinator: Coordinator, let: asyncio.Event) -> list["asyncio.Task[None]"]:
    """The devices of a new run, which report in the round `HELD` only once they are let."""
    policy = RoundPolicy(devices=DEVICES, minimum=DEVICES, deadline=DEADLINE)
    await start(coordinator, policy=policy)
    working = devices(coordinator, let)
    await until(lambda: coordinator.runs["toy"].engine.round >= HELD)
    return working


async def check(coordinator: Coordinator) -> None:
    assert same_models(models(coordinator), expected())
    rounds = await coordinator.storage.call(coordinator.storage.journal.timeline.read, "toy")
    assert [each.reported for each in rounds] == [DEVICES] * (ROUNDS + 1)
    assert not any(each.abandoned for each in rounds)
    assert not coordinator.storage.repaired


def test_rounds_wait_while_the_bucket_is_away_and_end_with_the_same_models(
    unsteady: Buckets, postgresql: Cluster, tmp_path: Path
) -> None:
    elsewhere = Elsewhere(postgresql.database(), unsteady.bucket())

    async def play() -> None:
        async with server(tmp_path / "state", elsewhere=elsewhere) as coordinator:
            let = asyncio.Event()
            working = await held(coordinator, let)
            await asyncio.to_thread(unsteady.stop)
            let.set()
            await until(lambda: coordinator.storage.full is not None)
            run = coordinator.runs["toy"]
            before = run._clock()
            status = await OperatorApi(coordinator).status()
            assert [each.waiting_for for each in status.runs] == ["the bucket of models and reports"]
            assert "the bucket cannot be used, and all runs wait" in status.notices[0]
            with pytest.raises(ServerFull, match="cannot reach its storage"):
                coordinator.check_deciding()
            assert run._clock() == before  # no deadline passes
            await asyncio.to_thread(unsteady.start)
            await asyncio.gather(*working)
            await check(coordinator)

    asyncio.run(play())


def test_a_round_that_was_combined_waits_for_the_bucket_to_store_its_models(
    unsteady: Buckets, postgresql: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bucket goes away between the last report and the new models."""
    elsewhere = Elsewhere(postgresql.database(), unsteady.bucket())

    async def play() -> None:
        async with server(tmp_path / "state", elsewhere=elsewhere) as coordinator:
            let = asyncio.Event()
            working = await held(coordinator, let)
            reduce = combining.reduce

            def then_away(*given: Any) -> Any:
                state = reduce(*given)
                if unsteady.is_running:
                    unsteady.stop()
                return state

            monkeypatch.setattr(combining, "reduce", then_away)
            let.set()
            await until(lambda: coordinator.storage.full is not None)
            storage = coordinator.storage
            rounds = await storage.call(storage.journal.timeline.read, "toy")
            assert [each.round for each in rounds] == [1]
            monkeypatch.undo()
            await asyncio.to_thread(unsteady.start)
            await asyncio.gather(*working)
            await check(coordinator)

    asyncio.run(play())


def test_a_server_that_takes_over_fetches_the_run_and_goes_on(
    unsteady: Buckets, postgresql: Cluster, tmp_path: Path
) -> None:
    elsewhere = Elsewhere(postgresql.database(), unsteady.bucket())

    async def first() -> None:
        async with server(tmp_path / "first", elsewhere=elsewhere) as coordinator:
            working = await held(coordinator, asyncio.Event())
            for device in working:
                device.cancel()
            await asyncio.gather(*working, return_exceptions=True)

    async def second() -> None:
        let = asyncio.Event()
        let.set()
        async with server(tmp_path / "second", elsewhere=elsewhere) as coordinator:
            await asyncio.gather(*devices(coordinator, let))
            await check(coordinator)

    asyncio.run(first())
    asyncio.run(second())


@pytest.mark.parametrize("harm", ["flip", "cut", "delete"])
def test_a_report_that_was_damaged_here_while_it_was_combined_is_fetched_before_it_is_read(
    buckets: Buckets, postgresql: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, harm: str
) -> None:
    elsewhere, harmed = Elsewhere(postgresql.database(), buckets.bucket()), list[str]()
    reduce, counted = combining.reduce, list[str]()

    def of_damaged(what: Any, reports: Any, maker: Any) -> Any:
        if not harmed and reports:
            name = reports._records[1].blobs[0]
            harmed.append(name)
            path = reports._blobs.path(name)
            if harm == "flip":
                path.write_bytes(bytes(each ^ 8 for each in path.read_bytes()))
            elif harm == "cut":
                path.write_bytes(path.read_bytes()[:50])
            else:
                path.unlink()
        counted.extend(name for record in reports._records for name in record.blobs)
        return reduce(what, reports, maker)

    async def play() -> None:
        async with server(tmp_path / "state", elsewhere=elsewhere) as coordinator:
            await start(coordinator)
            monkeypatch.setattr(combining, "reduce", of_damaged)
            await serve_all(coordinator)
            assert same_models(models(coordinator), expected())
            assert counted.count(harmed[0]) == 1

    asyncio.run(play())
