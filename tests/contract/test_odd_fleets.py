"""What every algorithm must bear: one device, one sample, classes nobody has, more clusters than devices.

It goes to the end with models that are numbers, or it refuses and says what would work; it never breaks.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from shoal.core.algorithm import discover, measurement
from shoal.core.data.dataset import Dataset
from shoal.core.data.views import Views
from shoal.core.device_kit.context import DeviceContext
from shoal.core.engine.rounds import RoundPolicy
from shoal.core.engine.simulate import Outcome, simulate
from shoal.core.exchange.messages import Evaluated
from shoal.core.types import DeviceId, Tensors
from tests.fleet import contexts, data, first_model, learner

ALGORITHMS = discover()
FEW: dict[str, Any] = {
    "rounds": 3,
    "rate_rounds": 1,
    "epochs": 1,
    "batch_size": 4,
    "clusters": 5,
    "classes": 10,
}
FEW |= {"privacy": "off"}  # a guarantee takes more samples than there are here


def some(device: int, count: int, classes: Sequence[int] = range(10)) -> Dataset:
    """So many digits of these classes."""
    own = data(device, (0,))
    assert own.y is not None
    return own.subset(np.flatnonzero(np.isin(own.y, classes))[:count])


def finish(name: str, parts: list[Dataset]) -> tuple[Outcome, dict[DeviceId, Tensors]]:
    card, memories = ALGORITHMS[name], dict[DeviceId, Tensors]()
    known = card.parameters.__dataclass_fields__
    parameters = card.configure("default", {key: value for key, value in FEW.items() if key in known})
    server_half = card.server()
    views = [Views.of(part, part) for part in parts]
    state = server_half.start(first_model(), parameters)
    devices = contexts(card, views, memories=memories)
    return simulate(server_half, state, devices, RoundPolicy(minimum=len(parts)), 3), memories


FLEETS = {
    "a single device": [(0, 20, range(10))],
    "all the same": [(0, 20, range(10))] * 3,
    "nothing in common": [(0, 12, [2]), (1, 12, [5]), (2, 12, [8])],
    "one sample in all": [(0, 1, range(10))],
    "one sample beside two classes": [(0, 1, range(10)), (1, 12, (3, 4))],
}
HELD_OUT = "the held_out part of the data is empty"
REFUSED = {
    ("feroma", "one sample in all"): HELD_OUT,
    ("feroma", "one sample beside two classes"): HELD_OUT,
    ("flux", "one sample in all"): HELD_OUT,
    ("flux", "one sample beside two classes"): HELD_OUT,
}
"""Where devices cannot do what is asked of them, and why: a descriptor takes samples."""


@pytest.mark.parametrize("fleet", FLEETS)
@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_a_run_of_an_odd_fleet_ends_with_sane_models_that_each_device_can_measure(
    name: str, fleet: str
) -> None:
    parts = [some(*each) for each in FLEETS[fleet]]
    outcome, memories = finish(name, parts)
    if (name, fleet) in REFUSED:
        assert outcome.failed
        assert REFUSED[name, fleet] in outcome.reason
        return
    assert not outcome.failed, outcome.reason
    assert not outcome.missing, outcome.missing
    for model in outcome.state.models.values():
        assert all(np.isfinite(array).all() for array in model.values())
    card = ALGORITHMS[name]
    for number, part in enumerate(parts):
        device = f"d{number}"
        context = DeviceContext(learner(), Views.of(part, part), "cpu", 0, np.random.default_rng(0))
        task = measurement(card.server(), outcome.state, outcome.state.assignments[device])
        for memory in (memories.get(device), None):
            answer = card.device().perform(task, context.for_task(0, memory))
            assert isinstance(answer, Evaluated)
            assert 0.0 <= answer.accuracy <= 1.0
