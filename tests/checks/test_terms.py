"""No algorithm asks a device for more than the terms of its run say: its owner decides by them."""

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from shoal.checks.small_fleet import Device, first_model, fleet
from shoal.core import algorithm
from shoal.core.algorithm.asks import asks_of
from shoal.core.engine.rounds import RoundPolicy
from shoal.core.engine.simulate import simulate
from shoal.core.exchange.messages import (
    Describe,
    Evaluate,
    Evaluated,
    Message,
    Protected,
    Represent,
    Summarize,
)
from shoal.core.privacy.cost import ORDERS
from shoal.core.privacy.report import OPEN, left_open
from shoal.core.types import DeviceId

CARDS = algorithm.discover()
PAID = {"private": Protected(1.0, 1.0, 0.1, 5), "curve": tuple(0.1 * order for order in ORDERS)}


def opened_by(task: Message) -> set[str]:
    """What leaves in the open, with what a task's message does not show by its kind."""
    found = set(left_open(task))
    if isinstance(task, Summarize):
        found.add(OPEN["summary"])
    if isinstance(task, Represent):
        found.add(OPEN["prototypes"])
    if isinstance(task, Evaluate) and task.bounds:
        found.add(OPEN["bounds"])
    privacy = getattr(task, "privacy", None)
    if (isinstance(task, Describe) or getattr(task, "projector", None)) and not privacy.calibrated:  # type: ignore[union-attr]
        found.add(OPEN[privacy.mode])  # type: ignore[union-attr]
    return found


@pytest.mark.parametrize("private", [False, True], ids=["plain", "dp"])
@pytest.mark.parametrize("name", sorted(CARDS))
def test_a_run_asks_for_no_more_than_its_terms_say(name: str, private: bool) -> None:
    card = CARDS[name]
    if private and "dp_epsilon" not in card.settings:
        pytest.skip("it has no DP-SGD")
    changes: dict[str, Any] = {"rounds": 3, "epochs": 1, "batch_size": 32}
    if private:
        changes |= {"dp_epsilon": 3.0, "dp_open_figures": True, "select": "lowest_loss"}
    if "privacy" in card.settings:  # the fleet here has too few samples for a guarantee
        changes |= {"privacy": "off", "earliest": 1} if name == "flux" else {"privacy": "off"}
    known = {name: each for name, each in changes.items() if name in card.settings}
    parameters = card.configure("default", known)
    asks, trained, counted = asks_of(card, parameters), Counter[DeviceId](), Counter[DeviceId]()
    opened: set[str] = set()

    def watched(device: DeviceId, perform: Device) -> Device:
        def answer(task: Any, seed: int) -> Message:
            opened.update(opened_by(task))
            if isinstance(task, Evaluate) and task.rho is not None:  # the fleet here has no accounts
                counted[device] += 1
                measured = perform(replace(task, rho=None), seed)
                assert isinstance(measured, Evaluated)
                return replace(measured, loss=0.0, rho=task.rho, baseline=None)
            if getattr(task, "private", None) is None:
                return perform(task, seed)
            trained[device] += 1
            return replace(perform(replace(task, private=None), seed), **PAID, held_out=None)  # type: ignore[type-var]

        return answer

    devices = {each: watched(each, perform) for each, perform in fleet(card, 4).items()}
    outcome = simulate(
        card.server(), card.server().start(first_model(), parameters), devices, RoundPolicy(minimum=4), 7
    )
    assert not outcome.failed, outcome.reason
    assert opened <= set(asks.in_the_open)
    assert max(trained.values(), default=0) <= asks.lessons
    assert max(counted.values(), default=0) <= asks.accuracies
