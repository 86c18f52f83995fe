import numpy as np
import pytest

from shoal.core.data.dataset import Dataset


def test_subset_keeps_order_and_repeats() -> None:
    data = Dataset(np.arange(10).reshape(5, 2), np.array([4, 3, 2, 1, 0]))
    part = data.subset(np.array([3, 0, 3]))
    assert part.x.tolist() == [[6, 7], [0, 1], [6, 7]]
    assert part.y is not None
    assert part.y.tolist() == [1, 4, 1]
    assert len(part) == 3


def test_unlabelled_stays_unlabelled() -> None:
    assert Dataset(np.zeros((4, 2))).subset(np.array([1])).y is None


def test_any_integer_labels_become_int64() -> None:
    data = Dataset(np.zeros((2, 1)), np.array([0, 255], np.uint8))
    assert data.y is not None
    assert data.y.dtype == np.int64
    assert data.y.tolist() == [0, 255]


def test_int64_labels_are_shared_not_copied() -> None:
    y = np.array([0, 1])
    assert Dataset(np.zeros((2, 1)), y).y is y


def test_different_lengths_are_both_named() -> None:
    with pytest.raises(ValueError, match="3 examples but y has 2 labels"):
        Dataset(np.zeros((3, 2)), np.array([0, 1]))


@pytest.mark.parametrize(
    ("y", "problem"),
    [
        (np.array([0.0, np.nan]), "NaN"),
        (np.array([[0.0], [1.0]]), "shape"),
        (np.array([True, False]), "bool"),
        (np.array([[0], [1]]), "shape"),
        (np.array([0, -1]), "negative class -1"),
    ],
)
def test_labels_that_are_not_classes_are_refused(y: np.ndarray, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        Dataset(np.zeros((2, 1)), y)


def test_an_empty_set_is_a_set() -> None:
    assert len(Dataset(np.zeros((0, 2)), np.array([], np.int64))) == 0


def test_numbers_to_predict_are_kept_as_numbers() -> None:
    data = Dataset(np.zeros((3, 2)), np.array([-0.5, 2.0, 1e30]))
    assert data.y is not None
    assert data.y.dtype == np.float32
    assert data.subset([2, 0]).y.tolist() == [np.float32(1e30), -0.5]  # type: ignore[arg-type,union-attr]
