"""Small blobs that came inside of reports: one sync for all of them, and no power cut undoes it."""

import hashlib
import os
from pathlib import Path

import pytest

from fedserver.store.content import spool
from fedserver.store.content.blobs import Blobs
from shoal.core.exchange.payload import INLINE

PIECES = [bytes([number]) * (1000 + number) for number in range(20)]
SMALL = {hashlib.sha256(data).hexdigest(): data for data in PIECES}


@pytest.fixture
def syncs(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of what is synced."""
    done = list[int]()
    real = os.fsync

    def fsync(descriptor: int) -> None:
        done.append(os.fstat(descriptor).st_size)
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    return done


def lost(blobs: Blobs, *names: str) -> None:
    """As after a power cut: these files are not there, or have no bytes."""
    for number, name in enumerate(names):
        blobs.path(name).write_bytes(b"") if number % 2 else blobs.path(name).unlink()


def sound(blobs: Blobs) -> set[str]:
    return {
        name for name, data in SMALL.items() if blobs.size(name) and blobs.path(name).read_bytes() == data
    }


def test_one_sync_serves_all_of_them(tmp_path: Path, syncs: list[int]) -> None:
    blobs = Blobs(tmp_path)
    blobs.put({"0" * 64: b"the file is new, and so its name is synced"})
    syncs.clear()
    blobs.put(SMALL)
    assert len(syncs) == 1
    assert syncs[0] > sum(map(len, PIECES))
    assert sound(blobs) == set(SMALL)


def test_a_start_completes_what_a_power_cut_left(tmp_path: Path) -> None:
    blobs = Blobs(tmp_path)
    blobs.put(SMALL)
    lost(blobs, *list(SMALL)[3:9])
    again = Blobs(tmp_path)
    assert sound(again) == set(SMALL)
    assert (tmp_path / "spool").stat().st_size == 0
    lost(again, *list(SMALL)[:1])
    assert len(sound(Blobs(tmp_path))) == len(SMALL) - 1  # synced once, so there is no second copy any more


@pytest.mark.parametrize("at", [0, 31, 33, 39, 40, 500])
def test_an_entry_that_rots_costs_no_other_blob_but_itself(tmp_path: Path, at: int) -> None:
    blobs = Blobs(tmp_path)
    blobs.put(SMALL)
    data = bytearray((tmp_path / "spool").read_bytes())
    data[at] ^= 1
    (tmp_path / "spool").write_bytes(data)
    assert sound(Blobs(tmp_path)) == set(SMALL)  # their files are whole
    assert not any(blobs.damage(name) for name in SMALL)


def test_an_entry_that_was_not_written_to_its_end_is_none(tmp_path: Path) -> None:
    blobs = Blobs(tmp_path)
    blobs.put(SMALL)
    with (tmp_path / "spool").open("r+b") as file:
        file.truncate(file.seek(0, os.SEEK_END) - 1)
    lost(blobs, *SMALL)
    assert sound(Blobs(tmp_path)) == set(list(SMALL)[:-1])


def test_it_is_emptied_when_none_is_needed_any_more(tmp_path: Path) -> None:
    blobs, names = Blobs(tmp_path), list(SMALL)
    blobs.put(SMALL)
    blobs.remove(names[:-1])
    assert (tmp_path / "spool").stat().st_size
    blobs.remove(names[-1:])
    assert (tmp_path / "spool").stat().st_size == 0
    blobs.put(SMALL)
    lost(blobs, *names)
    assert sound(Blobs(tmp_path)) == set(SMALL)


def test_it_does_not_grow_without_end(
    tmp_path: Path, syncs: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spool, "MAX_BYTES", 5000)
    blobs, names = Blobs(tmp_path), list(SMALL)
    for name in names:
        blobs.put({name: SMALL[name]})
        assert (tmp_path / "spool").stat().st_size < 5000 + INLINE
    held = [name for name in names if SMALL[name] in (tmp_path / "spool").read_bytes()]
    assert len(held) < 10
    synced = set(syncs)
    assert {len(SMALL[name]) for name in names if name not in held} <= synced
    lost(blobs, *held)
    assert sound(Blobs(tmp_path)) == set(SMALL)


def test_bytes_that_are_here_are_not_written_again(tmp_path: Path, syncs: list[int]) -> None:
    blobs = Blobs(tmp_path)
    blobs.put(SMALL)
    syncs.clear()
    blobs.put(SMALL)
    assert syncs == []
