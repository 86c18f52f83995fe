import gzip
import struct
from pathlib import Path

import numpy as np
import pytest

from shoal_lab.datasets.images import load


def store(path: Path, array: np.ndarray, packed: bool = True) -> None:
    path.parent.mkdir(exist_ok=True)
    content = struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.tobytes()
    if packed:
        path.with_name(path.name + ".gz").write_bytes(gzip.compress(content))
    else:
        path.write_bytes(content)


def store_all(folder: Path, packed: bool = True) -> tuple[np.ndarray, np.ndarray]:
    """Six train images and two test images with their labels; returns those of the train set."""
    images = np.arange(8 * 28 * 28, dtype=np.uint32).astype(np.uint8).reshape(8, 28, 28)
    classes = np.array([5, 0, 4, 1, 9, 2, 1, 3], np.uint8)
    store(folder / "train-images-idx3-ubyte", images[:6], packed)
    store(folder / "train-labels-idx1-ubyte", classes[:6], packed)
    store(folder / "t10k-images-idx3-ubyte", images[6:], packed)
    store(folder / "t10k-labels-idx1-ubyte", classes[6:], packed)
    return images[:6], classes[:6]


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist"])
@pytest.mark.parametrize("packed", [True, False], ids=["gz", "unpacked"])
def test_the_four_files_become_two_sets(tmp_path: Path, name: str, packed: bool) -> None:
    images, classes = store_all(tmp_path / name, packed)
    train, test = load(name, tmp_path)
    assert train.x.dtype == np.uint8
    assert (train.x == images).all()
    assert train.y is not None
    assert train.y.dtype == np.int64
    assert train.y.tolist() == classes.tolist()
    assert test.y is not None
    assert test.y.tolist() == [1, 3]


def test_a_near_miss_is_suggested() -> None:
    with pytest.raises(ValueError, match="did you mean 'fashion-mnist'"):
        load("fashion_mnist", "anywhere")


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"known are busi, cifar-10, .*, mnist, and paths"):
        load("zzz")


def test_missing_files_are_named_with_the_folder_and_the_hint(tmp_path: Path) -> None:
    store_all(tmp_path / "mnist")
    (tmp_path / "mnist" / "t10k-labels-idx1-ubyte.gz").unlink()
    with pytest.raises(FileNotFoundError, match="download") as caught:
        load("mnist", tmp_path)
    assert f"{tmp_path / 'mnist'} lacks t10k-labels-idx1-ubyte " in str(caught.value)


def test_no_folder_said_is_asked_for() -> None:
    with pytest.raises(ValueError, match="--data-dir"):
        load("mnist")


@pytest.mark.parametrize(
    ("file", "content", "problem"),
    [
        ("train-labels-idx1-ubyte", np.zeros(5, np.uint8), "one label for each of the 6 images"),
        ("train-labels-idx1-ubyte", np.full(6, 10, np.uint8), "label 10"),
        ("train-images-idx3-ubyte", np.zeros(6, np.uint8), "not images"),
    ],
)
def test_files_that_do_not_fit_together_are_refused(
    tmp_path: Path, file: str, content: np.ndarray, problem: str
) -> None:
    store_all(tmp_path / "mnist")
    store(tmp_path / "mnist" / file, content)
    with pytest.raises(ValueError, match=problem):
        load("mnist", tmp_path)


def test_digits_need_no_folder_and_always_split_alike() -> None:
    datasets = pytest.importorskip("sklearn.datasets")
    (train, test), (again, _) = load("digits"), load("digits")
    assert (train.x == again.x).all()
    assert train.x.shape == (1438, 8, 8)
    assert test.x.shape == (359, 8, 8)
    assert train.x.dtype == np.uint8
    assert train.x.max() == 255
    assert train.y is not None
    assert test.y is not None
    assert train.y[:10].tolist() == [2, 8, 2, 6, 6, 7, 1, 9, 8, 5]

    # Every bundled image is in exactly one of the two, under its own label.
    def rows(x: np.ndarray, y: np.ndarray) -> list[bytes]:
        return sorted(image.tobytes() + bytes([label]) for image, label in zip(x, y, strict=True))

    bundled = datasets.load_digits()
    expected = rows(np.rint(bundled.images / 16 * 255).astype(np.uint8), bundled.target)
    assert rows(np.concatenate([train.x, test.x]), np.concatenate([train.y, test.y])) == expected
