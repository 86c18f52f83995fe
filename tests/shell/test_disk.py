"""Files and folders that are there for good."""

import os
from pathlib import Path

import pytest

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
