import warnings

import numpy as np
import pytest
import torch
from torch import nn

from shoal.core.device_kit.learner import Learner, builtin
from shoal.core.device_kit.weights import initial_weights, load_weights, tensors_of
from shoal.core.errors import BadPayload, LearnerFault
from shoal.core.exchange.tensors import manifest_of, pack, unpack
from shoal.core.types import Tensors

from .conftest import DEVICES


def packed_views(tensors: Tensors) -> Tensors:
    """What a device gets: read-only views of one run of bytes."""
    return unpack(manifest_of(tensors), memoryview(b"".join(pack(tensors))))


def test_initial_weights_are_those_of_torch_with_that_seed() -> None:
    learner = builtin("lenet5", {"channels": 3})
    torch.manual_seed(42)
    expected = learner.build().state_dict()
    weights = initial_weights(learner, 42)
    assert list(weights) == list(expected)
    for name, tensor in expected.items():
        assert np.array_equal(weights[name], tensor.numpy())


@pytest.mark.parametrize("device", DEVICES)
def test_weights_survive_the_way_there_and_back(device: str) -> None:
    learner = builtin("resnet9", {"size": 16, "classes": 2})
    weights = dict(initial_weights(learner, 1))
    weights["features.0.1.num_batches_tracked"] = np.array(7)
    weights["features.0.1.running_mean"] = np.arange(64, dtype=np.float32)
    model = learner.module(2).to(device)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load_weights(model, packed_views(weights))
    back = tensors_of(model)
    assert list(back) == list(weights)
    for name in weights:
        assert back[name].dtype == weights[name].dtype
        assert back[name].shape == weights[name].shape
        assert np.array_equal(back[name], weights[name])
    assert back["features.0.1.num_batches_tracked"].shape == ()
    assert back["features.0.1.num_batches_tracked"].dtype == np.int64


def test_weights_are_copies_in_both_directions() -> None:
    model = nn.Linear(2, 2)
    before = tensors_of(model)
    given = {name: np.ones_like(array) for name, array in before.items()}
    load_weights(model, given)
    given["weight"][:] = 5.0
    assert not np.array_equal(before["weight"], tensors_of(model)["weight"])
    assert tensors_of(model)["weight"].tolist() == [[1.0, 1.0], [1.0, 1.0]]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda w: w.pop("bias"), "lacks tensor 'bias'"),
        (lambda w: w.update(extra=np.zeros(1)), "unknown tensor 'extra'"),
        (lambda w: w.update(bias=np.zeros(3, np.float32)), "tensor 'bias'"),
        (lambda w: w.update(bias=np.zeros(2)), "tensor 'bias'.*float64"),
    ],
)
def test_other_weights_are_refused_and_nothing_is_loaded(change: object, message: str) -> None:
    model = nn.Linear(2, 2)
    before = tensors_of(model)
    other = {name: array + 1 for name, array in before.items()}
    change(other)  # type: ignore[operator]
    with pytest.raises(BadPayload, match=message):
        load_weights(model, other)
    assert all(np.array_equal(before[name], array) for name, array in tensors_of(model).items())


def test_a_type_that_cannot_travel_is_the_authors_to_hint() -> None:
    with pytest.raises(LearnerFault, match="bfloat16") as caught:
        initial_weights(Learner("half", lambda: nn.Linear(1, 1).bfloat16()), 0)
    assert "float32" in caught.value.hint


def test_state_that_is_no_tensor_cannot_travel() -> None:
    class Noted(nn.Linear):
        def get_extra_state(self) -> dict[str, int]:
            return {"note": 1}

        def set_extra_state(self, state: object) -> None: ...

    with pytest.raises(LearnerFault, match="_extra_state"):
        initial_weights(Learner("noted", lambda: Noted(1, 1)), 0)
