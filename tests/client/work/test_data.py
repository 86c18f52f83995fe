"""A device's files: what is right comes out as views, what is wrong is named and never run."""

import gzip
import struct
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from fedclient.config import DataConfig
from fedclient.work.data import load, load_file
from shoal.core.data.dataset import Dataset
from shoal.core.data.views import Views
from shoal.core.errors import ConfigError, DataFault
from shoal.shell.readers import read_csv

X = np.arange(20, dtype=np.float32).reshape(10, 2)
Y = np.array([0, 1] * 5)


def savez(path: Path, **arrays: Any) -> Path:
    np.savez(path, **arrays)
    return path


def idx_bytes(array: np.ndarray[Any, Any]) -> bytes:
    header = struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape)
    return header + array.astype(np.uint8).tobytes()


def fault(config: DataConfig, labels: bool = True) -> str:
    with pytest.raises(DataFault) as caught:
        load(config, labels)
    assert caught.value.hint
    return str(caught.value)


def everything(views: Views) -> set[float]:
    return {float(v) for part in (views.train, views.held_out) for v in part.x[:, 0]}


# -- npz ------------------------------------------------------------------------------------------------


def test_npz_with_labels_and_test(tmp_path: Path) -> None:
    views = load(DataConfig(npz=savez(tmp_path / "a.npz", x=X, y=Y, x_test=X[:3], y_test=Y[:3])))
    assert (len(views.train), len(views.held_out)) == (8, 2)
    assert views.test is not None
    assert views.test.y is not None
    assert views.test.y.tolist() == [0, 1, 0]
    assert everything(views) == set(X[:, 0].tolist())


def test_npz_without_labels_is_unlabelled(tmp_path: Path) -> None:
    views = load(DataConfig(npz=savez(tmp_path / "a.npz", x=X)))
    assert views.train.y is None
    assert views.train.x.tolist() == X.tolist()


@pytest.mark.parametrize("regression", [False, True])
def test_labels_may_be_a_column(tmp_path: Path, regression: bool) -> None:
    """Not one-hot labels, of which an error asked to take the argmax: 0 for each."""
    path = tmp_path / "column.npz"
    np.savez(path, x=np.zeros((3, 2)), y=[[2], [1], [0]])
    found = load(DataConfig(npz=path, held_out=0.0, regression=regression)).train.y
    assert found is not None
    assert found.tolist() == [2, 1, 0]


def test_a_test_file_comes_before_a_test_array(tmp_path: Path) -> None:
    train = savez(tmp_path / "a.npz", x=X, y=Y, x_test=X[:3], y_test=Y[:3])
    views = load(DataConfig(npz=train, test=savez(tmp_path / "b.npz", x=X[:5], y=Y[:5])))
    assert views.test is not None
    assert len(views.test) == 5


def test_bytes_stay_bytes_other_integers_become_float32(tmp_path: Path) -> None:
    pixels = np.arange(8, dtype=np.uint8).reshape(4, 2)
    assert load(DataConfig(npz=savez(tmp_path / "a.npz", x=pixels))).train.x.dtype == np.uint8
    divided = load(DataConfig(npz=tmp_path / "a.npz", divide_by=2.0)).train.x
    assert divided.dtype == np.float32
    assert divided.tolist() == (pixels / 2).tolist()
    whole = load(DataConfig(npz=savez(tmp_path / "b.npz", x=pixels.astype(np.int32)))).train.x
    assert whole.dtype == np.float32


def test_shape_is_given_to_each_sample(tmp_path: Path) -> None:
    path = savez(tmp_path / "a.npz", x=np.zeros((4, 6)))
    assert load(DataConfig(npz=path, shape=(1, 2, 3))).train.x.shape == (4, 1, 2, 3)
    assert "cannot become [4]" in fault(DataConfig(npz=path, shape=(4,)))


def test_whole_float_labels_will_do(tmp_path: Path) -> None:
    views = load(DataConfig(npz=savez(tmp_path / "a.npz", x=X, y=Y.astype(np.float64))))
    assert views.train.y is not None
    assert views.train.y.dtype == np.int64


