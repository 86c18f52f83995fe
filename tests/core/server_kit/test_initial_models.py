"""Several initial models of one."""

import numpy as np

from shoal.core.data.scale import DEVIATION, MEAN
from shoal.core.exchange.tensors import digest
from shoal.core.server_kit.initial import several
from shoal.core.types import Tensors

MODEL: Tensors = {
    "weight": np.random.default_rng(0).normal(size=(8, 5)).astype(np.float32),
    "norm": np.ones(8, np.float32),
    "steps": np.array([1, 2, 3]),
}


def test_the_first_is_the_model_and_the_others_hold_the_same_values_elsewhere() -> None:
    found = several([MODEL], ("c0", "c1", "c2"))
    assert digest(found["c0"]) == digest(MODEL)
    assert len({digest(one) for one in found.values()}) == 3
    for one in found.values():
        assert one["weight"].dtype == np.float32
        np.testing.assert_array_equal(np.sort(one["weight"], axis=None), np.sort(MODEL["weight"], axis=None))
        np.testing.assert_array_equal(one["norm"], MODEL["norm"])
        np.testing.assert_array_equal(one["steps"], MODEL["steps"])


def test_models_that_are_there_are_taken_first() -> None:
    other = {name: array + 1 for name, array in MODEL.items()}
    found = several([MODEL, other], ("c0", "c1", "c2"))
    assert found["c1"] is other
    assert digest(found["c2"]) not in {digest(MODEL), digest(other)}
    assert list(several([MODEL, other], ("c0",))) == ["c0"]


def test_the_same_at_every_call() -> None:
    first, again = (several([MODEL], ("c0", "c1")) for _ in range(2))
    assert digest(first["c1"]) == digest(again["c1"])


def test_models_that_are_equal_count_as_one_and_the_scale_of_the_inputs_stays() -> None:
    scale = {MEAN: np.array([1.0, 2.0], np.float32), DEVIATION: np.array([3.0, 4.0], np.float32)}
    given = [{**MODEL, **scale} for _ in range(3)]
    found = several(given, ("c0", "c1", "c2"))
    assert len({digest(one) for one in found.values()}) == 3
    assert digest(found["c1"]) == digest({**several([MODEL], ("c0", "c1"))["c1"], **scale})
