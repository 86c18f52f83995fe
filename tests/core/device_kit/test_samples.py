import warnings

import numpy as np
import pytest
import torch

from shoal.core.data.dataset import Dataset
from shoal.core.device_kit.samples import PASS, Batches, Samples, convert
from shoal.core.errors import DataFault, DeviceFault

CPU = torch.device("cpu")


def rows(count: int) -> Samples:
    return convert(Dataset(np.arange(count, dtype=np.float32)[:, None], np.arange(count)), CPU)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (np.array([[0, 51, 255]], np.uint8), torch.tensor([[0.0, 0.2, 1.0]])),
        (np.array([[0.5, 300.0]], np.float64), torch.tensor([[0.5, 300.0]])),
        (np.array([[0.5]], np.float16), torch.tensor([[0.5]])),
        (np.array([[True, False]]), torch.tensor([[1.0, 0.0]])),
        (np.array([[7, -1]], np.int16), torch.tensor([[7, -1]])),
        (np.array([[70000]], np.uint32), torch.tensor([[70000]])),
    ],
)
def test_numbers_become_what_networks_take(given: np.ndarray, expected: torch.Tensor) -> None:
    x = convert(Dataset(given), CPU).x
    assert x.dtype == expected.dtype
    assert torch.allclose(x, expected)


def test_memory_is_shared_where_the_types_allow_it() -> None:
    data = Dataset(np.zeros((4, 2), np.float32), np.zeros(4, np.int64))
    samples = convert(data, CPU)
    assert np.shares_memory(samples.x.numpy(), data.x)
    assert np.shares_memory(samples.labels.numpy(), data.y)


def test_read_only_data_are_copied_without_a_warning() -> None:
    x = np.zeros((4, 2), np.float32)
    x.flags.writeable = False
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not np.shares_memory(convert(Dataset(x), CPU).x.numpy(), x)


def test_nan_and_infinity_are_counted_by_sample() -> None:
    x = np.zeros((4, 3), np.float32)
    x[1, :2], x[3, 0] = np.nan, np.inf
    with pytest.raises(DataFault, match="2 of 4 samples"):
        convert(Dataset(x), CPU)
    with pytest.raises(DataFault, match="1 of 3 samples"):
        convert(Dataset(np.array([0.0, np.nan, 1.0])), CPU)


@pytest.mark.parametrize("x", [np.array(["a"]), np.array([1j]), np.array([None])])
def test_what_is_no_number_is_refused(x: np.ndarray) -> None:
    with pytest.raises(DataFault, match="not numbers"):
        convert(Dataset(x), CPU)


def test_classes_are_one_more_than_the_highest_label() -> None:
    assert convert(Dataset(np.zeros((2, 1)), np.array([0, 6])), CPU).classes == 7
    assert convert(Dataset(np.zeros((2, 1))), CPU).classes == 0
    assert convert(Dataset(np.zeros((0, 1)), np.zeros(0, np.int64)), CPU).classes == 0


def test_missing_labels_are_said_to_be_missing() -> None:
    with pytest.raises(DeviceFault, match="needs labels"):
        _ = convert(Dataset(np.zeros((2, 1))), CPU).labels


@pytest.mark.parametrize("count", [1, PASS, PASS + 1, 3 * PASS - 1])
def test_passes_cover_all_in_order(count: int) -> None:
    samples = rows(count)
    seen = [samples.x[part].flatten() for part in samples.passes()]
    assert torch.cat(seen).tolist() == list(range(count))
    assert max(map(len, seen)) <= PASS


def test_an_epoch_has_each_sample_once_with_its_label_and_keeps_the_last_part() -> None:
    batches = Batches(rows(10), 4, seed=3)
    epoch = list(batches)
    assert [len(x) for x, _ in epoch] == [4, 4, 2]
    assert len(batches) == 3
    assert all(torch.equal(x.flatten().long(), y) for x, y in epoch)
    assert sorted(torch.cat([y for _, y in epoch]).tolist()) == list(range(10))


def test_orders_differ_by_epoch_and_by_seed_and_are_the_same_for_the_same_seed() -> None:
    def orders(seed: int) -> list[list[int]]:
        batches = Batches(rows(20), 8, seed)
        return [torch.cat([y for _, y in batches]).tolist() for _ in range(2)]

    first = orders(5)
    torch.manual_seed(99)  # no other use of chance may matter
    assert orders(5) == first
    assert first[0] != first[1]
    assert orders(6)[0] != first[0]


def test_batches_of_more_than_all() -> None:
    assert [len(x) for x, _ in Batches(rows(3), 64, seed=0)] == [3]