@pytest.mark.parametrize(
    ("arrays", "said"),
    [
        ({"data": X}, "has no array x"),
        ({"x": X[:0], "y": Y[:0]}, "contains no samples"),
        ({"x": np.float32(3)}, "contains no samples"),
        ({"x": X, "y": Y[:9]}, "x has 10 examples but y has 9 labels"),
        ({"x": X, "y": Y - 1}, "the label of row 0 (from 0) is -1"),
        ({"x": X, "y": Y + 0.5}, "the label of row 0 (from 0) is 0.5"),
        (
            {"x": X, "y": np.where(np.arange(10) == 7, np.nan, 1.0)},
            "the label of row 7 (from 0) is missing (fill",
        ),
        ({"x": X, "y": Y.astype(np.uint64) + (1 << 40)}, "the label of row 0"),
        ({"x": X, "y": np.array(["dog", "cat"] * 5)}, "is 'dog', and not a number (list the names of all"),
        ({"x": X, "y": np.eye(10, dtype=int)}, "y has shape (10, 10)"),
        ({"x": np.where(X == 7, np.nan, X), "y": Y}, "x holds nan in row 3, column 1 (from 0)"),
        ({"x": np.where(X == 7, 1e300, X.astype(float))}, "x holds 1e+300 in row 3, column 1 (from 0)"),
        ({"x": X.astype(np.complex128)}, "x holds complex numbers, not numbers"),
        ({"x": X.astype(str)}, "not numbers"),
        (
            {"x": X, "x_test": np.zeros((3, 5), np.float32)},
            "a test sample has shape [5], and [2] for training",
        ),
    ],
)
def test_npz_that_does_not_fit(tmp_path: Path, arrays: dict[str, Any], said: str) -> None:
    path = savez(tmp_path / "a.npz", **arrays)
    found = fault(DataConfig(npz=path))
    assert said in found
    assert str(path) in found


def test_a_pickle_is_never_opened(tmp_path: Path) -> None:
    class Bomb:
        def __reduce__(self) -> tuple[Any, ...]:
            return (sys.exit, (3,))

    savez(tmp_path / "a.npz", x=np.array([Bomb()], dtype=object))
    assert "pickled objects are never opened" in fault(DataConfig(npz=tmp_path / "a.npz"))


