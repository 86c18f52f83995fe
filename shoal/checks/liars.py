"""The rule about liars: two devices of ten, or one of sixty, send their updates reversed and ten times as
long, and claim more samples than there are."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from shoal.checks.small_fleet import Device, contexts, data, first_model, learner
from shoal.checks.subject import SMALL, Subject, expect
from shoal.core.algorithm import measurement
from shoal.core.data.dataset import Dataset
from shoal.core.data.views import Views
from shoal.core.device_kit.context import DeviceContext
from shoal.core.engine.rounds import RoundPolicy
from shoal.core.engine.simulate import simulate
from shoal.core.exchange.messages import Evaluated, Message
from shoal.core.exchange.payload import fields_of
from shoal.core.types import DeviceId, Tensors

FLEETS = {"two of ten": (10, 2, 60), "one of sixty": (60, 1, 12)}
"""By name: devices, how many of them lie, and the samples of each."""
TIMES, CLAIM = -10.0, 1 << 40
LEARNING = {**SMALL, "inputs": "raw", "rounds": 3, "epochs": 3, "learning_rate": 0.1, "batch_size": 4}
"""With this, the fleets learn digits in three rounds."""
GROUPS = 2
"""At most, where their number is given: alike devices are split by chance, and four groups vary more."""
ALLOWED = 7.5
"""Points of accuracy: what three rounds vary by if other devices train in the first one; SRFCA, whose liars
are left out of every round, by 7.0. Where liars decide, the others are at 10 %."""


def bears_liars(subject: Subject) -> None:
    """Two lying devices of ten, and one of sixty, take no accuracy of the others, unless the card says so."""
    for name in FLEETS:
        bears(subject, name)


def bears(subject: Subject, name: str) -> None:
    """The rule with one of `FLEETS`."""
    if subject.card.liars(subject.parameters()):
        return
    honest, beside = (reached(subject, name, lying) for lying in (False, True))
    expect(
        beside >= honest - ALLOWED,
        f"{name} devices lie, and the others fall from {honest:.1f} to {beside:.1f} %: average models by "
        "`combined_models`; if liars can be a quarter of a group, say on the card what they can do "
        "(`liars`)",
    )


def reached(subject: Subject, name: str, lying: bool) -> float:
    """The mean accuracy of the honest devices, in percent. lying: else the liars are not there."""
    devices, liars, samples = FLEETS[name]
    parts = [data(number, (0,), samples) for number in range(devices)]
    memories: dict[DeviceId, Tensors] = {}
    fleet = dict(
        sorted(contexts(subject.card, [Views.of(part, part) for part in parts], None, memories).items())
    )
    for liar in [f"d{number}" for number in range(liars)]:
        device = fleet.pop(liar)
        if lying:
            fleet[liar] = _liar(device)
    half = subject.card.server()
    groups = {"clusters": GROUPS} if getattr(subject.parameters(), "clusters", 0) > GROUPS else {}
    state = half.start(first_model(), subject.parameters(LEARNING, **groups))
    outcome = simulate(half, state, fleet, RoundPolicy(minimum=devices - liars), 11)
    expect(not outcome.failed, f"with {name} lying the run fails: {outcome.reason}")
    found = []
    for number in range(liars, devices):
        honest, test = f"d{number}", _all_but(parts, number)
        context = DeviceContext(learner(), Views.of(test, test), "cpu", 0, np.random.default_rng(0))
        task = measurement(half, outcome.state, outcome.state.assignments[honest])
        answer = subject.card.device().perform(task, context.for_task(0, memories.get(honest), task))
        assert isinstance(answer, Evaluated)
        found.append(answer.accuracy)
    return 100.0 * float(np.mean(found))


def _all_but(parts: list[Dataset], number: int) -> Dataset:
    """Samples that the device has not trained on: those of the two after it."""
    others = [parts[(number + 1) % len(parts)], parts[(number + 2) % len(parts)]]
    return Dataset(np.concatenate([part.x for part in others]), np.concatenate([part.y for part in others]))


def _liar(device: Device) -> Device:
    def perform(task: Message, seed: int) -> Message:
        honest = device(task, seed)
        bases = [base for name in fields_of(type(task)) for base in _models(getattr(task, name))]
        changed: dict[str, Any] = {}
        for name in fields_of(type(honest)):
            value = getattr(honest, name)
            if models := _models(value):
                lies = tuple(_reversed(base, model) for base, model in zip(bases, models, strict=False))
                changed[name] = lies if isinstance(value, tuple) else lies[0]
        if hasattr(honest, "examples"):
            changed["examples"] = CLAIM
        return replace(honest, **changed)  # type: ignore[type-var]

    return perform


def _models(value: Any) -> tuple[Tensors, ...]:
    several = value if isinstance(value, tuple) else (value,)
    return several if several and all(isinstance(each, Mapping) for each in several) else ()


def _reversed(base: Tensors, model: Tensors) -> Tensors:
    return {
        name: (base[name] + TIMES * (array - base[name])).astype(array.dtype)
        if array.dtype.kind == "f" and name in base
        else array
        for name, array in model.items()
    }
