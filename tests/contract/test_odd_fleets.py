"""Fleets that no paper speaks of: what every algorithm makes of them is defined, and is never a crash."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from fedcore.data.dataset import Dataset
from fedcore.data.views import Views
from fedcore.rounds import RoundPolicy
from fedcore.simulate import simulate
from tests.contract.test_every_algorithm import NAMES, prepared
from tests.fleet import benches, data, first_model


@pytest.fixture(autouse=True)
def _one_thread() -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def of_class(number: int, label: int, samples: int = 12) -> Dataset:
    """Digits of one class alone."""
    own = data(number, (0,), 300)
    return own.subset(np.flatnonzero(own.y == label)[:samples])


def together(*parts: Dataset) -> Dataset:
    return Dataset(np.concatenate([part.x for part in parts]), np.concatenate([part.y for part in parts]))  # type: ignore[arg-type]


FLEETS: dict[str, Callable[[], list[Dataset]]] = {
    "a single device": lambda: [data(0, samples=30)],
    "all the same": lambda: [data(0, samples=30)] * 3,
    "nothing in common": lambda: [of_class(0, label) for label in (2, 5, 8)],
    # The sample of the second and the class 9 of the third are there once.
    "hardly anything": lambda: [
        data(0, samples=30),
        of_class(1, 3, 1),
        together(of_class(2, 4), of_class(2, 9, 1)),
    ],
}


@pytest.mark.parametrize("kind", FLEETS)
@pytest.mark.parametrize("name", NAMES)
def test_a_run_comes_to_its_end(name: str, kind: str) -> None:
    """With more clusters asked for than there are devices, where clusters are asked for."""
    card, parameters = prepared(name)
    parts = FLEETS[kind]()
    # A device of one sample has none to hold out, and so brings what to measure on.
    devices = benches(card, [Views.of(part, data(4, samples=5)) for part in parts])
    central = card.central()
    outcome = simulate(central, central.start(first_model(), parameters), devices, RoundPolicy(), 11)
    assert not outcome.failed, outcome.reason
    assert outcome.state.progress == parameters.rounds
    assert set(outcome.state.assignments.values()) <= set(outcome.state.models)
    assert "d0" in outcome.state.assignments
    assert all(np.isfinite(array).all() for one in outcome.state.models.values() for array in one.values())
