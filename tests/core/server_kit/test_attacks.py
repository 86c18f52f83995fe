"""Attacks on a model: what the default rule lets them do at most, where the plain mean lets them.

Ten devices, two of them hostile and of one mind.
"""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest

from shoal.core.algorithm import Report
from shoal.core.exchange.messages import Trained
from shoal.core.server_kit.aggregation.averaging import next_models
from shoal.core.server_kit.aggregation.guard import Guard
from shoal.core.server_kit.aggregation.robust import Update, combine
from shoal.core.types import DeviceId

Rows = npt.NDArray[np.float64]
DEVICES, HOSTILE, COORDINATES = 10, 2, 400
BASE = {"w": np.linspace(-1.0, 1.0, COORDINATES)}


def honest_updates(seed: int) -> Rows:
    """What the honest agree on, of norm 1, and where each differs, of norm about 1 too."""
    chance = np.random.default_rng(seed)
    common = chance.normal(size=COORDINATES)
    own = chance.normal(size=(DEVICES - HOSTILE, COORDINATES))
    found: Rows = common / np.linalg.norm(common) + own / np.sqrt(COORDINATES)
    return found


ATTACKS: dict[str, Callable[[Rows], Rows]] = {
    "sign flip": lambda honest: -honest.mean(axis=0),
    "sign flip, ten times": lambda honest: -10.0 * honest.mean(axis=0),
    "times 100": lambda honest: 100.0 * honest.mean(axis=0),
    "noise": lambda honest: 50.0 * np.random.default_rng(9).normal(size=COORDINATES),
    # Baruch et al., A Little Is Enough, NeurIPS 2019: as far from the mean as honest devices are, but all
    # coordinates at once; z = 1.5.
    "a little is enough": lambda honest: honest.mean(axis=0) - 1.5 * honest.std(axis=0),
}
LONG = [name for name in ATTACKS if name not in ("sign flip", "a little is enough")]
"""These move the plain mean farther even without a false claim."""


def attacked(honest: Rows, hostile: Rows, claim: float) -> dict[DeviceId, Update]:
    """All ten, where each of the two hostile ones claims this many samples and each honest one has 100."""
    rows = [*honest, *[hostile] * HOSTILE]
    claims = [100.0] * len(honest) + [claim] * HOSTILE
    return {
        f"d{i}": Update({"w": BASE["w"] + row}, samples)
        for i, (row, samples) in enumerate(zip(rows, claims, strict=True))
    }


def away(rule: str, honest: Rows, hostile: Rows, claim: float) -> float:
    """How far the model is from the one that the honest devices make by themselves."""
    found = combine(rule, BASE, attacked(honest, hostile, claim)).model["w"] - BASE["w"]
    return float(np.linalg.norm(found - honest.mean(axis=0)))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("claim", [1.0, 100.0, 1e9])
@pytest.mark.parametrize("attack", ATTACKS)
def test_two_of_ten_move_a_model_by_one_and_a_half_of_a_fifth_of_an_update(
    attack: str, claim: float, seed: int
) -> None:
    honest = honest_updates(seed)
    hostile = ATTACKS[attack](honest)
    limit = 1.5 * HOSTILE / DEVICES * float(np.median(np.linalg.norm(honest, axis=1)))
    assert away("clipped", honest, hostile, claim) <= limit
    if claim == 1e9 or (claim == 100.0 and attack in LONG):
        assert away("mean", honest, hostile, claim) > limit


@pytest.mark.parametrize("attack", ATTACKS)
@pytest.mark.parametrize(("devices", "hostile"), [(5, 2), (8, 3), (9, 4)])
def test_the_median_stays_among_the_honest_while_they_are_the_majority(
    attack: str, devices: int, hostile: int
) -> None:
    honest = honest_updates(1)[: devices - hostile]
    rows = [*honest, *[np.clip(ATTACKS[attack](honest), -1e3, 1e3)] * hostile]
    given = {f"d{i}": Update({"w": BASE["w"] + row}, 1.0) for i, row in enumerate(rows)}
    found = combine("median", BASE, given).model["w"] - BASE["w"]
    slack = 1e-12
    assert (found >= honest.min(axis=0) - slack).all()
    assert (found <= honest.max(axis=0) + slack).all()


def test_round_after_round_the_long_way_is_cut_too() -> None:
    """A hostile device, the only one of its cluster, makes its update 10 times longer each round; it gets
    3 times."""
    models, guard = {"c0": {"w": np.zeros(2)}}, Guard()
    for number in range(6):
        step = models["c0"]["w"] + np.array([10.0**number, 0.0])
        models, guard = next_models(models, [Report("d0", Trained({"w": step}, 5, 0.1))], "clipped", guard)
        assert guard.references["c0"] == pytest.approx(3.0**number)
    assert models["c0"]["w"][0] <= 1 + 3 * sum(3.0**number for number in range(1, 6))
