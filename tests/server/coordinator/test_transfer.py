"""What a device may fetch and send: whose a blob is, and transfers that are cut, repeated or replaced."""

import asyncio
import os
from collections.abc import AsyncIterator
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import pytest

from fedserver.coordinator.coordinator import Coordinator
from fedserver.coordinator.device_api import DeviceApi
from fedserver.coordinator.operator_api import OperatorApi
from fedserver.coordinator.visits.transfer import MAX_REPEATS, write
from fedserver.store.content.blobs import Blobs
from shoal.core.engine.events import Offer
from shoal.core.engine.rounds import RoundPolicy
from shoal.core.errors import BadPayload, NotFound, Refused, SessionLost, TooOften, Unavailable
from shoal.core.exchange.link import Failure, Hello, Outcome, Report, Task
from shoal.core.exchange.payload import BlobRef
from shoal.core.exchange.wire import MAX_CHUNK
from tests.server.servers import SETTINGS, crash, hands, link, scenario, server, start
from tests.server.toys import honest, pieces_of

ALONE = RoundPolicy(devices=1, minimum=1)


def test_a_blob_is_for_those_whose_task_names_it(tmp_path: Path) -> None:
    async def story(coordinator: Coordinator) -> None:
        await start(coordinator, policy=ALONE)
        device, stranger = await hands(coordinator, 0), await hands(coordinator, 1)
        blob = (await device.task()).payload.weights()[0].blob
        with pytest.raises(NotFound, match="is not for device d1"):
            await anext(stranger.link.fetch(blob, 0))
        with pytest.raises(NotFound, match="is not for device d0"):
            await anext(device.link.fetch(BlobRef("ab" * 32, blob.size), 0))
        with pytest.raises(BadPayload, match="has no byte"):
            await anext(device.link.fetch(blob, blob.size + 1))
        rest = b"".join([piece async for piece in device.link.fetch(blob, blob.size - 5)])
        assert len(rest) == 5
        assert [piece async for piece in device.link.fetch(blob, blob.size)] == []

    scenario(story, tmp_path)


def test_a_download_goes_on_when_the_server_started_anew(tmp_path: Path) -> None:
    async def story() -> None:
        state = tmp_path / "state"
        coordinator = await Coordinator.open(state, SETTINGS)
        await start(coordinator, policy=ALONE)
        device = await hands(coordinator, 0)
        blob = (await device.task()).payload.weights()[0].blob
        session = (await device.link.hello(Hello("toy"))).session
        await crash(coordinator)
        async with server(state) as restarted:
            with pytest.raises(SessionLost):  # and not that the blob is not for this device
                await anext(DeviceApi(restarted, "d0", session).fetch(blob, 5))
            welcome = await link(restarted, 0).hello(Hello("toy"))
            again = DeviceApi(restarted, "d0", welcome.session)
            assert len(b"".join([piece async for piece in again.fetch(blob, 5)])) == blob.size - 5

    asyncio.run(story())