def test_damaged_files_are_named(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "a.npz", x=np.random.default_rng(0).random((200, 20)))
    whole = (tmp_path / "a.npz").read_bytes()
    place = whole.index(b"PK\x01\x02") + 8  # the flags of its list of contents: whether there is a password
    for name, data in {
        "cut": whole[: len(whole) // 2],
        "empty": b"",
        "noise": bytes(range(256)) * 8,
        "flipped": whole[:2000] + bytes([whole[2000] ^ 0xFF]) + whole[2001:],
        "text": b"hello",
        "locked": whole[:place] + bytes([whole[place] | 1]) + whole[place + 1 :],
    }.items():
        path = tmp_path / f"{name}.npz"
        path.write_bytes(data)
        assert str(path) in fault(DataConfig(npz=path))


def test_one_array_alone_is_said(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", X)
    assert "is a single array" in fault(DataConfig(npz=tmp_path / "a.npy"))


def test_a_missing_file_and_a_folder_are_said(tmp_path: Path) -> None:
    assert "No such file" in fault(DataConfig(npz=tmp_path / "none.npz"))
    assert "directory" in fault(DataConfig(csv=tmp_path))


# -- csv ------------------------------------------------------------------------------------------------

CSV = "a,b,label\n1,2.5,0\n3,4e-1,1\n-5,6,1\n"


def csv(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "a.csv"
    path.write_text(text)
    return path


def test_csv_with_a_label_column(tmp_path: Path) -> None:
    data = load_file(csv(tmp_path, CSV), DataConfig(csv=tmp_path / "other.csv", label="label"))
    assert data.x.tolist() == np.float32([[1, 2.5], [3, 0.4], [-5, 6]]).tolist()
    assert data.y is not None
    assert data.y.tolist() == [0, 1, 1]


def test_csv_without_a_label_setting_is_unlabelled(tmp_path: Path) -> None:
    assert load(DataConfig(csv=csv(tmp_path, CSV))).train.x.shape == (3, 3)


def test_csv_that_lacks_the_label_column(tmp_path: Path) -> None:
    config = DataConfig(csv=csv(tmp_path, "a,lable\n1,0\n"), label="label")
    found = fault(config)
    assert "has no column 'label'" in found
    assert 'did you mean "lable"?' in found
    assert load(config, labels=False).train.y is None


def test_csv_columns_are_taken_by_name(tmp_path: Path) -> None:
    """Two devices whose columns come in another order give the same x; what is not taken may hold words."""
    config = DataConfig(csv=tmp_path / "a.csv", label="label", columns=("b", "a"))
    one = load_file(csv(tmp_path, "id,a,b,label\nP-1,1,2,0\nP-2,3,4,1\n"), config)
    other = load_file(csv(tmp_path, "label,b,a,note\n0,2,1,\n1,4,3,old\n"), config)
    for data in (one, other):
        assert data.x.tolist() == [[2.0, 1.0], [4.0, 3.0]]
        assert data.y is not None
        assert data.y.tolist() == [0, 1]
    unlabelled = load_file(csv(tmp_path, "a,b\n1,2\n"), config)
    assert (unlabelled.x.tolist(), unlabelled.y) == ([[2.0, 1.0]], None)


def test_a_column_of_words_may_be_the_one_of_classes(tmp_path: Path) -> None:
    path = csv(tmp_path, "age,state\n40,ill\n")
    assert "data.label: state" in fault(DataConfig(csv=path))
    assert "data.label" not in fault(DataConfig(csv=path, label="age"))
    assert "data.label" not in fault(DataConfig(csv=path, label="age", regression=True))


def test_a_further_table_with_the_columns_in_another_order_is_refused(tmp_path: Path) -> None:
    """Its columns would be taken for those of the device's own, of which the network has learned."""
    (tmp_path / "own.csv").write_text("a,b,no,y\n1,2,x,0\n3,4,x,1\n")
    other = tmp_path / "other.csv"
    other.write_text("y,no,b,a\n0,x,2,1\n1,x,4,3\n")
    config = DataConfig(csv=tmp_path / "own.csv", label="y", ignore=("no",))
    said = "other.csv has the column 'b' where .*own.csv has 'a' .*data.columns gives it"
    with pytest.raises(DataFault, match=said):
        load_file(other, config)
    with pytest.raises(DataFault, match=said):
        load(replace(config, test=other))
    named = replace(config, columns=("a", "b"))
    assert load_file(other, named).x.tolist() == [[1.0, 2.0], [3.0, 4.0]]
    (tmp_path / "own.csv").unlink()  # as where a model is only used
    assert load_file(other, config).x.tolist() == [[2.0, 1.0], [4.0, 3.0]]


def test_bytes_beside_a_test_part_of_numbers_of_their_scale_are_refused(tmp_path: Path) -> None:
    x, y, path = np.full((4, 3), 128, np.uint8), np.array([0, 1, 0, 1]), tmp_path / "own.npz"
    for test, refused in ((x * 1.0, True), (x / 255, False), (x, False)):
        np.savez(path, x=x, y=y, x_test=test, y_test=y)
        if refused:
            assert "to test on, has float32 up to 128" in fault(DataConfig(npz=path))
            assert load(DataConfig(npz=path, divide_by=255.0)).test is not None
        else:
            assert load(DataConfig(npz=path)).test is not None


def test_csv_columns_to_ignore(tmp_path: Path) -> None:
    path = csv(tmp_path, "id,a,label,b\nP-1,1,0,2\n,3,1,4\n")
    views = load(DataConfig(csv=path, label="label", ignore=("id",)))
    assert sorted([*views.train.x.tolist(), *views.held_out.x.tolist()]) == [[1.0, 2.0], [3.0, 4.0]]
    assert "column 'id': 'P-1' is not a number" in fault(DataConfig(csv=path, label="label"))


def test_csv_columns_that_are_not_there(tmp_path: Path) -> None:
    path = csv(tmp_path, "age,weight,label\n1,2,0\n")
    said = fault(DataConfig(csv=path, label="label", columns=("age", "wieght")))
    assert "has no column 'wieght', which `data.columns` names" in said
    assert 'did you mean "weight"?' in said
    said = fault(DataConfig(csv=path, label="label", ignore=("id",)))
    assert "has no column 'id', which `data.ignore` names (known: age, label, weight)" in said


def test_csv_with_many_columns_names_a_few(tmp_path: Path) -> None:
    names = [f"c{number}" for number in range(30)]
    path = csv(tmp_path, f"{','.join(names)}\n{','.join('1' * 30)}\n")
    with pytest.raises(DataFault) as caught:
        load(DataConfig(csv=path, label="species"))
    assert caught.value.hint == (
        "a device without labels leaves `data.label` out; known: c0, c1, c2, c3, c4, c5, c6, c7 and 22 more"
    )


def test_csv_that_is_separated_by_semicolons(tmp_path: Path) -> None:
    found = fault(DataConfig(csv=csv(tmp_path, "a;b;label\n1,5;2;0\n"), label="label"))
    assert "is separated by semicolons (separate by commas" in found


def test_only_what_is_described_is_opened_where_labels_are_not_needed(tmp_path: Path) -> None:
    path = csv(tmp_path, "a,b\n1,2\n")
    assert len(load(DataConfig(csv=path, test=tmp_path / "none.csv"), labels=False).train) == 1
    assert "none.csv" in fault(DataConfig(csv=path, test=tmp_path / "none.csv"))
    (tmp_path / "images").write_bytes(idx_bytes(np.arange(48).reshape(3, 4, 4)))
    config = DataConfig(idx=tmp_path / "images", labels=tmp_path / "no-labels")
    assert load(config, labels=False).train.y is None
    assert "no-labels" in fault(config)


def test_csv_may_have_a_mark_empty_lines_and_quotes(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b'\xef\xbb\xbf"a", b \r\n"1",2\r\n\r\n3,4\r\n')
    assert load(DataConfig(csv=path, label="b")).train.x.shape == (1, 1)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is empty"),
        ("a,label\n", "contains no samples"),
        ("label\n1\n", "contains no samples"),
        ("a,a,label\n1,2,0\n", "two columns are called 'a'"),
        ("a,label\n1,0\n2\n", "line 3: 1 values where there are 2 columns"),
        ("a,label\n1,0,2,0\n1,0,2,0\n", "line 2: 4 values where there are 2 columns"),
        ("a,label\n1,0\nred,1\n", "line 3, column 'a': 'red' is not a number"),
        ("a,label\n1,0\n\n1,cat\n", "the label in line 4, column 'label' is 'cat', and not a number"),
        ("a,label\n1,\n", "line 2, column 'label' is empty"),
        ("a,label\n1,0\n,1\n", "line 3, column 'a' is empty"),
        ("a,label\n1,0\nnan,1\n", "line 3, column 'a': 'nan' is not a number"),
        ("a,label\ninf,1\n", "line 2, column 'a': 'inf' is not a number"),
        ("a,label\n1,0\n\n1,0.5\n", "the label in line 4, column 'label' is 0.5"),
        ("a,label\n1,-1\n", "the label in line 2, column 'label' is -1"),
        ("0.0,0.0,1\n1,2,0\n", "the first row must name the columns, and it is 0.0,0.0,1"),
        ("5.1,3.5,1\n4.9,3.0,0\n", "the first row must name the columns"),
        ('a,label\n"1,0\n', "is not a csv file"),
    ],
)
def test_csv_that_does_not_fit(tmp_path: Path, text: str, said: str) -> None:
    found = fault(DataConfig(csv=csv(tmp_path, text), label="label"))
    assert said in found
    assert "a.csv" in found


def test_csv_that_is_replaced_while_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.csv"

    def replaced(*arguments: Any) -> Any:
        found = read_csv(*arguments)
        path.write_text("a,b\n")
        return found

    path.write_text("a,b\n1,2\n3,0.5\n")
    monkeypatch.setattr("fedclient.work.data.read_csv", replaced)
    assert "the label of row 1 (from 0) is 0.5" in fault(DataConfig(csv=path, label="b"))


def test_csv_that_is_not_text(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b"a,b\n\xff\xfe,1\n")
    assert "not UTF-8" in fault(DataConfig(csv=tmp_path / "a.csv"))


# -- classes that have names ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "classes", "found"),
    [
        (["dog", "cat", "dog"], ("cat", "cow", "dog"), [2, 0, 2]),
        ([3, 1, 2], ("1", "2", "3"), [2, 0, 1]),
        ([1, 0, 1], ("well", "ill"), [1, 0, 1]),
        ([True, False, True], ("False", "True"), [1, 0, 1]),
        (["2", "0", "1"], (), [2, 0, 1]),
    ],
)
def test_the_settings_say_which_class_has_which_number(
    tmp_path: Path, given: list[Any], classes: tuple[str, ...], found: list[int]
) -> None:
    """In each kind of file alike, and the same on a device that lacks a class."""
    pandas = pytest.importorskip("pandas")
    x, y = X[:3], np.array(given)
    table = pandas.DataFrame({"a": x[:, 0], "b": x[:, 1], "kind": y})
    table.to_csv(tmp_path / "a.csv", index=False)
    table.astype({"kind": "category"}).to_parquet(tmp_path / "a.parquet")
    shared: dict[str, Any] = {"classes": classes, "held_out": 0.0}
    for config in (
        DataConfig(npz=savez(tmp_path / "a.npz", x=x, y=y), **shared),
        DataConfig(csv=tmp_path / "a.csv", label="kind", **shared),
        DataConfig(parquet=tmp_path / "a.parquet", label="kind", **shared),
    ):
        data = load(config).train
        assert data.y is not None
        assert data.y.tolist() == found
        assert data.x.tolist() == x.tolist()


