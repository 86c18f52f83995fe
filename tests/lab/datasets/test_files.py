"""Any data set by its path: each kind of file gives the same two parts."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from shoal.core.errors import DataFault
from shoal_lab import datasets
from shoal_lab.datasets import files
from shoal_lab.datasets.images import load
from shoal_lab.experiment import Experiment, run

QUICK = {"rounds": 1, "clients": 2, "threads": 1}


def table(path: Path, classes: int = 12, rows: int = 240) -> Path:
    y = np.arange(rows) % classes
    x = np.random.default_rng(0).normal(size=(rows, 3)) + y[:, None]
    np.savetxt(path, np.column_stack([x, y]), delimiter=",", header="a,b,c,kind", comments="")
    return path


def test_an_npz_file_with_a_test_part_and_without_one(tmp_path: Path) -> None:
    x, y = np.arange(40, dtype=np.float32).reshape(20, 2), np.arange(20) % 3
    np.savez(tmp_path / "a.npz", x=x, y=y)
    train, test = files.load(tmp_path / "a.npz")
    assert (len(train), len(test)) == (16, 4)
    assert sorted([*train.x[:, 0].tolist(), *test.x[:, 0].tolist()]) == x[:, 0].tolist()
    np.savez(tmp_path / "b.npz", x=x, y=y, x_test=x[:3], y_test=y[:3])
    assert [len(part) for part in datasets.read(tmp_path / "b.npz")] == [20, 3]


def test_labels_that_are_words_are_numbered_in_both_parts_alike(tmp_path: Path) -> None:
    x, words = (
        np.arange(12, dtype=np.float32).reshape(6, 2),
        np.array(["ape", "cow", "ape", "dog", "cow", "dog"]),
    )
    np.savez(tmp_path / "a.npz", x=x, y=words, x_test=x[:2], y_test=np.array(["dog", "bee"]))
    train, test = files.load(tmp_path / "a.npz")
    assert (train.y.tolist(), test.y.tolist()) == ([0, 2, 0, 3, 2, 3], [3, 1])  # type: ignore[union-attr]
    rows = [f"{a},{b},{word}" for (a, b), word in zip(x, words, strict=True)]
    (tmp_path / "a.csv").write_text("\n".join(["a,b,kind", *rows]))
    found = files.load(tmp_path / "a.csv", "kind")
    assert sorted(label for part in found for label in part.y.tolist()) == [0, 0, 1, 1, 2, 2]  # type: ignore[union-attr]
    np.savez(tmp_path / "b.npz", x=x, y=1 + np.arange(6) % 2)
    assert {label for part in files.load(tmp_path / "b.npz") for label in part.y.tolist()} == {0, 1}  # type: ignore[union-attr]


def test_folders_of_pictures_are_numbered_by_name_and_both_parts_alike(tmp_path: Path) -> None:
    for name, level in (("train/cow/1", 10), ("train/ape/1", 20), ("train/dog/1", 30), ("test/dog/9", 40)):
        (tmp_path / f"{name}.png").parent.mkdir(parents=True, exist_ok=True)
        Image.new("L", (4, 4), level).save(tmp_path / f"{name}.png")
    train, test = files.load(tmp_path)
    assert (train.x[:, 0, 0].tolist(), train.y.tolist()) == ([20, 10, 30], [0, 1, 2])  # type: ignore[union-attr]
    assert (test.x[:, 0, 0].tolist(), test.y.tolist()) == ([40], [2])  # type: ignore[union-attr]
    (tmp_path / "test" / "dog").rename(tmp_path / "test" / "elk")
    files.load.cache_clear()
    with pytest.raises(DataFault, match="'elk' is not in"):
        files.load(tmp_path)


@pytest.mark.parametrize(("name", "before", "classes"), [("cifar-10", 1, 10), ("cifar-100", 2, 100)])
def test_cifars_binary_files(name: str, before: int, classes: int, tmp_path: Path) -> None:
    rows = np.zeros((6, before + 3072), np.uint8)
    rows[:, before - 1] = np.arange(6) * classes // 6
    rows[:, before : before + 1024] = 7  # red comes first
    batches = ["train.bin"] if before == 2 else [f"data_batch_{number}.bin" for number in range(1, 6)]
    test = "test.bin" if before == 2 else "test_batch.bin"
    (tmp_path / batches[0]).write_bytes(rows[:4].tobytes())
    with pytest.raises(FileNotFoundError, match=f"lacks {' and '.join([*batches[1:], test])}"):
        load(name, tmp_path)
    for each in batches[1:]:
        (tmp_path / each).write_bytes(rows[:4].tobytes())
    (tmp_path / test).write_bytes(rows[4:].tobytes())
    own, apart = load(name, tmp_path)
    assert (own.x.shape, len(apart)) == ((4 * len(batches), 3, 32, 32), 2)
    assert (own.x[:, 0] == 7).all()
    assert not own.x[:, 1:].any()
    assert own.y is not None
    assert own.y.tolist() == [number * classes // 6 for number in range(4)] * len(batches)
    (tmp_path / test).write_bytes(rows.tobytes()[:-1])
    files.load.cache_clear()
    with pytest.raises(DataFault, match="not a whole file"):
        load(name, tmp_path)


def test_an_experiment_runs_on_any_file_with_any_number_of_classes(tmp_path: Path) -> None:
    path = table(tmp_path / "kinds.csv")
    found = run(Experiment("fedavg", dataset=str(path), label="kind", shift="dirichlet", level=2, **QUICK))  # type: ignore[arg-type]
    assert 0.0 <= found["accuracy"]["known"] <= 100.0
    with pytest.raises(DataFault, match="is a table"):
        run(Experiment("fedavg", dataset=str(path), shift="py", level=1, **QUICK))  # type: ignore[arg-type]


def test_what_is_no_data_set_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("words")
    with pytest.raises(DataFault, match="is no data set"):
        files.load(tmp_path / "a.txt")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataFault, match="has no pictures"):
        files.load(tmp_path / "empty")
    np.savez(tmp_path / "a.npz", x=np.zeros((3, 2)))
    with pytest.raises(DataFault, match="has no labels"):
        files.load(tmp_path / "a.npz")
