"""The rule about odd fleets: one device, one sample, nothing in common."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from shoal.checks.small_fleet import contexts, digits_of, first_model, learner
from shoal.checks.subject import Subject, expect
from shoal.core.algorithm import measurement
from shoal.core.data.views import Views
from shoal.core.device_kit.context import DeviceContext
from shoal.core.engine.rounds import RoundPolicy
from shoal.core.engine.simulate import simulate
from shoal.core.exchange.messages import Evaluated
from shoal.core.types import DeviceId, Tensors

SMALLER: Mapping[str, Any] = {
    "rounds": 3,
    "rate_rounds": 1,
    "epochs": 1,
    "batch_size": 4,
    "clusters": 5,
    "classes": 10,
    "privacy": "off",  # a guarantee takes more samples than there are in odd fleets
}
ODD_FLEETS: Mapping[str, Sequence[tuple[int, int, Sequence[int]]]] = {
    "a single device": [(0, 20, range(10))],
    "all the same": [(0, 20, range(10))] * 3,
    "nothing in common": [(0, 12, [2]), (1, 12, [5]), (2, 12, [8])],
    "one sample in all": [(0, 1, range(10))],
    "one sample beside two classes": [(0, 1, range(10)), (1, 12, (3, 4))],
}
"""By name, for each device: whose digits it has, how many, and of which classes."""


def bears_odd_fleets(subject: Subject) -> None:
    """One device, one sample, nothing in common: a run ends with finite models, or says why it cannot."""
    for name in ODD_FLEETS:
        odd_fleet(subject, name)


def odd_fleet(subject: Subject, name: str) -> str:
    """One of `ODD_FLEETS`: why the run failed; "" where it did not, and all is as it should be."""
    card, parts = subject.card, [digits_of(*each) for each in ODD_FLEETS[name]]
    memories: dict[DeviceId, Tensors] = {}
    devices = contexts(card, [Views.of(part, part) for part in parts], memories=memories)
    server_half = card.server()
    state = server_half.start(first_model(), subject.parameters(SMALLER))
    outcome = simulate(server_half, state, devices, RoundPolicy(minimum=len(parts)), 3)
    if outcome.failed:
        expect(bool(outcome.reason), f"with {name} the run fails and does not say why")
        return outcome.reason
    expect(not outcome.missing, f"with {name} devices are missing: {outcome.missing}")
    for key, model in outcome.state.models.items():
        finite = all(np.isfinite(array).all() for array in model.values())
        expect(finite, f"with {name} the model {key} is not finite")
    for number, part in enumerate(parts):
        device = f"d{number}"
        context = DeviceContext(learner(), Views.of(part, part), "cpu", 0, np.random.default_rng(0))
        task = measurement(server_half, outcome.state, outcome.state.assignments[device])
        for memory in (memories.get(device), None):
            answer = card.device().perform(task, context.for_task(0, memory, task))
            sane = isinstance(answer, Evaluated) and 0.0 <= answer.accuracy <= 1.0
            expect(sane, f"with {name} device {device} measures {answer!r}")
    return ""
