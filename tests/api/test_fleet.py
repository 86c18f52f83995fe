"""What a fleet may be made of, and what is said of everything else."""

from typing import Any

import numpy as np
import pytest

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
        ({"a": (X, None)}, "a has no labels"),
        ({"a": shoal.Dataset(X)}, "a has no labels"),
        ({"a": (X, Y[:9])}, "a: x has 10 examples but y has 9 labels"),
        ({"a": (X, np.stack([Y, Y], 1))}, r"a: y has shape \(10, 2\)"),
        ({"a": (X[:0], Y[:0])}, "a has no samples"),
        ({"a": (X[:1], Y[:1])}, "a has 1 sample .a device needs at least 3"),
        ({"a": (X[:2], Y[:2])}, "a has 2 samples .a device needs at least 3"),
        ({"a": (X[:, 0], Y)}, r"a: x has shape \(10,\), so a sample has no features"),
        ({"a": (NAN, Y)}, "a: x holds nan in row 1, column 1"),
        ({"a": (np.array([["b"]] * 10), Y)}, "a: x holds <U1, not numbers"),
        ({"a": (X, np.array(["ill"] * 10))}, "a: the labels are <U3, not numbers .number the classes from 0"),
        ({"a": (X, Y - 1)}, "a: the label of row . .from 0. is -1"),
        ({"a": (X, Y + 0.5)}, r"a: the label of row 0 .from 0. is \d.5"),
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
