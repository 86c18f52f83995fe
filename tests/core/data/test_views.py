import numpy as np
import pytest
from sklearn.model_selection import train_test_split

from shoal.core.data.dataset import Dataset
from shoal.core.data.views import Views
from shoal.core.errors import DataFault


def rows(count: int) -> Dataset:
    return Dataset(np.arange(count), np.arange(count) * 10)


@pytest.mark.parametrize("count", [2, 3, 4, 5, 6, 7, 10, 15, 101, 1000, 4801])
def test_holds_out_what_scikit_learn_would(count: int) -> None:
    train, held_out = train_test_split(np.arange(count), test_size=0.2, random_state=42)
    views = Views.of(rows(count))
    assert views.train.x.tolist() == train.tolist()
    assert views.held_out.x.tolist() == held_out.tolist()


def test_known_rows_of_ten() -> None:
    views = Views.of(rows(10))
    assert views.held_out.x.tolist() == [8, 1]
    assert views.train.x.tolist() == [5, 0, 7, 2, 9, 4, 3, 6]


def test_labels_stay_with_their_rows() -> None:
    views = Views.of(rows(20))
    for part in (views.train, views.held_out):
        assert part.y is not None
        assert (part.y == part.x * 10).all()


def test_unlabelled_data_are_all_in_one_part() -> None:
    views = Views.of(Dataset(np.arange(10)))
    assert views.train.x.tolist() == list(range(10))
    assert len(views.held_out) == 0
    assert views.test is None


def test_a_single_sample_is_to_train_on() -> None:
    views = Views.of(rows(1))
    assert (len(views.train), len(views.held_out)) == (1, 0)


def test_no_sample_at_all_is_the_owners_fault() -> None:
    with pytest.raises(DataFault, match="no samples"):
        Views.of(rows(0))


def test_the_test_part_is_passed_on() -> None:
    test = rows(3)
    assert Views.of(rows(10), test).test is test


@pytest.mark.parametrize(("count", "share"), [(10, 0.1), (30, 0.1), (180, 0.1), (7, 0.5), (11, 0.33)])
def test_another_share_is_held_out_as_scikit_learn_would(count: int, share: float) -> None:
    train, held_out = train_test_split(np.arange(count), test_size=share, random_state=42)
    views = Views.of(rows(count), share=share)
    assert views.train.x.tolist() == train.tolist()
    assert views.held_out.x.tolist() == held_out.tolist()


def test_nothing_is_held_out_where_that_is_asked_for_and_one_sample_always_stays() -> None:
    views = Views.of(rows(10), share=0.0)
    assert (views.train.x.tolist(), len(views.held_out)) == (list(range(10)), 0)
    assert len(Views.of(rows(2), share=0.9).train) == 1
