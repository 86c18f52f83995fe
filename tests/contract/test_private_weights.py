"""Where a run asks for DP-SGD, no task of any algorithm lets weights leave without it."""

from collections import Counter
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import pytest

from shoal.core.algorithm import find
from shoal.core.engine.rounds import RoundPolicy
from shoal.core.engine.simulate import simulate
from shoal.core.exchange.messages import Message, PrivateTraining, Protected
from shoal.core.privacy.cost import ORDERS
from shoal.core.privacy.report import OPEN, left_open
from shoal.core.types import DeviceId
from tests.fleet import first_model, fleet

from .test_every_algorithm import NAMES, SMALL

DEVICES = 4
WITH = [name for name in NAMES if hasattr(find(name)[0].parameters, "dp_epsilon")]
PAID = {"private": Protected(1.0, 1.0, 0.1, 5), "curve": tuple(0.1 * order for order in ORDERS)}


@pytest.mark.parametrize("name", WITH)
def test_a_run_that_asks_for_a_guarantee_asks_for_it_in_every_task(name: str) -> None:
    card, variant = find(name)
    changes: dict[str, Any] = {**variant, **SMALL, "dp_epsilon": 3.0}
    if changes.get("clusters") == -1:
        changes["clusters"] = 2
    known = {each.name for each in fields(card.parameters)}
    parameters = card.configure(changes={key: value for key, value in changes.items() if key in known})
    lessons: Counter[DeviceId] = Counter()
    asked: set[PrivateTraining] = set()

    def watched(
        device: DeviceId, perform: Callable[[Message, int], Message]
    ) -> Callable[[Message, int], Message]:
        def answer(task: Any, seed: int) -> Message:
            assert OPEN["weights"] not in left_open(task)
            if getattr(task, "private", None) is None:
                return perform(task, seed)
            lessons[device] += 1
            asked.add(task.private)
            return replace(perform(replace(task, private=None), seed), **PAID)  # as if it were

        return answer

    devices = {each: watched(each, perform) for each, perform in fleet(card, DEVICES).items()}
    half = card.server()
    start = half.start(first_model(), parameters)
    outcome = simulate(half, start, devices, RoundPolicy(minimum=DEVICES), 7)
    assert not outcome.failed
    (one,) = asked
    assert (one.epsilon, one.noise) == (3.0, 0.0)
    assert max(lessons.values()) == one.rounds


def test_they_are_most() -> None:
    assert {"fedavg", "fedprox", "flux", "feroma", "fmcl", "cornflqs"} <= set(WITH)
