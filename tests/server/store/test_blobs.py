"""Uploads: taken up where they were cut off, checked at the end, never more than was announced."""

import errno
import hashlib
import os
import random
import threading
from contextlib import closing
from io import FileIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedserver.store.content import blobs as content
from fedserver.store.content import in_file as module
from fedserver.store.content.blob_cache import BlobCache
from fedserver.store.content.blobs import Blobs
from fedserver.store.content.checked import MAX_BYTES, LostTensors
from fedserver.store.content.in_file import FileTensors
from fedserver.store.store import Store
from shoal.core.errors import BadPayload, NotFound, StorageFault, Unavailable
from shoal.core.exchange.payload import BlobRef
from shoal.core.exchange.tensors import manifest_of
from shoal.core.types import Tensors

TENSORS: Tensors = {"w": np.arange(100, dtype=np.float32), "empty": np.zeros((0, 2)), "n": np.array(3)}
ROOM = 1 << 20


@pytest.fixture
def blobs(tmp_path: Path) -> Blobs:
    return Blobs(tmp_path)


def sample(blobs: Blobs, value: float = 0.0) -> tuple[BlobRef, bytes]:
    """A blob, and its bytes; the server does not have it."""
    weights = blobs.keep({"w": np.full(100, value, np.float32)})
    data = blobs.path(weights.blob.sha256).read_bytes()
    blobs.remove([weights.blob.sha256])
    return weights.blob, data


def test_an_upload_goes_on_where_it_was_cut_off(blobs: Blobs) -> None:
    blob, data = sample(blobs)
    first = blobs.receive("d", blob, 0, ROOM)
    first.append(data[:150])
    first.close()
    assert blobs.uploaded("d", blob) == 150
    assert blobs.uploaded("other", blob) == 0
    second = blobs.receive("d", blob, 150, ROOM)
    second.append(data[150:])
    assert second.finish() == blob.size
    second.close()
    assert blobs.uploaded("d", blob) == blob.size
    blobs.accept("d", [blob.sha256])
    assert blobs.path(blob.sha256).read_bytes() == data
    assert blobs.uploaded("d", blob) == blob.size
    blobs.discard("d", [blob.sha256])
    assert blobs.path(blob.sha256).read_bytes() == data
    assert blobs.uploaded("d", blob) == 0


@pytest.mark.parametrize("error", [0, errno.EPERM, errno.EOPNOTSUPP])
def test_an_upload_becomes_a_blob_where_a_file_has_one_name_alone_too(
    blobs: Blobs, monkeypatch: pytest.MonkeyPatch, error: int
) -> None:
    def single(source: Path, target: Path) -> None:
        raise OSError(error, os.strerror(error))

    if error:
        monkeypatch.setattr(os, "link", single)
    for value in (1.0, 1.0):
        blob, data = sample(blobs, value)
        upload = blobs.receive("d", blob, 0, ROOM)
        upload.append(data)
        assert upload.finish() == blob.size
        upload.close()
        blobs.accept("d", [blob.sha256])
        assert blobs.path(blob.sha256).read_bytes() == data
        assert blobs.uploaded("d", blob) == (0 if error else blob.size)


@pytest.mark.parametrize("way", ["uploaded", "carried by a report", "made by the server"])
def test_whole_bytes_take_the_place_of_a_blob_that_has_rotted(blobs: Blobs, way: str) -> None:
    """They were compared with its name a moment ago, and would be gone after that."""
    blob, data = sample(blobs)
    model = {"w": np.zeros(100, np.float32)}
    blobs.keep(model)
    blobs.path(blob.sha256).write_bytes(bytes([data[0] ^ 1]) + data[1:])
    if way == "uploaded":
        with closing(blobs.receive("d", blob, 0, ROOM)) as upload:
            upload.append(data)
            upload.finish()
        blobs.accept("d", [blob.sha256])
        assert blobs.uploaded("d", blob) == blob.size  # until its report counts
        blobs.discard("d", [blob.sha256])
    elif way == "carried by a report":
        blobs.put({blob.sha256: data})
    else:
        blobs.keep(model)
    assert blobs.path(blob.sha256).read_bytes() == data
    assert [path.name for path in blobs.path(blob.sha256).parent.iterdir()] == [blob.sha256]


