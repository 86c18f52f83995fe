"""Statistics of a simulated fleet, against its data in one place; in the open, under masks, with noise."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shoal
from fedclient.store.ledger import Ledger
from shoal.core.algorithm import Report, find
from shoal.core.algorithm.asks import asks_of
from shoal.core.data import histogram
from shoal.core.data.dataset import Dataset
from shoal.core.data.histogram import Statistics
from shoal.core.data.scale import DEVIATION, MEAN, scale_of
from shoal.core.data.views import Views
from shoal.core.device_kit import standard
from shoal.core.device_kit.context import DeviceContext
from shoal.core.device_kit.learner import builtin
from shoal.core.errors import ConfigError, OverBudget, Refused, Unprotected
from shoal.core.exchange.messages import PrivateTraining, Train, Trained, TrainingSettings
from shoal.core.privacy.budget import Budget
from shoal.core.privacy.ledger.entries import Debit
from shoal.core.privacy.report import OPEN, left_open
from shoal.result import NotKnown

DEVICES, SAMPLES = 12, 200


def data(device: int, seed: int = 43) -> Dataset:
    chance = np.random.default_rng((seed, device))
    x = np.stack([chance.normal(4.0 * (device % 2), 1.0, SAMPLES), chance.exponential(90.0, SAMPLES)], axis=1)
    return Dataset(x.astype(np.float32), (x[:, 1] > 60.0).astype(np.int64))


@pytest.fixture(scope="module")
def fleet() -> shoal.Fleet:
    parts = {f"d{n:02}": data(n) for n in range(DEVICES)}
    return shoal.Fleet({name: (each.x, each.y, each.x, each.y) for name, each in parts.items()})


def truth() -> np.ndarray:
    return np.concatenate([data(n).x for n in range(DEVICES)]).astype(np.float64)


def check(found: Statistics, pooled: np.ndarray, within: float) -> None:
    """within: of the deviation."""
    assert found.count == len(pooled)
    for feature, values in zip(found.features, pooled.T, strict=True):
        spread = within * float(values.std())
        assert feature.mean == pytest.approx(values.mean(), abs=spread)
        assert feature.deviation == pytest.approx(values.std(), abs=3 * spread)
        ranks = [float((values < each).mean()) for each in feature.quantiles]
        assert ranks == pytest.approx(histogram.QUANTILES, abs=within)


def test_they_are_those_of_all_data_in_one_place(fleet: shoal.Fleet) -> None:
    result = shoal.simulate("statistics", fleet)
    check(result.statistics["global"], truth(), 0.02)
    assert result.verdict is None
    assert f"{DEVICES} devices, {DEVICES * SAMPLES} samples" in repr(result)
    assert result.to_dict()["statistics"]["global"]["count"] == DEVICES * SAMPLES
    for network in (result.module, result.session):
        with pytest.raises(NotKnown, match="a run of statistics trains no network"):
            network("global")


def test_under_masks_they_are_the_same(fleet: shoal.Fleet) -> None:
    """But for the bins: each number of a sum is truncated, which may give a bin to another piece."""
    openly = shoal.simulate("statistics", fleet).statistics["global"]
    masked = shoal.simulate("statistics", fleet, secure_aggregation=True).statistics["global"]
    assert masked.count == openly.count
    for one, other in zip(masked.features, openly.features, strict=True):
        assert one.mean == pytest.approx(other.mean, abs=1e-3 * other.deviation)
        assert one.quantiles == pytest.approx(other.quantiles, abs=0.02 * other.deviation)


def test_with_noise_they_are_near(fleet: shoal.Fleet) -> None:
    """The noise in a bin is about a twentieth of all samples, so tails are lost."""
    found = shoal.simulate("statistics", fleet, dp_epsilon=5.0).statistics["global"]
    for feature, values in zip(found.features, truth().T, strict=True):
        assert feature.mean == pytest.approx(values.mean(), abs=0.4 * values.std())
        ranks = [float((values < each).mean()) for each in feature.quantiles]
        assert ranks[1:4] == pytest.approx((0.25, 0.5, 0.75), abs=0.12)


def test_each_cluster_of_an_earlier_run_has_its_own(fleet: shoal.Fleet) -> None:
    groups = shoal.simulate("flux", fleet, rounds=3)
    assert len(set(groups.clusters.values())) == 2
    result = shoal.simulate("statistics", fleet, of=groups)
    assert result.clusters == groups.clusters
    for name, found in result.statistics.items():
        members = [n for n in range(DEVICES) if groups.clusters[f"d{n:02}"] == name]
        check(found, np.concatenate([data(n).x for n in members]).astype(np.float64), 0.02)
    check(histogram.together(result.statistics.values()), truth(), 0.02)
    assert "all: 12 devices" in repr(result)


def test_a_group_whose_devices_are_away_at_last_keeps_what_was_counted_before(tmp_path: Path) -> None:
    groups = {f"d{n:02}": f"c{n % 2}" for n in range(DEVICES)}
    card, _ = find("statistics")
    half, budget = card.server(), Budget(allow_unprotected=True)
    contexts = {name: device(tmp_path / name, budget, n) for n, name in enumerate(groups)}
    state = half.start({}, card.configure("default", {})).begun_for(groups)
    for exchange in range(1 + histogram.EXCHANGES):
        here = [name for name in groups if exchange < histogram.EXCHANGES or groups[name] == "c1"]
        plan = half.plan(state, here)
        assert plan is not None
        reports = [
            Report(name, card.device().perform(task, contexts[name]))
            for name, task in sorted(plan.tasks.items())
        ]
        state = half.reduce(state, reports)
    assert half.plan(state, [*groups]) is None
    found = histogram.statistics_of(state.models)
    early, late = (np.concatenate([data(n).x for n in range(odd, DEVICES, 2)]) for odd in (0, 1))
    check(found["c1"], late.astype(np.float64), 0.02)
    assert found["c0"].count == pytest.approx(len(early), rel=0.05)
    for feature, values in zip(found["c0"].features, early.T, strict=True):
        assert feature.mean == pytest.approx(values.mean(), abs=0.1 * float(values.std()))
    assert [each[:26] for each in state.remarks] == ["c0: no device answered in "]


@pytest.mark.parametrize(
    "protection",
    [{"secure_aggregation": True, "aggregation": "mean"}, {"dp_epsilon": 8.0}],
    ids=["masks", "noise"],
)
def test_a_run_that_protects_weights_trains_in_the_scale_that_was_counted_under_the_same_protection(
    fleet: shoal.Fleet, protection: dict[str, Any]
) -> None:
    counting = {name: value for name, value in protection.items() if name != "aggregation"}
    counted = shoal.simulate("statistics", fleet, **counting)
    result = shoal.simulate("fedavg", fleet, rounds=3, inputs=counted, **protection)
    scale, features = scale_of(result.models["global"]), counted.statistics["global"].features
    assert scale[MEAN].tolist() == pytest.approx([each.mean for each in features])
    assert scale[DEVIATION].tolist() == pytest.approx([each.deviation for each in features])
    assert np.abs(np.log(truth().std(axis=0) / scale[DEVIATION])).max() < np.log(2.0), (
        "tails are lost in noise"
    )
    raw = shoal.simulate("fedavg", fleet, rounds=3, **protection)
    assert scale_of(raw.models["global"]) == {}
    assert result.accuracy.mean > raw.accuracy.mean + 0.05


def test_a_scale_that_was_not_counted_is_refused(fleet: shoal.Fleet) -> None:
    with pytest.raises(Refused, match="no scale of 2 features"):
        shoal.simulate("fedavg", fleet, inputs=shoal.simulate("statistics", fleet, dp_epsilon=0.1))
    with pytest.raises(Refused, match="counted no data"):
        shoal.simulate("fedavg", fleet, inputs=shoal.simulate("fedavg", fleet, rounds=1))
    with pytest.raises(ConfigError, match="inputs is 'scald'"):
        shoal.simulate("fedavg", fleet, inputs="scald")


# -- what the owner of a device allows ----------------------------------------------------------------------


def task(epsilon: float = 0.0) -> Train:
    private = PrivateTraining(epsilon=epsilon, rounds=3) if epsilon else None
    return Train(histogram.unknown(2), TrainingSettings(), private=private)


def device(folder: Path, budget: Budget, number: int = 0) -> DeviceContext:
    learner = builtin("mlp", {"inputs": 2, "hidden": (4,), "classes": 2})
    views = Views.of(data(number))
    return DeviceContext(learner, views, "cpu", 0, np.random.default_rng(0), account=Ledger(folder, budget))


def test_noise_is_paid_for_and_what_cannot_be_paid_is_refused(tmp_path: Path) -> None:
    context = device(tmp_path, Budget(epsilon=2.0))
    answer = standard.perform(task(3.0), context)
    assert isinstance(answer, Trained)
    assert answer.private is not None
    assert (answer.private.rate, answer.private.steps) == (1.0, 1)
    (entry,) = [each for each in context.account.entries() if isinstance(each, Debit)]  # type: ignore[attr-defined]
    assert entry.payment.facts["of"] == "histograms"
    assert tuple(entry.payment.cost.curve) == answer.curve
    with pytest.raises(OverBudget):
        standard.perform(task(30.0), context)


def test_the_noise_is_of_the_size_that_is_paid_for(tmp_path: Path) -> None:
    """Of two features, one sample moves the counts by the root of 2; most bins are empty."""
    context = device(tmp_path, Budget(epsilon=50.0, total_epsilon=50.0))
    answer = standard.perform(task(3.0), context)
    assert isinstance(answer, Trained)
    assert answer.private is not None
    shares = answer.model[histogram.SHARES][:-1].astype(np.float64) * np.sqrt(3.0) * SAMPLES
    empty = np.abs(histogram.unknown(2)[histogram.EDGES][:-1, 1:]) > 1e10
    assert shares[empty].std() == pytest.approx(np.sqrt(2.0) * answer.private.noise, rel=0.25)


def test_exact_counts_leave_in_the_open_and_an_owner_may_rule_that_out(tmp_path: Path) -> None:
    assert left_open(task()) == (OPEN["histograms"],)
    assert left_open(task(3.0)) == ()
    card, _ = find("statistics")
    assert asks_of(card, card.configure("default", {})).opened == ("histograms",)
    assert asks_of(card, card.configure("default", {"secure_aggregation": True})).opened == (
        "summed histograms",
    )
    private = asks_of(card, card.configure("default", {"dp_epsilon": 3.0}))
    assert (private.opened, private.lessons, private.epochs) == ((), 3, 1)
    ledger = device(tmp_path, Budget(allow_unprotected=False)).account
    with pytest.raises(Unprotected):
        ledger.unprotected(OPEN["histograms"], "data")
