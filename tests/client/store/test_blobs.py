"""Bytes by their hash: whole or not there, resumed at a chunk, bounded, mapped in place."""

import asyncio
import hashlib
import os
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest

from fedclient.store.blobs import CHUNK, SPARE, BlobStore
from shoal.core.errors import BadPayload, StorageFault, Unavailable
from shoal.core.exchange.payload import BlobRef, Weights
from shoal.core.exchange.tensors import digest, manifest_of, pack
from shoal.shell.disk import TEMPORARY, replacing, write

DATA = np.random.default_rng(0).bytes(12 * CHUNK + 100)
BLOB = BlobRef(hashlib.sha256(DATA).hexdigest(), len(DATA))


class Source:
    """Serves `data`; breaks off after `most` bytes of a call. starts: where each call began."""

    def __init__(self, data: bytes, most: int = 1 << 40) -> None:
        self.data, self.most = data, most
        self.starts: list[int] = []

    async def fetch(self, blob: BlobRef, start: int) -> AsyncIterator[bytes]:
        self.starts.append(start)
        for position in range(start, len(self.data), 700_000):
            if position - start >= self.most:
                raise Unavailable("cut")
            yield self.data[position : position + 700_000]


@pytest.fixture
def store(tmp_path: Path) -> BlobStore:
    return BlobStore(tmp_path / "blobs")


def fetch(store: BlobStore, source: Source, blob: BlobRef = BLOB) -> None:
    asyncio.run(store.fetch(blob, source.fetch))


def names(store: BlobStore) -> set[str]:
    return set(os.listdir(store.folder))


def test_a_download_comes_whole(store: BlobStore) -> None:
    assert not store.has(BLOB)
    fetch(store, Source(DATA))
    assert store.has(BLOB)
    assert store.path(BLOB).read_bytes() == DATA
    assert b"".join(store.chunks(BLOB, 0)) == DATA
    assert b"".join(store.chunks(BLOB, CHUNK)) == DATA[CHUNK:]
    assert names(store) == {BLOB.sha256}


def test_what_is_here_is_not_fetched_again(store: BlobStore) -> None:
    source = Source(DATA)
    fetch(store, source)
    fetch(store, source)
    assert len(source.starts) == 1