def test_a_link_that_fails_for_another_reason_is_said_so(
    blobs: Blobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    blob, data = sample(blobs)
    upload = blobs.receive("d", blob, 0, ROOM)
    upload.append(data)
    upload.finish()
    upload.close()

    def failing(source: Path, target: Path) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patched:
        patched.setattr(os, "link", failing)
        with pytest.raises(StorageFault, match="Input/output error"):
            blobs.accept("d", [blob.sha256])
    assert blobs.uploaded("d", blob) == blob.size
    assert not blobs.path(blob.sha256).exists()


def test_a_part_is_synced_and_counted_when_its_stream_ends(blobs: Blobs) -> None:
    blob, data = sample(blobs)
    upload = blobs.receive("d", blob, 0, ROOM)
    upload.append(data[:10])
    assert upload.finish() == 10
    upload.close()
    again = blobs.receive("d", blob, 4, ROOM)
    again.append(data[4:])
    assert again.finish() == blob.size
    again.close()


def test_an_upload_cannot_begin_beyond_what_is_here(blobs: Blobs) -> None:
    blob, _ = sample(blobs)
    with pytest.raises(BadPayload, match="continues at byte 5, but only 0 bytes have arrived"):
        blobs.receive("d", blob, 5, ROOM)


def test_wrong_bytes_are_found_and_forgotten(blobs: Blobs) -> None:
    blob, data = sample(blobs)
    upload = blobs.receive("d", blob, 0, ROOM)
    upload.append(b"\xff" + data[1:])
    with pytest.raises(BadPayload, match="do not match blob"):
        upload.finish()
    upload.close()
    assert blobs.uploaded("d", blob) == 0
    assert not blobs.arrived("d", blob.sha256).exists()


def test_more_than_was_announced_is_not_taken(blobs: Blobs) -> None:
    blob, data = sample(blobs)
    upload = blobs.receive("d", blob, 0, ROOM)
    upload.append(data)
    with pytest.raises(BadPayload, match="longer than the announced 400 bytes"):
        upload.append(b"x")
    upload.close()
    assert blobs.uploaded("d", blob) == 0


def test_a_part_of_full_size_that_was_never_checked_is_not_taken_for_whole(blobs: Blobs) -> None:
    blob, data = sample(blobs)
    upload = blobs.receive("d", blob, 0, ROOM)
    upload.append(b"\xff" + data[1:])
    upload.close()
    held = blobs.uploaded("d", blob)
    assert held == blob.size - 1
    again = blobs.receive("d", blob, held, ROOM)
    again.append(data[held:])
    with pytest.raises(BadPayload, match="do not match blob"):
        again.finish()
    again.close()


def test_an_upload_that_was_replaced_says_so(blobs: Blobs) -> None:
    blob, data = sample(blobs)
    upload = blobs.receive("d", blob, 0, ROOM)
    upload.close()
    with pytest.raises(Unavailable, match="another upload"):
        upload.append(data)
    with pytest.raises(Unavailable, match="another upload"):
        upload.finish()


def test_older_uploads_of_a_device_give_way(blobs: Blobs) -> None:
    (old, data), (new, _) = sample(blobs, 1.0), sample(blobs, 2.0)
    for device in ("d", "other"):
        upload = blobs.receive(device, old, 0, ROOM)
        upload.append(data[:300])
        upload.close()
    blobs.receive("d", new, 0, 500).close()
    assert blobs.uploaded("d", old) == 0
    assert blobs.uploaded("other", old) == 300


@pytest.mark.parametrize("way", ["a larger one came", "its device was withdrawn"])
def test_an_upload_that_has_given_way_says_so_when_it_ends(blobs: Blobs, way: str) -> None:
    """It is no fault of the disk, of which an operator would hear."""
    (old, data), (new, _) = sample(blobs, 1.0), sample(blobs, 2.0)
    upload = blobs.receive("d", old, 0, ROOM)
    upload.append(data)
    if way == "a larger one came":
        blobs.receive("d", new, 0, new.size - 1).close()
    else:
        blobs.discard_all("d")
    with pytest.raises(Unavailable, match="another upload"):
        upload.finish()
    assert blobs.uploaded("d", old) == 0


def test_how_much_has_arrived_can_be_asked_while_the_last_bytes_are_verified(
    blobs: Blobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    blob, data = sample(blobs)
    upload = blobs.receive("d", blob, 0, ROOM)
    upload.append(data[:-1])
    real, last = Path.stat, [data[-1:]]

    def stat(path: Path, **options: Any) -> os.stat_result:
        found = real(path, **options)
        if path.suffix == ".part" and last:
            upload.append(last.pop())
            upload.finish()
        return found

    monkeypatch.setattr(Path, "stat", stat)
    assert blobs.uploaded("d", blob) in (0, blob.size - 1, blob.size)
    assert not last
    assert blobs.uploaded("d", blob) == blob.size


def test_uploads_that_bring_nothing_do_not_pile_up(
    blobs: Blobs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(content, "MAX_UPLOADS", 3)
    for value in range(10):
        blob, _ = sample(blobs, float(value))
        blobs.receive("d", blob, 0, ROOM).close()
    (folder,) = tmp_path.glob("partial/*")
    assert len(list(folder.iterdir())) == 3


def test_a_disk_that_fails_is_said_so(blobs: Blobs, monkeypatch: pytest.MonkeyPatch) -> None:
    blob, data = sample(blobs)
    real = Path.open

    def failing(path: Path, mode: str = "r") -> Any:
        if mode == "r+b":
            raise OSError(errno.EIO, "Input/output error")
        return real(path, mode)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "open", failing)
        with pytest.raises(StorageFault, match="Input/output error"):
            blobs.receive("d", blob, 0, ROOM)
    receiving = blobs.receive("d", blob, 0, ROOM)
    receiving.append(data)
    assert receiving.finish() == blob.size


def test_an_empty_blob_is_one_too(blobs: Blobs) -> None:
    weights = blobs.keep({})
    assert weights.blob.size == 0
    assert blobs.read(weights) == {}
    upload = blobs.receive("d", weights.blob, 0, ROOM)
    assert upload.finish() == 0
    upload.close()
    assert blobs.arrived("d", weights.blob.sha256).is_file()


def test_tensors_in_a_file_are_the_stored_ones(blobs: Blobs) -> None:
    weights = blobs.keep(TENSORS)
    found = FileTensors(blobs.path(weights.blob.sha256), weights.manifest)
    assert list(found) == list(TENSORS)
    assert len(found) == 3
    assert {name: array.tobytes() for name, array in found.items()} == {
        name: array.tobytes() for name, array in TENSORS.items()
    }
    assert found["empty"].shape == (0, 2)
    with pytest.raises(ValueError, match="read-only"):
        found["w"][0] = 1.0
    with pytest.raises(KeyError):
        found["v"]


def test_what_a_device_sent_and_a_state_keeps_is_not_stored_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(tmp_path / "state")
    try:
        weights = store.blobs.keep(TENSORS)
        found = store.blobs.reported(weights, weights.blob.size)
        monkeypatch.setattr(Blobs, "keep", None)
        assert BlobCache(store.runs, store.blobs, "run").weights(found) is weights
    finally:
        store.close()


def test_small_reports_are_read_once_unless_they_are_many(blobs: Blobs) -> None:
    weights = blobs.keep(TENSORS)
    few, many = (blobs.reported(weights, together) for together in (weights.blob.size, MAX_BYTES + 1))
    for found in (few, many):
        assert {name: found[name].tobytes() for name in found} == {
            name: array.tobytes() for name, array in TENSORS.items()
        }
    blobs.path(weights.blob.sha256).unlink()
    assert few["w"].tobytes() == TENSORS["w"].tobytes()
    with pytest.raises(LostTensors):
        many["w"]


def test_tensors_in_a_file_must_fit_their_file(blobs: Blobs) -> None:
    weights = blobs.keep(TENSORS)
    longer = manifest_of({**TENSORS, "more": np.zeros(1)})
    with pytest.raises(BadPayload, match="but the blob has"):
        FileTensors(blobs.path(weights.blob.sha256), longer)
    with pytest.raises(NotFound, match="the server does not have blob"):
        FileTensors(blobs.path("ab" * 32), weights.manifest)


def test_some_elements_of_tensors_in_a_file_are_read_from_the_disk(
    blobs: Blobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = blobs.keep(TENSORS)
    path = blobs.path(weights.blob.sha256)
    found = FileTensors(path, weights.manifest)
    for name, array in TENSORS.items():
        for block in (slice(0, array.size), slice(1, max(1, array.size))):
            assert found.part(name, block).tobytes() == array.reshape(-1)[block].tobytes()
    whole, size = slice(0, TENSORS["w"].size), path.stat().st_size
    os.truncate(path, 1)
    with pytest.raises(BadPayload, match="cannot be read"):
        found.part("w", whole)
    os.truncate(path, size)

    class Broken(FileIO):
        def readinto(self, buffer: object) -> int:
            raise OSError(errno.EIO, "a sector is lost")

    monkeypatch.setattr(module, "FileIO", Broken)
    with pytest.raises(BadPayload, match="cannot be read"):
        found.part("w", whole)
    path.unlink()
    with pytest.raises(NotFound):
        found.part("w", whole)


def test_a_later_upload_of_the_same_blob_takes_the_place_of_the_one_before(blobs: Blobs) -> None:
    blob, data = sample(blobs)
    first = blobs.receive("d", blob, 0, ROOM)
    first.append(data[:150])
    second = blobs.receive("d", blob, 0, ROOM)
    for late in (lambda: first.append(data[150:]), lambda: first.append(bytes(500)), first.finish):
        with pytest.raises(Unavailable, match="another upload"):
            late()
    second.append(data)
    assert second.finish() == blob.size
    assert blobs.arrived("d", blob.sha256).read_bytes() == data


def test_what_is_called_whole_is_whole_however_many_send_it_at_once(blobs: Blobs) -> None:
    """Two processes of one device, or a line that was cut and one that was not: only the last one counts."""
    blob, data = sample(blobs)
    wrong, whole = list[str](), list[int]()

    def send(seed: int) -> None:
        chance = random.Random(seed)
        for _ in range(150):
            try:
                start = chance.choice((0, blobs.uploaded("d", blob)))
                upload = blobs.receive("d", blob, start, ROOM)
                for place in range(start, blob.size, 64):
                    upload.append(data[place : min(place + 64, blob.size)])
                if upload.finish() == blob.size:
                    whole.append(seed)
                    found = hashlib.sha256(blobs.arrived("d", blob.sha256).read_bytes()).hexdigest()
                    if found != blob.sha256:
                        wrong.append(found)
            except (Unavailable, BadPayload, FileNotFoundError):
                continue
            finally:
                if chance.random() < 0.2:
                    blobs.discard("d", [blob.sha256])

    threads = [threading.Thread(target=send, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert whole, "no writer ever came to the end"
    assert not wrong
