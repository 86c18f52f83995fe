"""What a fleet may be made of, and what is said of everything else."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Subset, TensorDataset, random_split

import shoal
from shoal.core.errors import DataFault
from tests.api.wards import ward

X, Y = ward(0, samples=10)


def test_devices_keep_their_names_and_a_share_of_their_samples_is_held_apart() -> None:
    fleet = shoal.Fleet({"ward-b": (X, Y), "ward-a": {"x": X, "y": Y}, "c": shoal.Dataset(X, Y)}, test=0.2)
    assert list(fleet) == ["ward-b", "ward-a", "c"]
    assert repr(fleet) == "Fleet of 3 devices: 24 samples to train on, 6 to test on, shape (4,), 2 classes"
    holding = fleet["ward-b"]
    rows = np.concatenate([holding.stage(0).x, holding.test.x])
    assert sorted(map(tuple, rows)) == sorted(map(tuple, X))


def test_the_same_seed_holds_the_same_samples_apart_and_another_one_others() -> None:
    one, again, other = (shoal.Fleet({"a": (X, Y)}, seed=seed)["a"].test.x for seed in (1, 1, 2))
    assert np.array_equal(one, again)
    assert not np.array_equal(one, other)


def test_bytes_beside_numbers_of_their_scale_are_refused_since_only_they_are_divided() -> None:
    pixels, y = np.random.default_rng(43).integers(0, 256, (10, 6, 6)).astype(np.uint8), np.arange(10) % 2
    numbers = pixels.astype(np.float32)
    said = r"b has float32 up to \d+, and a bytes, which are divided by 255 .bring all into one type"
    with pytest.raises(DataFault, match=said):
        shoal.Fleet({"a": (pixels, y), "b": (numbers, y)})
    with pytest.raises(DataFault, match="a, test part has float32"):
        shoal.Fleet({"a": (pixels, y, numbers, y)})
    with pytest.raises(DataFault, match="b has float32 up to 1"):  # flags, as of pandas.get_dummies
        shoal.Fleet({"a": ((pixels > 99).astype(np.uint8), y), "b": (numbers > 99, y)})
    fleet = shoal.Fleet({"a": (pixels, y), "b": (numbers / 255, y)})
    with pytest.raises(DataFault, match="newcomer has float32"):
        fleet.read("newcomer", numbers)
    assert len(fleet.read("newcomer", numbers / 255)) == len(fleet.read("newcomer", pixels)) == 10


def test_a_device_may_bring_its_own_test_part() -> None:
    for data in ((X[:7], Y[:7], X[7:], Y[7:]), {"x": X[:7], "y": Y[:7], "x_test": X[7:], "y_test": Y[7:]}):
        holding = shoal.Fleet({"a": data})["a"]
        assert np.array_equal(holding.stage(0).x, X[:7])
        assert np.array_equal(holding.test.x, X[7:])


def test_bytes_stay_bytes_and_other_numbers_become_float32() -> None:
    images = np.zeros((5, 2, 2), np.uint8)
    assert shoal.Fleet({"a": (images, Y[:5])})["a"].test.x.dtype == np.uint8
    assert shoal.Fleet({"a": (X.astype(np.float64), Y)})["a"].test.x.dtype == np.float32
    assert shoal.Fleet({"a": (X.tolist(), Y[:, None].tolist())})["a"].test.y is not None


NAN = np.where(np.arange(40).reshape(10, 4) == 5, np.nan, X)


@pytest.mark.parametrize(
    ("devices", "text"),
    [
        ({}, "the fleet has no devices"),
        ([(X, Y)], "a mapping of names to data, not a list"),
        ({3: (X, Y)}, "a device is named 3"),
        ({"a": X}, "a is given a ndarray"),
        ({"a": (X, Y, X)}, "a is given 3 things"),
        ({"a": {"x": X}}, "a has 'x'"),
        ({"a": {"x": X, "labels": Y}}, "a has 'x', 'labels'"),
        ({"a": {"x": X, "y": Y, "x_test": X}}, "a has 'x', 'y', 'x_test' .give .x. and .y., and perhaps"),
        ({"a": (X, None)}, "a has no labels"),
        ({"a": shoal.Dataset(X)}, "a has no labels"),
        ({"a": (X, Y[:9])}, "a: x has 10 examples but y has 9 labels"),
        ({"a": (X, np.stack([Y, Y], 1))}, r"a: y has shape \(10, 2\) .*of one-hot labels, y.argmax"),
        ({"a": (X[:0], Y[:0])}, "a has no samples"),
        ({"a": (X[:1], Y[:1])}, "a has 1 sample .a device needs at least 3"),
        ({"a": (X[:2], Y[:2])}, "a has 2 samples .a device needs at least 3"),
        ({"a": (X[:, 0], Y)}, r"a: x has shape \(10,\), so a sample has no features"),
        ({"a": (NAN, Y)}, "a: x holds nan in row 1, column 1"),
        ({"a": (np.array([["b"]] * 10), Y)}, "a: x holds text, not numbers"),
        ({"a": (np.ma.masked_greater(X, 1.0), Y)}, "a: x has masked values .fill them, or drop such samples"),
        ({"a": (X, ["ill"] * 9 + [""])}, "a: the label of row 9 .from 0. is missing .fill or drop"),
        ({"a": (X, ["ill"] * 9 + [None])}, "a: the label of row 9 .from 0. is missing .fill or drop"),
        ({"a": (X, Y + 0.5)}, r"a: the label of row 0 .from 0. is \d.5 .classes are names or whole numbers"),
        ({"a": shoal.Dataset(X, Y + 0.5)}, r"a: the label of row 0 .from 0. is \d.5 .*regression=True"),
        (
            {"a": (X, np.array(["b", 1] * 5, object))},
            "a: the label of row 0 .from 0. is text, and .* row 1 .* a number .write all labels in one way",
        ),
        ({"a": (X, Y), "b": (X, ["u", "v"] * 5)}, "the labels of b are text, and those of a are numbers"),
        ({"a": (X, np.array(["2024-01-01"] * 10, "M8[D]"))}, r"a: the labels are dates"),
        ({"a": (X, Y, X[:, :3], Y)}, r"a: a test sample has shape \(3,\), and \(4,\) for training"),
        ({"a": ([[1.0], [1.0, 2.0]], [0, 1])}, "a: x is ragged"),
        ({"a": (X, Y), "b": (X[:, :3], Y)}, r"a sample of b has shape \(3,\), and one of a has \(4,\)"),
    ],
)
def test_what_cannot_be_a_fleet_is_refused_with_the_device_and_the_reason(devices: Any, text: str) -> None:
    with pytest.raises(DataFault, match=text):
        shoal.Fleet(devices)


def test_a_test_share_is_below_one() -> None:
    with pytest.raises(DataFault, match=r"test is 1\.5"):
        shoal.Fleet({"a": (X, Y)}, test=1.5)


def test_without_a_test_share_two_samples_are_enough() -> None:
    assert len(shoal.Fleet({"a": (X[:2], Y[:2])}, test=0.0)["a"].stage(0)) == 2
    with pytest.raises(DataFault, match=r"a has 1 sample \(a device needs at least 2"):
        shoal.Fleet({"a": (X[:1], Y[:1])}, test=0.0)


# -- labels ---------------------------------------------------------------------------------------------


def numbers(fleet: shoal.Fleet, device: str) -> set[int]:
    """All classes of a device."""
    holding = fleet[device]
    parts = (holding.stage(0).y, holding.test.y)
    return {int(label) for part in parts if part is not None for label in part}


@pytest.mark.parametrize(
    ("labels", "names", "said"),
    [
        (Y, None, "2 classes"),
        (Y.astype(float), None, "2 classes"),
        (Y.astype(str), None, "2 classes"),
        (Y + 1, ("1", "2"), "2 classes; classes 1 to 2 are numbered from 0"),
        (2 * Y, ("0", "2"), "2 classes; classes 0, 2 are numbered from 0"),
        (2 * Y - 1, ("-1", "1"), "2 classes; classes -1, 1 are numbered from 0"),
        (Y > 0, ("False", "True"), "2 classes: False, True"),
        (np.where(Y > 0, "well", "ill"), ("ill", "well"), "2 classes: ill, well"),
        (np.where(Y > 0, "well", "ill").astype(object), ("ill", "well"), "2 classes: ill, well"),
        (np.where(Y > 0, b"well", b"ill"), ("ill", "well"), "2 classes: ill, well"),
        (np.where(Y > 0, "02", "01"), ("01", "02"), "2 classes: 01, 02"),
    ],
)
def test_labels_become_classes_from_0_that_keep_their_names(labels: Any, names: Any, said: str) -> None:
    fleet = shoal.Fleet({"a": (X, labels)}, test=0.5)
    assert (fleet.class_names, fleet.classes) == (names, 2)
    assert repr(fleet).endswith(f"shape (4,), {said}")
    parts = (fleet["a"].stage(0), fleet["a"].test)
    found = {tuple(row): int(label) for part in parts for row, label in zip(part.x, part.y, strict=True)}
    assert [found[tuple(row)] for row in X] == Y.tolist()


def test_names_are_those_of_all_devices_and_of_test_parts() -> None:
    """A class may be missing on a device, and may be in a test part only."""
    cat, dog, eel = (np.array([name] * 10) for name in ("cat", "dog", "eel"))
    fleet = shoal.Fleet({"b": (X, dog, X, eel), "a": (X, cat)})
    assert fleet.class_names == ("cat", "dog", "eel")
    assert (numbers(fleet, "b"), numbers(fleet, "a")) == ({1, 2}, {0})


@pytest.mark.parametrize("values", [range(1000, 1050), [f"patient {number}" for number in range(50)]])
def test_labels_that_are_all_different_are_no_classes(values: Any) -> None:
    x, y = np.zeros((25, 2)), np.array(values)
    with pytest.raises(DataFault, match="the labels of 50 samples have 50 values") as caught:
        shoal.Fleet({"a": (x, y[:25]), "b": (x, y[25:])})
    assert "regression=True" in caught.value.hint


def test_a_sparse_matrix_is_its_array() -> None:
    sparse = pytest.importorskip("scipy.sparse", reason="scipy is not installed")
    x, y = np.eye(6), np.arange(6) % 2
    found, wanted = (shoal.Fleet({"a": (each, y)})["a"].test.x for each in (sparse.csr_matrix(x), x))
    assert found.tolist() == wanted.tolist()


def test_many_names_are_cut_in_print_and_not_in_the_fleet() -> None:
    names = [f"kind-{number:02}" for number in range(10)]
    fleet = shoal.Fleet({"a": (X, names)})
    assert fleet.class_names == tuple(names)
    assert repr(fleet).endswith("10 classes: " + ", ".join(names[:8]) + " and 2 more")


def test_a_data_set_with_labels_from_1_is_numbered_too_and_its_samples_stay_as_they_are() -> None:
    tokens = np.arange(40).reshape(10, 4)
    fleet = shoal.Fleet({"a": shoal.Dataset(tokens, Y + 1)})
    assert fleet.class_names == ("1", "2")
    assert fleet["a"].test.x.dtype == np.int64


def test_numbers_to_predict_are_not_touched() -> None:
    for data in ((X, Y + 3), shoal.Dataset(X, Y + 3)):
        fleet = shoal.Fleet({"a": data}, regression=True)
        assert fleet.class_names is None
        assert repr(fleet).endswith("shape (4,), numbers to predict")
        assert set(fleet["a"].stage(0).y.tolist()) == {3.0, 4.0}


# -- torch ----------------------------------------------------------------------------------------------


def test_tensors_and_data_sets_of_torch() -> None:
    x, y = torch.from_numpy(X).requires_grad_(), torch.from_numpy(Y)
    whole = TensorDataset(x, y)
    first, second = random_split(whole, [6, 4], torch.Generator().manual_seed(0))
    fleet = shoal.Fleet({"pair": (x, y), "set": whole, "part": first, "rest": Subset(second, [0, 1, 2])})
    assert [len(one.stage(0)) + len(one.test) for one in fleet.values()] == [10, 10, 6, 3]
    rows = np.concatenate([fleet["part"].stage(0).x, fleet["part"].test.x])
    assert sorted(map(tuple, rows)) == sorted(map(tuple, X[first.indices]))
    assert shoal.Fleet({"a": (x.bfloat16(), y)})["a"].test.x.dtype == np.float32


class Own(torch.utils.data.Dataset):
    """A data set as a user writes it."""

    def __init__(self, name: Any = "ill") -> None:
        self.name = name

    def __len__(self) -> int:
        return 10

    def __getitem__(self, number: int) -> Any:
        if number == 7 and self.name is None:
            raise KeyError("no such file")
        return torch.from_numpy(X[number]), self.name if Y[number] else torch.tensor(0)


def test_a_data_set_of_ones_own_and_a_list_are_read_item_by_item() -> None:
    fleet = shoal.Fleet({"own": Own(torch.tensor(1)), "part": Subset(Own(1), range(5))})
    assert (len(fleet["own"].stage(0)), len(fleet["part"].stage(0))) == (8, 4)
    assert numbers(fleet, "own") == {0, 1}
    listed = shoal.Fleet({"a": [(row, "ill" if label else "well") for row, label in zip(X, Y, strict=True)]})
    assert listed.class_names == ("ill", "well")
    pair = shoal.Fleet({"a": [X.tolist(), Y.tolist()]})  # which is a pair (x, y), as before
    assert len(pair["a"].stage(0)) == 8


class Marked(TensorDataset):
    """A data set that does something to its samples, as augmentation does."""

    def __getitem__(self, number: int) -> tuple[torch.Tensor, ...]:
        x, y = super().__getitem__(number)
        return torch.full_like(x, 7.0), y


def test_what_a_class_derived_from_one_of_torch_does_to_its_samples_is_done() -> None:
    marked = Marked(torch.from_numpy(X), torch.from_numpy(Y))
    fleet = shoal.Fleet({"all": marked, "part": Subset(marked, range(5))})
    assert all((fleet[name].test.x == 7.0).all() for name in fleet)


class Endless(torch.utils.data.IterableDataset):
    def __iter__(self) -> Any:
        yield X[0], 0


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (DataLoader(TensorDataset(torch.zeros(4, 2))), "a is given a DataLoader.*give its data set"),
        (Endless(), r"a is given a Endless, which has no length .give list\(dataset\)"),
        (TensorDataset(torch.zeros(4, 2)), "a is given a data set of 1 tensors .give it x and y"),
        (
            Own(None),
            r"a: sample 7 .* KeyError: 'no such file' .look at test_fleet.py, line \d+, in __getitem__",
        ),
        (
            ([torch.zeros(2, requires_grad=True)] * 4, Y[:4]),
            "a: x cannot be read as an array: .*requires grad",
        ),
        ([(X[0], 0), (X[1, :3], 1)], r"a: sample 1 has shape \(3,\), and sample 0 has \(4,\)"),
        (Subset([1, 2, 3], [0, 1, 2]), "a: sample 0 of its data set is a int .samples are pairs"),
        (Subset(TensorDataset(torch.zeros(4, 2), torch.zeros(4)), []), "a has no samples"),
    ],
)
def test_what_cannot_be_read_as_a_data_set_is_named(data: Any, text: str) -> None:
    with pytest.raises(DataFault, match=text):
        shoal.Fleet({"a": data})


# -- pandas ---------------------------------------------------------------------------------------------


def frame() -> Any:
    """Two wards in one frame, with a column of each kind that is a feature."""
    pandas = pytest.importorskip("pandas")
    found = pandas.DataFrame(X, columns=["age", "pulse", "weight", "height"])
    found["smokes"] = found["age"] > 0
    found["visits"] = pandas.array(range(10), dtype="Int64")
    found["ward"] = ["west", "east"] * 5
    found["ill"] = pandas.Categorical(np.where(Y > 0, "yes", "no"))
    return found


def test_a_frame_becomes_a_fleet() -> None:
    made = frame()
    fleet = shoal.Fleet.from_frame(made, device="ward", label="ill", test=0.4)
    assert list(fleet) == ["west", "east"]
    assert fleet.class_names == ("no", "yes")
    assert (fleet.shape, len(fleet["west"].test)) == ((6,), 2)
    own = made[made["ward"] == "west"]
    features = own[["age", "pulse", "weight", "height", "smokes", "visits"]].astype(np.float32).to_numpy()
    parts = (fleet["west"].stage(0), fleet["west"].test)
    found = {tuple(row): int(label) for part in parts for row, label in zip(part.x, part.y, strict=True)}
    assert found == {tuple(row): int(label == "yes") for row, label in zip(features, own["ill"], strict=True)}
    again = shoal.Fleet({"west": (own.drop(columns=["ward", "ill"]), own["ill"])}, test=0.4)
    assert np.array_equal(again["west"].test.x, fleet["west"].test.x)
    numbers_too = shoal.Fleet.from_frame(
        made.assign(ward=made["visits"] % 2, ill=made["pulse"]), "ward", "ill", regression=True
    )
    assert list(numbers_too) == ["0", "1"]
    assert numbers_too["0"].test.y.dtype == np.float32


def test_columns_in_another_order_are_refused_and_not_taken_for_other_features() -> None:
    one = frame().drop(columns=["ward", "ill"])
    turned, said = one[list(one.columns)[::-1]], "has the column 'visits' where the fleet has 'age'"
    with pytest.raises(DataFault, match=f"b {said} .bring the columns into one order"):
        shoal.Fleet({"a": (one, Y), "b": (turned, Y)})
    with pytest.raises(DataFault, match=f"a {said}"):
        shoal.Fleet({"a": {"x": one, "y": Y, "x_test": turned, "y_test": Y}})
    for fleet in (shoal.Fleet({"a": (one, Y)}), shoal.Fleet.from_frame(frame(), "ward", "ill")):
        with pytest.raises(DataFault, match=f"newcomer {said}"):
            fleet.read("newcomer", turned)
        assert len(fleet.read("newcomer", one)) == 10


def test_a_frame_of_bytes_is_of_pixels() -> None:
    pandas = pytest.importorskip("pandas")
    pixels = pandas.DataFrame(np.arange(20, dtype=np.uint8).reshape(10, 2))
    assert shoal.Fleet({"a": (pixels, Y)})["a"].test.x.dtype == np.uint8


def changed(column: str, row: int, value: Any) -> Any:
    """The frame with another value in one place."""
    found = frame()
    found[column] = found[column].astype(object)
    found.loc[row, column] = value
    return found


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: [1], "a frame is a pandas.DataFrame, not a list"),
        (
            lambda: frame().rename(columns={"ill": "Ill"}),
            'has no column .ill., .* labels .did you mean "Ill"',
        ),
        (lambda: frame().rename(columns={"age": "ill"}), "two columns of the frame are called 'ill'"),
        (
            lambda: frame().assign(city="Basel"),
            "column 'city' is text, such as 'Basel' .leave it out: .*, or make numbers of it: .*get_dummies",
        ),
        (lambda: frame().assign(born=np.datetime64("2001-01-01")), "column 'born' has times"),
        (lambda: frame().assign(kind=frame()["ill"]), "column 'kind' is text, such as 'yes'"),
        (lambda: frame().assign(kind=[{}] * 10), "column 'kind' has things of type dict"),
        (lambda: changed("pulse", 3, None), r"column 'pulse' is missing in row 3 \(from 0\), of east"),
        (lambda: changed("visits", 2, np.inf), r"column 'visits' is inf in row 2 \(from 0\), of west"),
        (lambda: changed("ill", 4, np.nan), r"column 'ill' is missing in row 4 \(from 0\), of west"),
        (lambda: changed("ward", 5, None), r"column 'ward' is missing in row 5 \(from 0\)"),
        (lambda: frame()[["ward", "ill"]], "has no column of features"),
        (lambda: frame().iloc[:3], "west has 2 samples .a device needs at least 3"),
    ],
)
def test_what_is_wrong_in_a_frame_is_named_with_column_row_and_device(make: Any, text: str) -> None:
    with pytest.raises(DataFault, match=text):
        shoal.Fleet.from_frame(make(), device="ward", label="ill")


def test_a_frame_in_the_wrong_place_is_answered_with_the_right_call() -> None:
    with pytest.raises(
        DataFault, match=r"a is given a DataFrame .give .frame.drop.columns='ill'., frame.'ill'"
    ):
        shoal.Fleet({"a": frame()})
    with pytest.raises(DataFault, match=r"not a DataFrame .use shoal.Fleet.from_frame"):
        shoal.Fleet(frame())
    with pytest.raises(DataFault, match="'ill' is the column of devices and of labels"):
        shoal.Fleet.from_frame(frame(), device="ill", label="ill")


def test_an_error_is_shown_at_the_users_own_line(tmp_path: Path) -> None:
    """With one line of ours, which raises it, and neither causes nor the way there."""
    script = tmp_path / "mine.py"
    script.write_text(
        "import numpy as np, shoal\nx = np.zeros((9, 4))\nfleet = shoal.Fleet({'a': (x, x[:, 0] + 0.5)})\n"
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)
    lines = [line.strip() for line in done.stderr.splitlines()]
    assert lines[1:3] == [
        f'File "{script}", line 3, in <module>',
        "fleet = shoal.Fleet({'a': (x, x[:, 0] + 0.5)})",
    ]
    assert len([line for line in lines if line.startswith("File ")]) == 2
    assert lines[-1].startswith("shoal.core.errors.DataFault: a: the label of row 0 (from 0) is 0.5")


def test_a_fleet_of_arrays_loads_neither_torch_nor_pandas() -> None:
    program = (
        "import sys, numpy as np, shoal\n"
        "shoal.Fleet({'a': (np.zeros((9, 4)), ['ill', 'well', 'well'] * 3)})\n"
        "print(*sorted({'torch', 'pandas', 'sklearn'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
