import numpy as np
import pytest

from shoal.core.device_kit.learner import initial_weights
from shoal.core.types import Tensors
from shoal_lab.personal import Personal, number, recall, remember
from tests.core.device_kit.conftest import context_of, small

MODEL = initial_weights(small(), 1)


def kept(**numbers: float) -> Tensors:
    context = context_of()
    remember(context, Personal(MODEL, {name: number(value) for name, value in numbers.items()}))
    assert context.remembered is not None
    return context.remembered


def test_a_model_and_its_numbers_come_back_as_they_were() -> None:
    found = recall(context_of().for_task(0, kept(alpha=0.25)), MODEL, alpha=())
    assert found is not None
    assert list(found.model) == list(MODEL)
    assert all((found.model[name] == MODEL[name]).all() for name in MODEL)
    assert found.numbers["alpha"] == 0.25


def test_at_first_there_is_nothing() -> None:
    assert recall(context_of(), MODEL) is None


@pytest.mark.parametrize(
    "memory",
    [
        kept(),
        kept(beta=0.5),
        {},
        {**kept(alpha=0.5), "numbers/alpha": np.zeros(2)},
        {**kept(alpha=0.5), "model/other": np.zeros(2, np.float32)},
        {name: array for name, array in kept(alpha=0.5).items() if name != f"model/{next(iter(MODEL))}"},
        kept(alpha=float("nan")),
        {name: array.astype(np.float64) for name, array in kept(alpha=0.5).items()},
    ],
)
def test_what_does_not_fit_is_as_nothing(memory: Tensors) -> None:
    assert recall(context_of().for_task(0, memory), MODEL, alpha=()) is None
