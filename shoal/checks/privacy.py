"""The rule about DP-SGD."""

from collections import Counter
from dataclasses import replace
from typing import Any

from shoal.checks.small_fleet import Device, first_model, fleet
from shoal.checks.subject import Subject, expect
from shoal.core.engine.rounds import RoundPolicy
from shoal.core.engine.simulate import simulate
from shoal.core.exchange.messages import Evaluate, Evaluated, Message, Protected
from shoal.core.privacy.cost import ORDERS
from shoal.core.privacy.report import OPEN, left_open
from shoal.core.types import DeviceId


def asks_for_privacy_in_every_task(subject: Subject) -> None:
    """Where a run asks for DP-SGD, no task lets weights leave without it."""
    if "dp_epsilon" not in subject.card.settings:
        return
    open_figures: dict[str, Any] = (
        {"dp_open_figures": True} if "dp_open_figures" in subject.card.settings else {}
    )
    paid = {"private": Protected(1.0, 1.0, 0.1, 5), "curve": tuple(0.1 * order for order in ORDERS)}
    trained: Counter[DeviceId] = Counter()
    asked: set[Any] = set()

    def watched(device: DeviceId, perform: Device) -> Device:
        def answer(task: Any, seed: int) -> Message:
            expect(OPEN["weights"] not in left_open(task), f"a {task.kind} lets weights leave in the open")
            if isinstance(task, Evaluate) and task.rho is not None:  # the fleet here has no accounts
                measured = perform(replace(task, rho=None), seed)
                assert isinstance(measured, Evaluated)
                return replace(measured, loss=0.0, rho=task.rho, baseline=None)
            if getattr(task, "private", None) is None:
                return perform(task, seed)
            trained[device] += 1
            asked.add(task.private)
            return replace(perform(replace(task, private=None), seed), held_out=None, **paid)  # type: ignore[type-var]

        return answer

    devices = {each: watched(each, perform) for each, perform in fleet(subject.card, 4).items()}
    half, parameters = subject.card.server(), subject.parameters(dp_epsilon=3.0, **open_figures)
    outcome = simulate(half, half.start(first_model(), parameters), devices, RoundPolicy(minimum=4), 7)
    expect(not outcome.failed, f"the run failed: {outcome.reason}")
    expect(len(asked) == 1, f"tasks ask for {len(asked)} different guarantees")
    (one,) = asked
    expect((one.epsilon, one.noise) == (3.0, 0.0), f"epsilon=3 was asked for, and the tasks say {one}")
    expect(
        max(trained.values()) == one.rounds,
        f"a device trained {max(trained.values())} times, and its epsilon is for {one.rounds}",
    )
