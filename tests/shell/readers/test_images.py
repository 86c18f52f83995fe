"""Pictures in folders and archives: what they hold comes out in order, and what is wrong is named."""

import errno
import io
import os
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from shoal.core.errors import DataFault
from shoal.shell.readers import images, kind_of, numbered, read_images, read_numbered

COLORS = {"train/cat/a.png": (255, 0, 0), "train/cat/b.png": (0, 9, 0), "train/dog/a.png": (0, 0, 7)}


def saved(path: Path, color: tuple[int, ...] | int, size: tuple[int, int] = (5, 4)) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("L" if isinstance(color, int) else "RGB", size, color).save(path)
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, color in COLORS.items():
        saved(tmp_path / name, color)
    (tmp_path / "train" / "README.md").write_text("no picture")
    return tmp_path


@pytest.mark.parametrize("ending", ["", ".tar", ".tar.gz", ".tar.xz"])
def test_a_folder_and_an_archive_of_it_hold_the_same(folder: Path, ending: str) -> None:
    path = folder
    if ending:
        path = folder / f"all{ending}"
        with tarfile.open(path, f"w:{ending.rpartition('.')[2]}" if ending != ".tar" else "w") as archive:
            archive.add(folder / "train", "./train")
    x, names = read_images(path, "train")
    assert (x.shape, x.dtype, names) == ((3, 3, 4, 5), np.uint8, ["cat", "cat", "dog"])
    assert x[:, :, 0, 0].tolist() == [[255, 0, 0], [0, 9, 0], [0, 0, 7]]
    assert kind_of(path) == "images"


def test_gray_pictures_stay_gray_and_a_shape_brings_pictures_into_it(tmp_path: Path) -> None:
    for name, size in (("0/a.png", (5, 4)), ("1/b.png", (10, 8))):
        saved(tmp_path / name, 90, size)
    with pytest.raises(DataFault, match=r"1/b.png has shape \[8, 10\], and 0/a.png has \[4, 5\]"):
        read_images(tmp_path)
    x, y = read_numbered(tmp_path, (1, 4, 5))
    assert (x.shape, np.unique(x).tolist(), y.tolist()) == ((2, 1, 4, 5), [90], [0, 1])  # type: ignore[union-attr]
    assert read_images(tmp_path, shape=(3, 4, 5))[0].shape == (2, 3, 4, 5)
    (tmp_path / "1" / "b.png").unlink()
    assert read_images(tmp_path)[0].shape == (1, 4, 5)


