"""Models that stay on the disk: the same bytes as in memory, and never other ones."""

import errno
import gc
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from fedserver.store.content import blobs as module
from fedserver.store.content import checked
from fedserver.store.content.blobs import Blobs
from fedserver.store.content.checked import Checked, Draft, LostTensors
from shoal.core.errors import DataFault, DiskFull, NotFound
from shoal.core.exchange.payload import Weights
from shoal.core.exchange.tensors import BLOCK, digest, manifest_of, pack
from shoal.core.server_kit.aggregation.parallel import Piece, pieces_of
from shoal.core.types import Array, Tensors

CHANCE = np.random.default_rng(43)
TENSORS: Tensors = {
    "w": CHANCE.normal(size=(5, BLOCK // 2 + 7)).astype(np.float32),  # several blocks, the last one short
    "b": np.array([1.0, 2.0, 3.0], np.float16),
    "n": np.array(7, np.int64),
    "flags": np.array([True, False]),
    "empty": np.empty((0, 2), np.float64),
}


@pytest.fixture(autouse=True)
def _all_are_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checked, "MIN_BYTES", 0)


@pytest.fixture
def blobs(tmp_path: Path) -> Blobs:
    return Blobs(tmp_path / "state")


def cut(parts: int = 1) -> Iterator[tuple[Piece, Array]]:
    """parts: many make pieces that are no whole blocks."""
    for name, start, stop in pieces_of(manifest_of(TENSORS), parts):
        yield (name, start, stop), TENSORS[name].reshape(-1)[start:stop]


def made(blobs: Blobs, parts: int = 1) -> Draft:
    found = blobs.make(manifest_of(TENSORS), cut(parts))
    assert isinstance(found, Draft)
    return found


def are_right(found: Tensors) -> bool:
    return digest(found) == digest(TENSORS) and all(
        found[name].shape == array.shape and found[name].dtype == array.dtype
        for name, array in TENSORS.items()
    )


def stored(blobs: Blobs) -> tuple[Weights, Tensors]:
    weights = blobs.keep(TENSORS)
    return weights, blobs.safe(weights)


def copy_of(blobs: Blobs, name: str) -> Path:
    return blobs.folder / "copies" / name[:2] / name


@pytest.mark.parametrize("parts", [1, 700, 3000])
def test_a_draft_has_the_bytes_that_the_tensors_would_have_in_memory(blobs: Blobs, parts: int) -> None:
    draft = made(blobs, parts)
    packed = b"".join(pack(TENSORS))
    assert [path.read_bytes() for path in draft.files] == [packed] * 2
    assert (draft.name, draft.size) == (digest(TENSORS), len(packed))
    assert are_right(draft)
    flat = TENSORS["w"].reshape(-1)
    for block in (slice(0, 1), slice(3, BLOCK), slice(BLOCK - 1, BLOCK + 1), slice(BLOCK, flat.size)):
        assert draft.part("w", block).tobytes() == flat[block].tobytes()


def test_a_draft_becomes_a_blob_with_a_copy_and_is_written_only_once(
    blobs: Blobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    draft = made(blobs)
    with monkeypatch.context() as patch:
        patch.setattr(Blobs, "_write", None)
        weights = blobs.keep(draft)
    assert weights == blobs.keep(TENSORS) == blobs.keep(draft), "also when it is kept again"
    name = weights.blob.sha256
    assert copy_of(blobs, name).read_bytes() == blobs.path(name).read_bytes() == b"".join(pack(TENSORS))
    assert not copy_of(blobs, name).samefile(blobs.path(name))
    assert list((blobs.folder / "tmp").iterdir()) == []
    assert are_right(draft)
    del draft
    gc.collect()
    assert blobs.path(name).exists()
    assert copy_of(blobs, name).exists()


def test_a_draft_that_is_not_kept_leaves_nothing(blobs: Blobs) -> None:
    draft = made(blobs)
    assert len(list((blobs.folder / "tmp").iterdir())) == 2
    del draft
    gc.collect()

    def broken() -> Iterator[tuple[Piece, Array]]:
        yield next(cut())
        raise DiskFull("full")

    with pytest.raises(DiskFull):
        blobs.make(manifest_of(TENSORS), broken())
    gc.collect()
    assert list((blobs.folder / "tmp").iterdir()) == []


def test_a_draft_whose_bytes_could_not_be_synced_is_written_again(
    blobs: Blobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    draft = made(blobs)
    first = draft.files[0].stat().st_ino

    def full(path: Path) -> None:
        raise OSError(errno.ENOSPC, "no space")

    with monkeypatch.context() as patch:
        patch.setattr(module, "sync", full)
        with pytest.raises(DiskFull):
            blobs.keep(draft)
    name = blobs.keep(draft).blob.sha256
    assert blobs.path(name).read_bytes() == b"".join(pack(TENSORS))
    assert blobs.path(name).stat().st_ino != first
    assert are_right(draft)


def test_a_copy_that_came_with_a_draft_outlives_the_look_that_did_not_know_of_it(blobs: Blobs) -> None:
    name = blobs.keep(made(blobs)).blob.sha256
    blobs.keep_copies([])
    assert copy_of(blobs, name).exists()
    blobs.keep_copies([name])
    assert copy_of(blobs, name).exists()
    blobs.keep_copies([])
    assert not copy_of(blobs, name).exists()


@pytest.mark.parametrize("harm", ["flip", "cut", "delete"])
def test_what_is_read_is_what_was_written_or_the_file_is_restored_first(blobs: Blobs, harm: str) -> None:
    weights, found = stored(blobs)
    assert isinstance(found, Checked)
    path = blobs.path(weights.blob.sha256)
    data = bytearray(path.read_bytes())
    if harm == "delete":
        path.unlink()
    else:
        data[4 * BLOCK + 5] ^= 4
        path.write_bytes(data if harm == "flip" else data[:9])
    assert found.part("w", slice(0, 1)) == TENSORS["w"][0, 0]  # of a block that is sound, or is restored
    assert found.part("w", slice(BLOCK + 1, BLOCK + 2)) == TENSORS["w"].reshape(-1)[BLOCK + 1]
    assert are_right(found)
    assert "restored from its copy" in blobs.restored[0]


def test_a_model_that_is_damaged_in_both_places_is_lost_and_nothing_else_is_read(blobs: Blobs) -> None:
    weights, found = stored(blobs)
    name = weights.blob.sha256
    for path in (blobs.path(name), copy_of(blobs, name)):
        path.write_bytes(bytes(weights.blob.size))
    with pytest.raises(LostTensors, match="is damaged and was moved to"):
        found["b"]


def test_a_model_that_is_damaged_when_it_is_opened_is_refused(blobs: Blobs) -> None:
    weights = blobs.keep(TENSORS)
    path = blobs.path(weights.blob.sha256)
    blobs.keep_copies([path.name])
    data = bytearray(path.read_bytes())
    data[3] ^= 1
    path.write_bytes(data)
    with pytest.raises(DataFault, match="is damaged"):
        blobs.safe(weights)
    path.unlink()
    with pytest.raises(NotFound):
        blobs.safe(weights)


def test_small_tensors_stay_in_memory(blobs: Blobs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checked, "MIN_BYTES", 1 << 30)
    assert type(blobs.make(manifest_of(TENSORS), cut())) is dict
    assert type(stored(blobs)[1]) is dict