def test_a_label_that_the_settings_do_not_list(tmp_path: Path) -> None:
    path = csv(tmp_path, "a,kind\n1,cat\n2,dgo\n")
    said = fault(DataConfig(csv=path, label="kind", classes=("cat", "dog")))
    assert "the label in line 3, column 'kind' is 'dgo', which is not among the classes" in said
    assert 'did you mean "dog"?' in said
    said = fault(DataConfig(npz=savez(tmp_path / "a.npz", x=X, y=Y), classes=("1", "2")))
    assert "the label of row 0 (from 0) is '0', which is not among the classes (known: 1, 2)" in said


def test_numbers_to_predict_have_no_names(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="classes have names, and numbers to predict have not"):
        DataConfig(npz=tmp_path / "a.npz", classes=("a", "b"), regression=True)
    path = csv(tmp_path, "a,price\n1,2\n2,dear\n")
    assert "line 3, column 'price': 'dear' is not a number" in fault(
        DataConfig(csv=path, label="price", regression=True)
    )


# -- idx ------------------------------------------------------------------------------------------------


@pytest.fixture
def images(tmp_path: Path) -> Path:
    path = tmp_path / "images.gz"
    path.write_bytes(gzip.compress(idx_bytes(np.arange(48).reshape(3, 4, 4))))
    return path


