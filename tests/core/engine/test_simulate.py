"""The simulator: whole runs of the toy algorithm, with devices that drop out and devices that fail."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from shoal.core.algorithm import Plan, Report
from shoal.core.engine.rounds import RoundPolicy
from shoal.core.engine.simulate import Device, Outcome, simulate
from shoal.core.errors import LearnerFault, Unavailable
from shoal.core.exchange.messages import Message, Trained
from shoal.core.types import Tensors
from tests.core import counting
from tests.core.several import Move, Moved


def run(devices: dict[str, Device], rounds: int = 3, **policy: float) -> Outcome:
    state = counting.start(counting.model(), rounds)
    return simulate(counting, state, devices, RoundPolicy(**policy), seed=5)  # type: ignore[arg-type]


def fleet(count: int) -> dict[str, Device]:
    return {f"d{i}": partial(counting.answer, f"d{i}") for i in range(count)}


def test_a_run_counts_every_device_once_a_round_and_is_the_same_each_time() -> None:
    first, second = run(fleet(4)), run(dict(reversed(fleet(4).items())))
    assert first.state.history == (("d0", "d1", "d2", "d3"),) * 3  # type: ignore[attr-defined]
    assert np.array_equal(first.state.models["global"]["w"], second.state.models["global"]["w"])
    assert not first.failed


def test_bytes_are_counted_once_for_each_new_model() -> None:
    outcome = run(fleet(2))
    assert outcome.down == {"d0": 3 * 12, "d1": 3 * 12}
    assert outcome.up == {"d0": 3 * 12, "d1": 3 * 12}


def test_a_device_that_fails_or_leaves_is_named_and_the_run_goes_on() -> None:
    def failing(message: Message, seed: int) -> Message:
        raise LearnerFault("the loss is NaN")

    def leaving(message: Message, seed: int) -> Message:
        raise Unavailable("the battery is empty")

    outcome = run({**fleet(2), "d8": failing, "d9": leaving})
    assert outcome.state.history == (("d0", "d1"),) * 3  # type: ignore[attr-defined]
    assert outcome.missing[1] == {"d8": "the loss is NaN", "d9": "the battery is empty"}


def test_a_nan_update_is_refused_before_it_touches_the_model() -> None:
    def poisoned(message: Message, seed: int) -> Message:
        return Trained({"w": np.array([1.0, np.nan, 1.0], np.float32)}, examples=1, loss=0.1)

    outcome = run({**fleet(1), "d7": poisoned})
    assert np.isfinite(outcome.state.models["global"]["w"]).all()
    assert "1 of 3 values are NaN" in outcome.missing[1]["d7"]


def test_a_simulation_that_cannot_go_on_says_what_it_waits_for() -> None:
    with pytest.raises(Unavailable, match="2 of 5 devices are here"):
        run(fleet(2), minimum=5)


def test_reports_can_be_kept_elsewhere() -> None:
    kept: list[Tensors] = []

    def keep(tensors: Tensors) -> Tensors:
        kept.append(tensors)
        return {name: array.copy() for name, array in tensors.items()}

    state = counting.start(counting.model(), 2)
    outcome = simulate(counting, state, fleet(3), RoundPolicy(), 5, keep=keep)
    assert len(kept) == 6
    plain = run(fleet(3), rounds=2)
    assert np.array_equal(outcome.state.models["global"]["w"], plain.state.models["global"]["w"])


class Several:
    """Two models go down in each of two rounds; of the reports, the first device's are the next."""

    start, place = staticmethod(counting.start), staticmethod(counting.place)

    @staticmethod
    def plan(state: counting.State, present: Sequence[str]) -> Plan | None:
        models = tuple(model for _, model in sorted(state.models.items()))
        return Plan(dict.fromkeys(present, Move(models)), "move") if state.progress < 2 else None

    @staticmethod
    def reduce(state: counting.State, reports: Sequence[Report]) -> counting.State:
        first = reports[0].message
        assert isinstance(first, Moved)
        models = {"a": dict(first.models[0]), "b": state.models["b"]}
        return replace(state, models=models, progress=state.progress + 1)


def test_several_models_in_a_report_are_kept_elsewhere_and_counted_each() -> None:
    kept: list[Tensors] = []

    def keep(tensors: Tensors) -> Tensors:
        kept.append(tensors)
        return {name: array.copy() for name, array in tensors.items()}

    def move(message: Message, seed: int) -> Message:
        assert isinstance(message, Move)
        return Moved(tuple({"w": model["w"] + 1} for model in message.models), 1)

    state = replace(
        counting.start(counting.model(), 2), models={"a": counting.model(), "b": counting.model()}
    )
    outcome = simulate(Several(), state, {"d0": move, "d1": move}, RoundPolicy(), 5, keep=keep)
    assert len(kept) == 2 * 2 * 2
    assert outcome.state.models["a"]["w"].tolist() == [2.0, 2.0, 2.0]
    assert outcome.up == {"d0": 2 * 2 * 12, "d1": 2 * 2 * 12}
    assert outcome.down == {"d0": 3 * 12, "d1": 3 * 12}  # b stayed as it was, and is not fetched again
