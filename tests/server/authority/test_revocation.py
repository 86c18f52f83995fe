"""Over real TLS: a device that is revoked is refused at once, cut off, and counts no more."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import numpy as np
import pytest
from grpc import aio

from fedserver.coordinator.operator_api import OperatorApi
from fedserver.store.identities.audit import Event
from fedserver.store.identities.records import Registered
from shoal.core.engine.rounds import RoundPolicy
from shoal.core.errors import DiskFull, StorageFault
from shoal.core.exchange._pb.fed.v1.fault_pb2 import Fault
from shoal.core.exchange.link import Hello, Report
from shoal.core.identity.certificates import new_key
from shoal.core.identity.joining import Role
from tests.server.authority.peers import Peer, World, lines_of, play, refused
from tests.server.servers import DEVICES, spec, start
from tests.server.toys import Hands, honest, pieces_of, serve
from tests.waiting import until


async def at_work(found: World) -> tuple[list[Peer], list[aio.Channel], list[Hands]]:
    """The devices of a run that has begun."""
    await start(found.coordinator)
    peers = [await found.device(f"d{number}") for number in range(DEVICES)]
    channels = [peer.channel() for peer in peers]
    hands = [await Hands(peer.link(channel)).hello() for peer, channel in zip(peers, channels, strict=True)]
    for each in hands:
        await each.link.next_task(0.0)
    return peers, channels, hands


def test_a_run_waits_by_name_for_those_that_may_train_and_have_not_come(tmp_path: Path) -> None:
    async def story(found: World) -> None:
        await start(found.coordinator)
        here, *_ = [await found.device(name) for name in ("here", "asleep", "stolen")]
        await found.device("reader", role=Role.INFER_ONLY)
        await found.api.revoke("stolen", "it was")
        async with here.channel() as channel:
            hands = await Hands(here.link(channel)).hello()
            await hands.link.next_task(0.0)
            (summary,) = (await OperatorApi(found.coordinator).status()).runs
        assert summary.waiting_for == "1 of 3 devices are here, and 1 more must join"
        assert summary.waiting_devices == ("asleep",)

    play(story, tmp_path / "s")


def test_a_revoked_device_is_refused_at_its_next_call_and_its_lease_is_withdrawn(tmp_path: Path) -> None:
    async def story(found: World) -> None:
        peers, channels, hands = await at_work(found)
        assert (await hands[0].do(await hands[0].task(), honest(0))).outcome.value == "accepted"
        await hands[1].task()
        run = found.coordinator.runs["toy"]
        assert run.lease("d1") is not None

        ended = await found.api.revoke("d0", "stolen")
        assert ended.counted == (("toy", 1),)
        await found.api.revoke("d1", "stolen")
        error, fault = await refused(hands[1].link.next_task(0.0))
        assert (error.code(), fault.code) == (grpc.StatusCode.PERMISSION_DENIED, "revoked")
        assert run.lease("d1") is None
        assert not run.present("d1")
        _, fault = await refused(peers[1].come_back(new_key()))
        assert fault.code == "revoked"
        async with peers[1].channel() as again:  # a new connection changes nothing
            _, fault = await refused(peers[1].link(again).hello(Hello("toy")))
            assert fault.code == "revoked"
        log = [
            line.text
            for line in await found.coordinator.storage.call(
                found.coordinator.storage.journal.log_lines, "toy", 0
            )
            if line.device == "d0"
        ]
        assert log == ["revoked; rounds in which its updates count: 1"]
        assert [line["facts"]["device"] for line in lines_of(found.state, Event.REVOKED)] == ["d0", "d1"]
        await hands[2].link.next_task(0.0)  # the others go on
        await asyncio.gather(*(channel.close() for channel in channels))

    play(story, tmp_path / "s")


def test_a_revoked_device_that_goes_on_to_call_is_noted_once_an_hour(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr("fedserver.authority.rate_limit.time", SimpleNamespace(monotonic=lambda: now))

    async def story(found: World) -> None:
        nonlocal now
        device = await found.device("d0")
        await found.api.revoke("d0", "stolen")
        async with device.channel() as channel:
            for _ in range(10):
                now += 720.0
                _, fault = await refused(device.link(channel).hello(Hello("toy")))
                assert fault.code == "revoked"
        assert len(lines_of(found.state, Event.DENIED)) == 2, "in two hours"

    play(story, tmp_path / "s")


def test_the_updates_of_a_revoked_device_are_also_named_for_a_run_that_is_over(tmp_path: Path) -> None:
    async def story(found: World) -> None:
        await start(found.coordinator, policy=RoundPolicy(devices=1, minimum=1))
        run, device = found.coordinator.runs["toy"], await found.device("d0")
        async with device.channel() as channel:
            await serve(device.link(channel), honest(0))
        assert not run.active
        ended = await found.api.revoke("d0", "stolen")
        rounds = [number for name, number in ended.counted if name == "toy"]
        assert rounds == list(range(1, run.engine.state.progress + 1)), "as rollbacks count them"
        (*_, last) = await found.coordinator.storage.call(
            found.coordinator.storage.journal.log_lines, "toy", 0
        )
        assert last.text == f"revoked; rounds in which its updates count: {', '.join(map(str, rounds))}"

    play(story, tmp_path / "s")


def test_revocation_cuts_a_download_and_a_long_poll(tmp_path: Path) -> None:
    large = {"w": np.zeros(8 << 20, np.float32)}  # 32 MiB: more than any window holds

    async def story(found: World) -> None:
        operator = OperatorApi(found.coordinator)
        shelf = Hands(operator)  # type: ignore[arg-type]
        model = shelf.keep(large)
        await operator.upload(model.blob, 0, pieces_of(shelf.blobs[model.blob.sha256], 1 << 20))
        await operator.start_run(spec(policy=RoundPolicy(devices=1, minimum=1)), model)
        devices = [await found.device(name) for name in ("d0", "d1")]
        async with devices[0].channel() as first, devices[1].channel() as second:
            loading, waiting = Hands(devices[0].link(first)), Hands(devices[1].link(second))
            task = await (await loading.hello()).task()
            pieces = loading.link.fetch(task.payload.weights()[0].blob, 0)
            assert len(await anext(pieces)) > 0
            await waiting.hello()
            poll = asyncio.create_task(waiting.link.next_task(20.0))
            await until(lambda: found.coordinator.visitor("d1").polling == 1)
            # d1 first: it would step in for d0, and its poll would end with a task.
            assert [(await found.api.revoke(name, "")).cut for name in ("d1", "d0")] == [1, 1]
            with pytest.raises(aio.AioRpcError) as caught:
                await poll
            assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED
            with pytest.raises(aio.AioRpcError) as caught:
                [piece async for piece in pieces]
            assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED
            trailing: dict[str, Any] = dict(caught.value.trailing_metadata() or ())  # type: ignore[arg-type]
            assert Fault.FromString(trailing["shoal-fault-bin"]).code == "revoked"

    play(story, tmp_path / "s")


def test_a_report_that_was_on_its_way_when_its_device_was_revoked_does_not_count(tmp_path: Path) -> None:
    async def story(found: World) -> None:
        await start(found.coordinator, policy=RoundPolicy(devices=1, minimum=1))
        device = await found.device("d0")
        async with device.channel() as channel:
            hands = await Hands(device.link(channel)).hello()
            task = await hands.task()
            payload = hands.payload(honest(0)(await hands.open(task), task.seed))
            await hands.upload(payload)
            async with (
                found.coordinator._turn
            ):  # something else is going on: the report waits, past the interceptor
                report = Report(task.run, task.round, task.attempt, payload)
                reporting = asyncio.create_task(hands.link.report(report))
                await until(lambda: found.peers._calls.count("d0") > 0)
                revoking = asyncio.create_task(found.api.revoke("d0", ""))
                with pytest.raises(aio.AioRpcError, match="was revoked"):
                    await reporting
            ended = await revoking
        assert ended.counted == ()
        assert (
            await found.coordinator.storage.call(found.coordinator.storage.reports.of_round, "toy", 1) == []
        )

    play(story, tmp_path / "s")


def test_a_caller_that_goes_away_is_not_a_revoked_one(tmp_path: Path) -> None:
    async def story(found: World) -> None:
        device = await found.device("d0")
        async with device.channel() as channel:
            hands = await Hands(device.link(channel)).hello()
            poll = asyncio.create_task(hands.link.next_task(20.0))
            await until(lambda: found.coordinator.visitor("d0").polling == 1)
            poll.cancel()
            await asyncio.wait([poll])
            await until(lambda: found.peers._calls.count("d0") == 0)
            assert await hands.link.next_task(0.0) is not None
        assert found.peers.cut("d0") == 0

    play(story, tmp_path / "s")


@pytest.mark.parametrize("steps", range(4))
def test_an_operator_that_goes_away_leaves_nothing_half_done(tmp_path: Path, steps: int) -> None:
    async def story(found: World) -> None:
        device = await found.device("d0")
        async with device.channel() as channel:
            link = device.link(channel)
            await link.hello(Hello("toy"))
            before = asyncio.all_tasks()
            revoking = asyncio.ensure_future(found.api.revoke("d0", ""))
            for _ in range(steps):
                await asyncio.sleep(0)
            revoking.cancel()
            await asyncio.wait([revoking])
            await asyncio.gather(*asyncio.all_tasks() - before)  # whatever of it goes on
            known = await found.coordinator.storage.call(
                found.coordinator.storage.identities.registry.get, "d0"
            )
            assert known.standing == found.peers.known()[0].standing
            if steps:
                _, fault = await refused(link.hello(Hello("toy")))
                assert fault.code == "revoked"

    play(story, tmp_path / "s")


def test_a_revocation_that_a_failing_disk_took_ends_the_server_so_that_the_next_one_knows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(found: World) -> None:
        registry = found.coordinator.storage.identities.registry
        real = registry.revoke

        def failing(device: str, reason: str) -> Registered:
            real(device, reason)
            raise StorageFault("shoal.db: disk I/O error")

        await found.device("d0")
        monkeypatch.setattr(registry, "revoke", failing)
        with pytest.raises(StorageFault):
            await found.api.revoke("d0", "")
        assert isinstance(await found.coordinator.broken, StorageFault)

    play(story, tmp_path / "s")


def test_a_revocation_that_a_full_disk_refused_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Barred in memory and approved on the disk, it would get tasks but each result would be refused."""

    def full(device: str, reason: str) -> Registered:
        raise DiskFull("shoal.db: no space left", "free some space")

    async def story(found: World) -> None:
        _, channels, hands = await at_work(found)
        task = await hands[0].task()
        with monkeypatch.context() as patch:
            patch.setattr(found.coordinator.storage.identities.registry, "revoke", full)
            with pytest.raises(DiskFull):
                await found.api.revoke("d0", "stolen")
        assert (await hands[0].do(task, honest(0))).outcome.value == "accepted"

        await found.api.revoke("d0", "stolen")
        _, fault = await refused(hands[0].link.next_task(0.0))
        assert fault.code == "revoked"
        await asyncio.gather(*(channel.close() for channel in channels))

    play(story, tmp_path / "s")