def test_idx_images_and_labels(tmp_path: Path, images: Path) -> None:
    labels = tmp_path / "labels"
    labels.write_bytes(idx_bytes(np.array([2, 0, 1])))
    data = load_file(images, DataConfig(idx=images, labels=labels, shape=(1, 4, 4)))
    assert data.x.shape == (3, 1, 4, 4)
    assert data.y is not None
    assert data.y.tolist() == [2, 0, 1]
    assert load(DataConfig(idx=images)).train.y is None


def test_idx_labels_of_another_length(tmp_path: Path, images: Path) -> None:
    labels = tmp_path / "labels"
    labels.write_bytes(idx_bytes(np.array([2, 0])))
    assert "x has 3 examples but y has 2 labels" in fault(DataConfig(idx=images, labels=labels))


def test_idx_that_is_cut_off(tmp_path: Path, images: Path) -> None:
    images.write_bytes(idx_bytes(np.zeros((3, 4, 4)))[:-1])
    with pytest.raises(DataFault, match=r"images\.gz: it ends where 1 more bytes should follow"):
        load(DataConfig(idx=images))


# -- module ---------------------------------------------------------------------------------------------

MODULE = """
import numpy as np
from shoal.core.data.dataset import Dataset
from shoal.core.data.views import Views
X, Y = np.ones((10, 2), np.float32), np.zeros(10, int)
def pair(): return X, Y
def unlabeled(): return X, None
def dataset(): return Dataset(X, Y)
def views(): return Views(Dataset(X, Y), Dataset(X[:1], Y[:1]))
def nothing(): return None
def short(): return X, Y[:3]
def failing(): return 1 / 0
def frame():
    import pandas
    return pandas.DataFrame({"a": X[:, 0], "b": Y > 0}), pandas.Series(["dog", "cat"] * 5)
def tensors():
    import torch
    return torch.utils.data.TensorDataset(torch.from_numpy(X), torch.arange(10) % 2)
def tokens(): return np.ones((10, 2), np.int64), Y
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "own_data.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "own_data", raising=False)
    return "own_data"


def test_the_owners_function(module: str) -> None:
    assert len(load(DataConfig(module=f"{module}:pair")).train) == 8
    assert load(DataConfig(module=f"{module}:unlabeled")).train.y is None
    assert len(load(DataConfig(module=f"{module}:dataset")).held_out) == 2
    assert len(load(DataConfig(module=f"{module}:views")).held_out) == 1


def test_the_owners_function_may_give_what_a_fleet_takes(module: str) -> None:
    named = load(DataConfig(module=f"{module}:frame", classes=("cat", "dog"), held_out=0.0)).train
    assert (named.x.shape, named.x.dtype) == ((10, 2), np.float32)
    assert named.y.tolist() == [1, 0] * 5  # type: ignore[union-attr]
    tensors = load(DataConfig(module=f"{module}:tensors", held_out=0.0)).train
    assert tensors.y.tolist() == [0, 1] * 5  # type: ignore[union-attr]
    assert load(DataConfig(module=f"{module}:tokens")).train.x.dtype == np.int64
    assert "data.classes: [cat, dog]" in fault(DataConfig(module=f"{module}:frame"))


def test_the_owners_function_that_fails(module: str) -> None:
    assert "own_data:failing() failed: ZeroDivisionError" in fault(DataConfig(module=f"{module}:failing"))
    assert "own_data:nothing() returned a NoneType" in fault(DataConfig(module=f"{module}:nothing"))
    assert "x has 10 examples but y has 3 labels" in fault(DataConfig(module=f"{module}:short"))


@pytest.mark.parametrize("name", ["no_such_module:f", "own_data:no_such_function", "own_data", ":f"])
def test_a_function_that_is_not_there(module: str, name: str) -> None:
    with pytest.raises(ConfigError, match=r"package\.module:function"):
        load(DataConfig(module=name))


# -- one file more --------------------------------------------------------------------------------------


def test_a_file_to_predict_is_told_by_its_name(tmp_path: Path) -> None:
    config = DataConfig(csv=tmp_path / "train.csv", label="label", divide_by=2.0)
    found = load_file(savez(tmp_path / "new.npz", x=X), config)
    assert isinstance(found, Dataset)
    assert found.x.tolist() == (X / 2).tolist()
    assert load_file(csv(tmp_path, "a,b\n1,2\n"), None).x.tolist() == [[1.0, 2.0]]


def test_pictures_become_samples_in_the_shape_and_order_of_the_settings(tmp_path: Path) -> None:
    for name, level in (("dog/1", 10), ("cat/1", 20), ("cat/2", 30)):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        Image.new("L", (6, 6), level).save(tmp_path / f"{name}.png")
    config = DataConfig(images=tmp_path, classes=("dog", "cow", "cat"), shape=(1, 4, 4), held_out=0.0)
    data = load(config).train
    assert data.x.shape == (3, 1, 4, 4)
    assert data.x[:, 0, 0, 0].tolist() == [20, 30, 10]
    assert data.y is not None
    assert data.y.tolist() == [2, 2, 0]
    without = DataConfig(images=tmp_path, shape=(1, 4, 4))
    assert "'cat' is not a number" in fault(without)
    assert load(without, labels=False).train.y is None
    assert len(load_file(tmp_path, DataConfig(npz=tmp_path / "none.npz", shape=(1, 4, 4)))) == 3
