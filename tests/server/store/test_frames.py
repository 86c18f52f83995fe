"""Frames of blobs are cut once for all who fetch them."""

import asyncio
import os
import threading
from pathlib import Path

import numpy as np
import pytest

from fedserver.store.content import frames
from fedserver.store.content.blobs import Blobs
from fedserver.store.content.frames import Frame, Frames
from shoal.core.exchange import wire
from tests.waiting import HANG, until

MODEL = {"w": np.arange(6, dtype=np.float32)}
NAME = "ab" * 32
DATA = bytes(range(256)) * 16


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / NAME).write_bytes(DATA)
    return tmp_path / NAME


def test_all_who_fetch_a_blob_share_its_frames(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[int] = []
    real = frames._read
    monkeypatch.setattr(frames, "_read", lambda *call: (reads.append(call[1]), real(*call))[1])

    async def story() -> None:
        cut = Frames()
        with path.open("rb") as one, path.open("rb") as other:
            found = await asyncio.gather(*(cut.get(file, NAME, 0, 1000) for file in (one, other, one)))
            assert found[0] is found[1] is found[2]
            assert wire.fetched(found[0].message, 0) == found[0].data == DATA[:1000]
            last = await cut.get(one, NAME, 4000, 1000)
            assert last.data == DATA[4000:]
            assert await cut.get(other, NAME, 0, 1000) is found[0]
        assert reads == [0, 4000]

    asyncio.run(story())


def test_a_frame_comes_although_its_first_caller_left_and_closed_the_file(path: Path) -> None:
    async def story() -> None:
        cut = Frames()
        file, before = path.open("rb"), len(os.listdir("/proc/self/fd"))
        first = asyncio.create_task(cut.get(file, NAME, 0, 1000))
        await asyncio.sleep(0)
        first.cancel()
        file.close()
        with path.open("rb") as other:
            assert (await cut.get(other, NAME, 0, 1000)).data == DATA[:1000]
        assert len(os.listdir("/proc/self/fd")) == before - 1  # no descriptor stays open

    asyncio.run(story())


@pytest.mark.parametrize("when", ["at once", "while it is read"])
def test_one_who_leaves_takes_a_small_blob_from_no_one(
    path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    real, begun, go_on = frames._read, threading.Event(), threading.Event()

    def read(*call: int) -> Frame:
        begun.set()
        assert go_on.wait(HANG)
        return real(*call)

    monkeypatch.setattr(frames, "_read", read)

    async def story() -> None:
        cut, before = Frames(), len(os.listdir("/proc/self/fd"))
        first = asyncio.create_task(cut.whole(path, NAME, len(DATA)))
        await until(lambda: bool(cut._cut))
        leaves = asyncio.create_task(cut.whole(path, NAME, len(DATA)))
        if when == "while it is read":
            await asyncio.to_thread(begun.wait, HANG)
        else:
            await asyncio.sleep(0)
        leaves.cancel()
        await asyncio.gather(leaves, return_exceptions=True)
        go_on.set()
        assert [await first, await cut.whole(path, NAME, len(DATA))] == [DATA, DATA]
        assert len(os.listdir("/proc/self/fd")) == before

    asyncio.run(story())


def test_a_small_blob_is_read_again_after_an_error_that_no_one_has_heard(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, fail, asked = os.pread, [OSError(5, "Input/output error")], list[int]()
    left = threading.Event()

    def pread(*call: int) -> bytes:
        asked.append(call[2])
        assert left.wait(HANG)
        if fail:
            raise fail.pop()
        return real(*call)

    monkeypatch.setattr(os, "pread", pread)

    async def story() -> None:
        cut = Frames()
        first = asyncio.create_task(cut.whole(path, NAME, len(DATA)))
        await until(lambda: bool(cut._cut))
        reading = list(cut._cut.values())
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        left.set()
        await asyncio.gather(*reading, return_exceptions=True)
        with pytest.raises(OSError, match="Input/output"):
            await cut.whole(path, NAME, len(DATA))
        assert await cut.whole(path, NAME, len(DATA)) == DATA

    asyncio.run(story())
    assert asked == [0, 0]


def test_memory_is_bounded(path: Path) -> None:
    async def story() -> None:
        cut = Frames(most=3000)
        with path.open("rb") as file:
            first = await cut.get(file, NAME, 0, 1000)
            for at in (1000, 2000):
                await cut.get(file, NAME, at, 1000)
            assert await cut.get(file, NAME, 0, 1000) is first
            await cut.get(file, NAME, 3000, 1000)
            assert await cut.get(file, NAME, 0, 1000) is not first
            assert sum(size for _, _, size in cut._cut) <= 3000

    asyncio.run(story())


def test_a_disk_that_fails_is_asked_again(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, fail = os.pread, [OSError(5, "Input/output error")]

    def pread(*call: int) -> bytes:
        if fail:
            raise fail.pop()
        return real(*call)

    monkeypatch.setattr(os, "pread", pread)

    async def story() -> None:
        cut = Frames()
        with path.open("rb") as file:
            with pytest.raises(OSError, match="Input/output"):
                await cut.get(file, NAME, 0, 1000)
            assert (await cut.get(file, NAME, 0, 1000)).data == DATA[:1000]

    asyncio.run(story())


def test_frames_of_a_blob_that_was_examined_or_removed_are_read_again(tmp_path: Path) -> None:
    blobs = Blobs(tmp_path)
    weights = blobs.keep(MODEL)
    name, size = weights.blob.sha256, weights.blob.size
    good = blobs.path(name).read_bytes()

    async def fetched() -> Frame:
        with blobs.path(name).open("rb") as file:
            return await blobs.frames.get(file, name, 0, size)

    async def story() -> None:
        blobs.keep_copies([name])
        blobs.path(name).write_bytes(b"x" + good[1:])
        assert (await fetched()).data != good
        assert not blobs.damage(name)  # it is restored from its copy
        assert (await fetched()).data == good
        file = blobs.path(name).open("rb")
        blobs.remove([name])
        with file:
            assert not blobs.frames._cut
            assert (await blobs.frames.get(file, name, 0, size)).data == good

    asyncio.run(story())
