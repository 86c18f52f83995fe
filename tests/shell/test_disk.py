"""Files and folders that are there for good."""

import ctypes
import errno
import os
import random
from pathlib import Path

import pytest

from shoal.core.errors import StorageFault
from shoal.shell import disk


def test_a_folder_that_a_killed_process_made_is_made_to_last_by_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced = list[Path]()
    monkeypatch.setattr(disk, "sync_folder", synced.append)
    left = tmp_path / "left"
    left.mkdir()  # and killed before the name was to last
    disk.make_folder(left)
    assert synced == [tmp_path]
    disk.make_folder(left)
    assert synced == [tmp_path], "once is enough"
    left.rmdir()
    disk.make_folder(left)
    assert left.is_dir()
    assert synced[-1] == tmp_path


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read every folder")
def test_a_folder_in_one_that_may_not_be_read_is_taken_as_it_is(tmp_path: Path) -> None:
    outer = tmp_path / "outer"
    (outer / "state").mkdir(parents=True)
    outer.chmod(0o311)
    disk.make_folder(outer / "state")


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is synced, renamed and linked, in order. A file is named by what it is called at that moment."""
    found: list[str] = []
    fsync, rename, link = os.fsync, os.rename, os.link

    def name(path: object) -> str:
        return "unfinished" if Path(str(path)).name.startswith(disk.TEMPORARY) else Path(str(path)).name

    def synced(descriptor: int) -> None:
        found.append(f"sync {name(os.readlink(f'/proc/self/fd/{descriptor}'))}")
        fsync(descriptor)

    def renamed(source: object, target: object) -> None:
        found.append(f"name {name(target)}")
        rename(source, target)  # type: ignore[arg-type]

    def linked(source: object, target: object) -> None:
        found.append(f"link {name(target)}")
        link(source, target)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "rename", renamed)
    monkeypatch.setattr(os, "link", linked)
    return found


@pytest.mark.parametrize("second_names", [True, False])
def test_a_file_takes_a_name_that_another_one_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, second_names: bool
) -> None:
    """Also after a process that was killed halfway."""

    def refused(source: Path, target: Path) -> None:
        raise OSError(errno.EPERM, "no second names")

    if not second_names:
        monkeypatch.setattr(os, "link", refused)
    (tmp_path / "target").write_bytes(b"rotten")
    (tmp_path / "target.new").write_bytes(b"left")
    for _ in range(2):
        (tmp_path / "source").write_bytes(b"whole")
        disk.share(tmp_path / "source", tmp_path / "target")
        assert (tmp_path / "target").read_bytes() == b"whole"
        assert not (tmp_path / "target.new").exists()
        assert (tmp_path / "source").exists() == second_names


def test_the_bytes_of_a_file_are_synced_before_it_is_named_and_its_name_after_that(
    tmp_path: Path, steps: list[str]
) -> None:
    folder = tmp_path / "folder"
    disk.write(folder / "file", b"data")
    disk.share(folder / "file", folder / "other")
    assert steps == [
        f"sync {tmp_path.parent.name}",
        f"sync {tmp_path.name}",
        "sync unfinished",
        "name file",
        "sync folder",
        "link other",
        "sync folder",
    ]


@pytest.mark.parametrize(
    ("number", "hint"),
    [
        (errno.EACCES, "give the user who runs this the right to read and write there"),
        (errno.EROFS, "that disk is read-only"),
        (errno.EIO, "check the disk that it is on"),
    ],
)
def test_an_error_names_what_was_asked_for_and_blames_the_disk_only_where_it_is_to_blame(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, hint: str
) -> None:
    opened = os.open

    def refused(path: object, *rest: int) -> int:
        if disk.TEMPORARY in str(path):
            raise OSError(number, os.strerror(number), str(path))
        return opened(path, *rest)  # type: ignore[call-overload, no-any-return]

    monkeypatch.setattr(os, "open", refused)
    with pytest.raises(StorageFault) as caught:
        disk.write(tmp_path / "classes.csv", b"data")
    assert caught.value.message == f"{tmp_path / 'classes.csv'}: {os.strerror(number)}"
    assert caught.value.hint.startswith(hint)


def test_a_file_where_a_folder_is_needed_is_said(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("")
    with pytest.raises(StorageFault, match="state") as caught:
        disk.write(tmp_path / "state" / "device", b"data")
    assert "a file" in caught.value.hint
    with pytest.raises(StorageFault, match="state") as caught, disk.storing(tmp_path / "state"):
        (tmp_path / "state").mkdir(exist_ok=True)
    assert caught.value.hint == "a file has that name: name a folder"


def test_what_goes_to_the_disk_early_is_each_step_once_and_the_bytes_are_as_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, real = list[tuple[int, int]](), disk._begin
    assert real is not None

    def noted(descriptor: int, start: "ctypes.c_int64", size: "ctypes.c_int64", flag: int) -> int:
        begun.append((start.value, size.value))
        return int(real(descriptor, start, size, flag))

    monkeypatch.setattr(disk, "_begin", noted)
    monkeypatch.setattr(disk, "STEP", 1000)
    data = random.Random(43).randbytes(12_345)
    with (tmp_path / "file").open("xb") as file:
        at = 0
        for size in (10, 989, 1, 5000, 999, 0, 1, 12_345):
            disk.write_early(file, data[at : at + size], at)
            at = min(at + size, len(data))
    assert (tmp_path / "file").read_bytes() == data
    assert begun == [(0, 1000), (1000, 5000), (6000, 1000), (7000, 5000)]
