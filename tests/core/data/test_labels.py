"""Labels and their names: who numbers them, and what is said of those that cannot be numbered."""

import numpy as np
import pytest

from shoal.core.data import labels
from shoal.core.errors import DataFault
from shoal.shell.config import load


def test_names_are_sorted_over_all_devices_and_each_label_has_its_place() -> None:
    read = {"a": [np.array(["dog"])], "b": [np.array(["cat", "eel"]), np.array(["ape"])]}
    names = labels.names_of(read)
    assert names == ("ape", "cat", "dog", "eel")
    assert labels.placed("b", np.array(["eel", "cat", "eel"]), names).tolist() == [3, 1, 3]


def test_whole_numbers_are_in_the_order_of_their_values() -> None:
    assert labels.names_of({"a": [np.array([10, 2, 1])]}) == ("1", "2", "10")
    assert labels.names_of({"a": [np.array(["10", "2", "1"])]}) == ("1", "2", "10")
    assert labels.names_of({"a": [np.array([1, 0])], "b": [np.array([2])]}) is None
    assert labels.placed("a", np.array([10, 1]), ("1", "2", "10")).tolist() == [2, 0]


def test_numbers_that_no_name_stands_for_are_places() -> None:
    """The names of an owner's settings say what 0 and 1 are, too."""
    assert labels.placed("a", np.array([1, 0]), ("well", "ill")).tolist() == [1, 0]
    assert labels.placed("a", np.array([True, False]), ("well", "ill")).tolist() == [1, 0]
    assert labels.placed("a", np.array([True, False]), labels.BOOLEANS).tolist() == [1, 0]
    with pytest.raises(
        DataFault, match=r"row 1 .from 0. is '2', which is not among the classes .known: ill, well"
    ):
        labels.placed("a", np.array([1, 2]), ("well", "ill"))


@pytest.mark.parametrize(
    ("values", "names", "said"),
    [
        (["cat", "dgo"], ("cat", "dog"), 'row 1 .from 0. is .dgo.*did you mean "dog"'),
        (["cat"], tuple(f"k{number}" for number in range(20)), "known: k0, k1, .* k7 and 12 more"),
        ([0], ("1", "2"), "row 0 .from 0. is '0'"),
    ],
)
def test_a_label_without_a_place_is_named(values: list[object], names: tuple[str, ...], said: str) -> None:
    with pytest.raises(DataFault, match=said):
        labels.placed("a", np.array(values), names)


def test_where_classes_have_no_names_a_word_is_none() -> None:
    with pytest.raises(
        DataFault, match=r"row 0 .from 0. is 'ill', and not a number .classes are whole numbers"
    ):
        labels.placed("a", np.array(["ill"]), None)
    assert labels.placed("a", np.array(["1", "0"]), None).tolist() == [1, 0]


def test_a_device_by_itself_takes_numbers_only() -> None:
    for values in ([2, 0], [2.0, 0.0], ["2", "0"], np.array([2, 0], object)):
        assert labels.numbers("a", np.array(values)).tolist() == [2, 0]
    with pytest.raises(
        DataFault, match=r"row 0 .from 0. is 'cat', and not a number .*data.classes: \[cat, dog\]"
    ):
        labels.numbers("a", np.array(["cat", "dog"]))
    many = sorted(["no", "3.5 mm", "a, b", "- c", " d", "e:", *(f"k{number}" for number in range(20))])
    with pytest.raises(DataFault) as caught:
        labels.numbers("a", np.array(many))
    _, setting = caught.value.hint.split("data.classes: ")
    assert [str(name) for name in load(f"classes: {setting}", "")["classes"]] == many
    for values in ([0, -1], [0, 1 << 31], ["0", "99999999999"]):
        with pytest.raises(DataFault, match="row 1"):
            labels.numbers("a", np.array(values))


@pytest.mark.parametrize("missing", [None, float("nan"), np.float32("nan")])
def test_a_missing_label_among_objects_is_named(missing: object) -> None:
    with pytest.raises(DataFault, match=r"row 1 .from 0. is missing"):
        labels.read("a", np.array(["cat", missing], object))


def test_nan_that_has_become_text_is_missing() -> None:
    with pytest.raises(DataFault, match=r"row 1 .from 0. is missing"):
        labels.read("a", np.array(["cat", np.nan]))


def test_empty_labels_stay_empty() -> None:
    assert labels.placed("a", labels.read("a", np.empty(0)), ("1", "2")).tolist() == []
    assert labels.numbers("a", np.empty(0)).dtype == np.int64