def test_a_download_goes_on_at_the_last_whole_chunk(store: BlobStore) -> None:
    with pytest.raises(Unavailable):
        fetch(store, Source(DATA, most=2 * 1_400_000))
    assert not store.has(BLOB)
    source = Source(DATA)
    fetch(BlobStore(store.folder), source)  # after a restart
    assert source.starts == [2 * 1_400_000 // CHUNK * CHUNK]
    assert store.path(BLOB).read_bytes() == DATA


def test_wrong_bytes_do_not_get_the_name(store: BlobStore) -> None:
    with pytest.raises(BadPayload, match="the bytes do not match the hash"):
        fetch(store, Source(b"x" * len(DATA)))
    with pytest.raises(BadPayload, match="the bytes do not match the hash"):
        fetch(store, Source(DATA + b"x"))
    assert names(store) == set()


def test_a_damaged_part_is_not_kept(store: BlobStore) -> None:
    store.path(BLOB).with_suffix(".part").write_bytes(b"x" * CHUNK)
    with pytest.raises(BadPayload):
        fetch(store, Source(DATA))
    source = Source(DATA)
    fetch(store, source)
    assert source.starts == [0]


def test_a_download_that_ends_early_is_kept_for_the_next_try(store: BlobStore) -> None:
    with pytest.raises(BadPayload, match=f"the download ended after {CHUNK} of {len(DATA)} bytes"):
        fetch(store, Source(DATA[:CHUNK]))
    source = Source(DATA)
    fetch(store, source)
    assert source.starts == [CHUNK]


def test_a_part_that_is_too_long_is_cut(store: BlobStore) -> None:
    store.path(BLOB).with_suffix(".part").write_bytes(DATA + b"x" * CHUNK)
    fetch(store, Source(DATA))
    assert store.has(BLOB)


@pytest.mark.parametrize("damaged", [DATA[:-1], DATA + b"x", b"", DATA[:-1] + b"x"], ids=len)
def test_a_damaged_blob_is_found_and_goes(store: BlobStore, damaged: bytes) -> None:
    store.path(BLOB).write_bytes(damaged if damaged != DATA else b"")
    assert not store.has(BLOB)
    assert names(store) == set()


def test_an_empty_blob(store: BlobStore) -> None:
    empty = BlobRef(hashlib.sha256(b"").hexdigest(), 0)
    fetch(store, Source(b""), empty)
    assert store.has(empty)
    assert dict(store.load(Weights((), empty))) == {}


TENSORS = {
    "w": np.arange(6, dtype=np.float32).reshape(2, 3),
    "n": np.array(7, np.int64),
    "e": np.zeros((0, 4), np.float16),
}


def test_tensors_come_back_mapped_and_read_only(store: BlobStore) -> None:
    weights = store.keep(TENSORS)
    assert weights.blob.sha256 == digest(TENSORS)
    assert weights.manifest == manifest_of(TENSORS)
    assert store.path(weights.blob).read_bytes() == b"".join(pack(TENSORS))
    loaded = store.load(weights)
    assert list(loaded) == list(TENSORS)
    for name, array in TENSORS.items():
        np.testing.assert_array_equal(loaded[name], array)
        assert not loaded[name].flags.writeable
    assert names(store) == {weights.blob.sha256}


def test_a_mapped_model_outlives_its_file(store: BlobStore) -> None:
    weights = store.keep(TENSORS)
    loaded = store.load(weights)
    store.trim(0)
    assert not store.has(weights.blob)
    assert loaded["w"].tolist() == TENSORS["w"].tolist()


def test_loading_what_is_not_there_or_not_as_long(store: BlobStore) -> None:
    weights = store.keep(TENSORS)
    os.truncate(store.path(weights.blob), weights.blob.size - 1)
    with pytest.raises(BadPayload, match="the data have"):
        store.load(weights)
    store.trim(0)
    with pytest.raises(BadPayload, match="is not here"):
        store.load(weights)


def test_sending_what_is_not_there_is_a_fault_of_the_disk(store: BlobStore) -> None:
    with pytest.raises(StorageFault, match=BLOB.sha256):
        list(store.chunks(BLOB, 0))


def test_trim_keeps_the_newest_and_what_is_in_use(store: BlobStore) -> None:
    kept = [store.keep({"w": np.full(100, value)}).blob for value in range(4)]
    for age, blob in enumerate(reversed(kept)):
        os.utime(store.path(blob), (1_000_000 - age, 1_000_000 - age))
    (store.folder / f"{TEMPORARY}left").write_bytes(b"x")
    store.trim(2 * 800, in_use=[kept[0].sha256])
    assert names(store) == {kept[0].sha256, kept[3].sha256}


@pytest.mark.parametrize("size", [10, 99, 100, 101, 1000])
def test_a_result_that_was_taken_is_overwritten_by_the_next_one(store: BlobStore, size: int) -> None:
    first = store.keep({"w": np.full(100, 1.0)}).blob
    store.retire(first)
    assert not store.has(first)
    number = (store.folder / SPARE).stat().st_ino
    second = store.keep({"w": np.full(size, 2.0)})
    assert store.path(second.blob).stat().st_ino == number
    assert BlobStore(store.folder).has(second.blob)
    assert names(store) == {second.blob.sha256}


def test_a_spare_file_goes_before_any_blob(store: BlobStore) -> None:
    kept, taken = (store.keep({"w": np.full(100, value)}).blob for value in range(2))
    os.utime(store.path(kept), (1, 1))
    store.retire(taken)
    store.trim(2 * 800)
    assert names(store) == {kept.sha256, SPARE}
    store.trim(800)
    assert names(store) == {kept.sha256}


def test_use_makes_a_blob_young(store: BlobStore) -> None:
    old, new = (store.keep({"w": np.full(100, value)}).blob for value in range(2))
    for age, blob in enumerate((new, old)):
        os.utime(store.path(blob), (1_000_000 - age, 1_000_000 - age))
    assert store.has(old)
    store.trim(800)
    assert names(store) == {old.sha256}


def test_a_disk_that_refuses_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StorageFault, match="file"):
        BlobStore(tmp_path / "file" / "blobs")
    with pytest.raises(StorageFault, match="file"):
        write(tmp_path / "file" / "status.json", b"")


def test_a_file_that_was_not_finished_leaves_the_old_one(tmp_path: Path) -> None:
    def interrupted() -> None:
        with replacing(tmp_path / "a") as file:
            file.write(b"new")
            raise ZeroDivisionError

    write(tmp_path / "a", b"old")
    with pytest.raises(ZeroDivisionError):
        interrupted()
    assert (tmp_path / "a").read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["a"]


def test_results_that_another_process_deletes_are_not_remembered(store: BlobStore) -> None:
    for number in range(5):
        kept = store.keep({"a": np.full(3, number)})
        BlobStore(store.folder).remove([kept.blob])
    assert len(store._sound) == 1