def test_a_download_that_goes_on_waits_until_the_restarted_server_has_the_task_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A device says hello again while it fetches; its task is then leased again, which takes a moment."""

    async def story() -> None:
        state = tmp_path / "state"
        coordinator = await Coordinator.open(state, SETTINGS)
        await start(coordinator, policy=ALONE)
        blob = (await (await hands(coordinator, 0)).task()).payload.weights()[0].blob
        await crash(coordinator)
        async with server(state) as restarted:
            run, begun, ready = restarted.runs["toy"], asyncio.Event(), asyncio.Event()
            offer = run._offer

            async def slowly(effect: Offer) -> None:
                begun.set()
                await ready.wait()
                await offer(effect)

            monkeypatch.setattr(run, "_offer", slowly)
            device = link(restarted, 0)
            await device.hello(Hello("toy"))
            asking = asyncio.create_task(device.next_task(10.0))
            await begun.wait()
            fetching = asyncio.create_task(anext(device.fetch(blob, 0)))
            alive = asyncio.create_task(device.alive("toy", 1, 2))
            for _ in range(20):
                await asyncio.sleep(0)
            was_done = fetching.done()
            ready.set()
            assert len(await fetching) == blob.size
            assert not was_done
            task = await asking
            assert isinstance(task, Task)
            assert await alive is (task.attempt == 2)

    asyncio.run(story())


def test_an_upload_needs_a_task_and_fits_its_answer(tmp_path: Path) -> None:
    async def story(coordinator: Coordinator) -> None:
        await start(coordinator, policy=ALONE)
        device, stranger = await hands(coordinator, 0), await hands(coordinator, 1)
        await device.task()
        small, large = BlobRef("ab" * 32, 10), BlobRef("cd" * 32, 1 << 40)
        with pytest.raises(Refused, match="device d1 has no task"):
            await stranger.link.upload(small, 0, pieces_of(b"x" * 10))
        with pytest.raises(BadPayload, match="needs at most 136"):
            await device.link.upload(large, 0, pieces_of(b"x"))
        with pytest.raises(BadPayload, match="an upload continues at byte 5"):
            await device.link.upload(small, 5, pieces_of(b"x"))
        with pytest.raises(BadPayload, match="longer than the announced 10 bytes"):
            await device.link.upload(small, 0, pieces_of(b"x" * 200))

    scenario(story, tmp_path)


def test_there_is_room_for_as_many_initial_models_as_are_asked_for(tmp_path: Path) -> None:
    async def story(coordinator: Coordinator) -> None:
        coordinator.settings = replace(coordinator.settings, model=10)
        await start(coordinator, None, algorithm="ifca", policy=ALONE)
        device = await hands(coordinator, 0)
        await device.task()
        blobs = {BlobRef(sha256(data).hexdigest(), 10): data for data in (b"%d" % n * 10 for n in range(4))}
        for blob, data in blobs.items():
            await device.link.upload(blob, 0, pieces_of(data))
        assert [await device.link.uploaded(blob) for blob in blobs] == [10] * 4

    scenario(story, tmp_path)


def test_an_upload_that_is_cut_off_goes_on(tmp_path: Path) -> None:
    async def story(coordinator: Coordinator) -> None:
        await start(coordinator, policy=ALONE)
        device = await hands(coordinator, 0)
        task = await device.task()
        payload = device.payload(honest(0)(await device.open(task), task.seed))
        blob = payload.weights()[0].blob
        data = device.blobs[blob.sha256]

        async def cut() -> AsyncIterator[bytes]:
            yield data[:70]
            raise ConnectionResetError

        with pytest.raises(ConnectionResetError):
            await device.link.upload(blob, 0, cut())
        assert await device.link.uploaded(blob) == 70
        receipt = await device.send(task, payload)
        assert receipt.outcome is Outcome.ACCEPTED

    scenario(story, tmp_path)


def test_an_upload_that_no_one_goes_on_with_goes_when_its_task_is_over(tmp_path: Path) -> None:
    async def story(coordinator: Coordinator) -> None:
        await start(coordinator, policy=ALONE)
        device = await hands(coordinator, 0)
        await device.task()
        blob = BlobRef(sha256(b"some bytes").hexdigest(), 10)
        await device.link.upload(blob, 0, pieces_of(b"some"))
        operator = OperatorApi(coordinator)
        await operator.upload(blob, 0, pieces_of(b"some by"))
        for path in (tmp_path / "state" / "partial").glob("*/*"):
            os.utime(path, (0.0, 0.0))
        await coordinator.caretaker.check()
        assert (await device.link.uploaded(blob), await operator.uploaded(blob)) == (4, 0)
        await operator.stop_run("toy", "")
        await operator.upload(blob, 0, pieces_of(b"some by"))
        await coordinator.caretaker.check()
        assert await operator.uploaded(blob) == 7, "it may go on"
        assert not coordinator.storage.blobs.uploaded("d0", blob)

    scenario(story, tmp_path)


def test_a_second_upload_of_a_blob_takes_the_place_of_the_first(tmp_path: Path) -> None:
    async def story(coordinator: Coordinator) -> None:
        await start(coordinator, policy=ALONE)
        device = await hands(coordinator, 0)
        task = await device.task()
        payload = device.payload(honest(0)(await device.open(task), task.seed))
        blob = payload.weights()[0].blob
        data, go_on = device.blobs[blob.sha256], asyncio.Event()

        async def stalled() -> AsyncIterator[bytes]:
            yield data[:64]
            await go_on.wait()
            yield data[64:]

        first = asyncio.create_task(device.link.upload(blob, 0, stalled()))
        while await device.link.uploaded(blob) < 64:
            await asyncio.sleep(0.01)
            coordinator.visitor("d0").uploads[blob.sha256]._file.flush()
        assert (await device.send(task, payload)).outcome is Outcome.ACCEPTED
        go_on.set()
        with pytest.raises((Unavailable, Refused, BadPayload)):
            await first
        assert coordinator.runs["toy"].active

    scenario(story, tmp_path)


def test_a_device_that_sends_the_same_over_and_over_is_told_to_rest(tmp_path: Path) -> None:
    async def story(coordinator: Coordinator) -> None:
        await start(coordinator, policy=ALONE)
        device = await hands(coordinator, 0)
        task = await device.task()
        payload = device.payload(honest(0)(await device.open(task), task.seed))
        (weights,) = payload.weights()
        damaged = bytes(weights.blob.size)
        for _ in range(MAX_REPEATS):
            with pytest.raises(BadPayload, match="do not match blob"):
                await device.link.upload(weights.blob, 0, pieces_of(damaged))
        with pytest.raises(TooOften, match="16 times the bytes that its task needs") as caught:
            await device.link.upload(weights.blob, 0, pieces_of(damaged))
        assert caught.value.window == (60.0, 120.0)
        failure = Report(task.run, task.round, task.attempt, Failure("broken", "the line is damaged"))
        await device.link.report(failure)
        assert (await device.do(await device.task(), honest(0))).outcome is Outcome.ACCEPTED

    scenario(story, tmp_path)


def test_large_chunks_are_written_together_and_what_came_before_a_cut_stays(tmp_path: Path) -> None:
    data = bytes(range(256)) * (5 * MAX_CHUNK // 256)
    blob, blobs = BlobRef(sha256(data).hexdigest(), len(data)), Blobs(tmp_path)
    groups = list[int]()

    async def chunks(start: int, cut: int) -> AsyncIterator[bytes]:
        for at in range(start, len(data), MAX_CHUNK):
            if at == cut:
                raise ConnectionResetError
            yield data[at : at + MAX_CHUNK]

    async def story() -> None:
        cut = 3 * MAX_CHUNK
        with pytest.raises(ConnectionResetError):
            await write(blobs.receive("d0", blob, 0, len(data)), chunks(0, cut), groups.append)
        assert blobs.uploaded("d0", blob) == cut
        assert groups == [2 * MAX_CHUNK, MAX_CHUNK]
        receiving = blobs.receive("d0", blob, cut, len(data))
        assert await write(receiving, chunks(cut, -1), groups.append) == len(data)
        assert blobs.arrived("d0", blob.sha256).read_bytes() == data

    asyncio.run(story())


def test_an_upload_that_may_not_go_on_ends_with_the_reason(tmp_path: Path) -> None:
    data = bytes(3 * MAX_CHUNK)
    blob, blobs = BlobRef(sha256(data).hexdigest(), len(data)), Blobs(tmp_path)

    def count(size: int) -> None:
        raise TooOften("no more", "later")

    async def story() -> None:
        with pytest.raises(TooOften, match="no more"):
            await write(blobs.receive("d0", blob, 0, len(data)), pieces_of(data, MAX_CHUNK), count)
        assert blobs.uploaded("d0", blob) == 0

    asyncio.run(story())
