"""What a run's state tells of whether anything was learned."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from shoal.core.data.scale import TARGET
from shoal.core.exchange.messages import Evaluated
from shoal.core.exchange.parts import Descriptor, Moments, NoisySums, PrivacySettings
from shoal.core.privacy.sums import GRID, SHARES, weights
from shoal.core.server_kit.clustered import Clustered
from shoal.core.server_kit.learned import has_numbers, verdict_of

HALF = Evaluated(0.7, 0.5, 400, baseline=0.7, classes=2)


@dataclass(frozen=True, eq=False, kw_only=True)
class State(Clustered):
    """Of a run whose devices have released descriptors."""

    descriptors: Mapping[str, Descriptor] = field(default_factory=dict)


def state(descriptors: Mapping[str, Descriptor], measured: Evaluated = HALF) -> State:
    names = [f"d{n}" for n in range(6)]
    return State(
        parameters=None,
        models={"c0": {}},
        phase="done",
        assignments=dict.fromkeys(names, "c0"),
        metrics=dict.fromkeys(names, measured),
        descriptors=descriptors,
    )


def divided(make: Callable[[float, float], Descriptor]) -> dict[str, Descriptor]:
    """Descriptors of devices of which every other one has another commonest class."""
    return {f"d{n}": make(*((280.0, 120.0) if n % 2 else (120.0, 280.0))) for n in range(6)}


def exact(*counts: float, mode: str = "off") -> Descriptor:
    shape = (3, 1)
    privacy = PrivacySettings(mode, 1.0) if mode == "paper" else PrivacySettings()
    return Descriptor(
        Moments(np.zeros(shape), np.ones(shape), np.array([sum(counts), *counts])), "0" * 64, privacy
    )


def noisy(*counts: float, sigma: float = 1.0) -> Descriptor:
    marginal, own = weights(2)
    values = np.zeros((3, 3), np.int64)
    for row, (count, weight) in enumerate(zip((sum(counts), *counts), (marginal, own, own), strict=True)):
        values[row, -1] = round(GRID * SHARES[2] * weight * count)
    return Descriptor(NoisySums(values, sigma, 1.0), "0" * 64, PrivacySettings("balanced", 5.0, 1e-6))


def test_a_run_has_numbers_by_a_scale_of_theirs_or_by_what_devices_say() -> None:
    of_numbers = Evaluated(0.7, 0.5, 400, baseline=0.0)
    assert has_numbers(state({}, of_numbers))
    assert not has_numbers(state({}))
    assert not has_numbers(state({}, Evaluated(0.7, 0.5, 400)))
    first = replace(state({}), metrics={})
    assert not has_numbers(first)
    assert has_numbers(replace(first, models={"global": {TARGET: np.ones(2)}}))


def test_without_descriptors_seven_of_ten_tell_nothing() -> None:
    found = verdict_of(state({}), [1.0, 0.5, 0.5, 0.5])
    assert found is not None
    assert found.learned is None


@pytest.mark.parametrize("make", [exact, noisy])
def test_released_counts_of_classes_tell_what_the_commonest_gives(make: Any) -> None:
    found = verdict_of(state(divided(make)), [1.0, 0.5, 0.5, 0.5])
    assert found is not None
    assert found.learned is True
    assert found.baseline == pytest.approx(0.5, abs=1e-3)


def test_the_noise_of_a_release_makes_it_doubtful() -> None:
    found = verdict_of(state(divided(partial(noisy, sigma=60.0))), [1.0, 0.5, 0.5, 0.5])
    assert found is not None
    assert found.learned is None


def test_counts_with_noise_of_unknown_size_are_not_used() -> None:
    found = verdict_of(state(divided(partial(exact, mode="paper"))), [1.0, 0.5, 0.5, 0.5])
    assert found is not None
    assert found.learned is None


def test_a_rate_by_hand_is_what_to_leave_out() -> None:
    idle = Evaluated(0.1, 2.3, 400, baseline=0.2, classes=10)
    said = verdict_of(state({}, idle), [2.3] * 5, {"learning_rate": 1e-6})
    assert said is not None
    assert said.learned is False
    assert "leave learning_rate" in said.advice