@pytest.mark.parametrize("ending", ["png", "pgm"])
def test_pictures_of_16_bits_are_refused_and_not_made_white(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"a.{ending}"
    if ending == "png":
        Image.fromarray(np.full((4, 5), 4000, np.uint16)).save(path)
    else:
        path.write_bytes(b"P5 5 4 65535\n" + np.full(20, 4000, ">u2").tobytes())
    for shape in ((), (1, 2, 2)):
        with pytest.raises(DataFault, match=rf"a.{ending} has more than 8 bits a pixel .*an npz file"):
            read_images(tmp_path, shape=shape)


def test_pictures_without_folders_have_no_class(tmp_path: Path) -> None:
    saved(tmp_path / "b.png", 2)
    saved(tmp_path / "a.png", 1)
    x, y = read_numbered(tmp_path)
    assert (x[:, 0, 0].tolist(), y) == ([1, 2], None)


def test_devices_number_classes_alike_even_where_some_are_missing() -> None:
    path = Path("here")
    assert numbered(path, ["dog", "cat"], ["cat", "cow", "dog"]).tolist() == [2, 0]  # type: ignore[union-attr]
    assert numbered(path, ["7", "03"]).tolist() == [7, 3]  # type: ignore[union-attr]
    with pytest.raises(DataFault, match="'dog' is not a number") as caught:
        numbered(path, ["dog"])
    assert "data.classes: [dog]" in caught.value.hint
    with pytest.raises(DataFault, match="'dgo' is not in") as caught:
        numbered(path, ["dgo"], ["cat", "dog"])
    assert "dog" in caught.value.hint


def test_what_is_no_picture_or_stands_elsewhere_is_named(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(DataFault, match="has no pictures"):
        read_images(folder, "test")
    with pytest.raises(DataFault, match=r"train/cat/a.png is in more folders"):
        read_images(folder)
    saved(folder / "train" / "odd.png", (1, 1, 1))
    with pytest.raises(DataFault, match=r"cat/a.png is in more folders"):
        read_images(folder, "train")
    broken = tmp_path / "broken" / "0"
    broken.mkdir(parents=True)
    whole = io.BytesIO()
    Image.new("RGB", (64, 64)).save(whole, "PNG")
    for data in (b"", b"\x89PNG\r\n\x1a\n", whole.getvalue()[:60], b"GIF89a" + bytes(40)):
        (broken / "a.png").write_bytes(data)
        with pytest.raises(DataFault, match=r"0/a.png is not a picture") as caught:
            read_images(broken.parent)
        assert "BytesIO" not in caught.value.message
    (broken / "a.png").write_bytes(whole.getvalue())
    monkeypatch.setattr(images, "MAX_PIXELS", 64 * 64 - 1)
    with pytest.raises(DataFault, match="64 x 64 pixels"):
        read_images(broken.parent)


@pytest.mark.parametrize("cut", [0, 1, 100, 250])
def test_an_archive_that_is_cut_off_is_named(folder: Path, cut: int) -> None:
    path = folder / "all.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        archive.add(folder / "train", "train")
    path.write_bytes(path.read_bytes()[: min(cut, path.stat().st_size - 1)])
    with pytest.raises(DataFault, match="not a whole archive"):
        read_images(path, "train")


def test_links_to_folders_and_pictures_are_followed(tmp_path: Path) -> None:
    saved(tmp_path / "data" / "0" / "a.png", 1)
    saved(tmp_path / "elsewhere" / "a.png", 2)
    (tmp_path / "data" / "1").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "data" / "0" / "b.png").symlink_to(tmp_path / "elsewhere" / "a.png")
    x, y = read_numbered(tmp_path / "data")
    assert (x[:, 0, 0].tolist(), y.tolist()) == ([1, 2, 2], [0, 0, 1])  # type: ignore[union-attr]


def test_a_link_that_leads_back_ends(tmp_path: Path) -> None:
    saved(tmp_path / "data" / "0" / "a.png", 1)
    (tmp_path / "data" / "0" / "back").symlink_to(tmp_path / "data")
    assert read_numbered(tmp_path / "data")[1].tolist() == [0]  # type: ignore[union-attr]


@pytest.mark.parametrize("name", ["1", "0/b.png"])
def test_a_link_that_leads_nowhere_is_named(tmp_path: Path, name: str) -> None:
    saved(tmp_path / "0" / "a.png", 1)
    (tmp_path / name).symlink_to("gone")
    with pytest.raises(DataFault, match=f"the link {tmp_path / name} cannot be read: No such file"):
        read_images(tmp_path)


@pytest.mark.parametrize("forbidden", ["the folder 1", "the file 0/a.png"])
def test_what_may_not_be_read_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, forbidden: str
) -> None:
    """By calls that fail, since the superuser may read everything."""
    for name in ("0/a.png", "1/a.png"):
        saved(tmp_path / name, 1)
    what, _, name = forbidden.rpartition(" ")

    def refusing(call: Any) -> Any:
        def tried(path: Any, *rest: Any) -> Any:
            if str(path) == str(tmp_path / name):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
            return call(path, *rest)

        return tried

    monkeypatch.setattr(os, "scandir", refusing(os.scandir))
    monkeypatch.setattr(Path, "read_bytes", refusing(Path.read_bytes))
    with pytest.raises(DataFault, match=f"{what} {tmp_path / name} cannot be read: Permission denied"):
        read_images(tmp_path)


@pytest.mark.parametrize("link", [Path.symlink_to, Path.hardlink_to])
def test_a_link_in_an_archive_is_named(folder: Path, link: Callable[[Path, Path], None]) -> None:
    link(folder / "train" / "cat" / "c.png", folder / "train" / "cat" / "a.png")
    with tarfile.open(folder / "all.tar", "w") as archive:
        archive.add(folder / "train", "train")
    with pytest.raises(DataFault, match=r"train/cat/[ac].png is a link to .*[ac].png") as caught:
        read_images(folder / "all.tar", "train")
    assert "--dereference" in caught.value.hint
