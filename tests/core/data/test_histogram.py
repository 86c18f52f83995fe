"""Bins that find where data are, and what is read off them, against numbers that follow by hand."""

import numpy as np
import pytest

from shoal.core.data import histogram
from shoal.core.data.histogram import ABOUT, BINS, EDGES, QUANTILES, SHARES, Statistics
from shoal.core.errors import BadPayload
from shoal.core.types import Array, Tensors


def answers(task: Tensors, fleet: list[Array], noise: float = 0.0) -> list[Tensors]:
    chance = np.random.default_rng(42)
    found = [(histogram.counts(x, task[EDGES][:-1]), len(x)) for x in fleet]
    return [histogram.counted(task, each + noise * chance.normal(size=each.shape), n) for each, n in found]


def asked(fleet: list[Array], noise: float = 0.0, lies: tuple[Tensors, ...] = ()) -> Statistics:
    """All three exchanges, with these devices, and others that say what no one has."""
    task: Tensors = histogram.unknown(fleet[0].shape[1])
    for _ in range(histogram.EXCHANGES):
        pooled = histogram.pooled(task, [*answers(task, fleet, noise), *lies])
        task = histogram.refined(pooled)
    return histogram.statistics_of({"all": pooled})["all"]


def column(*values: float) -> Array:
    return np.array(values, np.float32)[:, None]


def test_what_is_found_is_what_all_samples_together_have() -> None:
    chance = np.random.default_rng(43)
    columns = [
        chance.normal(-3.0, 0.5, 4000),
        chance.normal(1000.0, 1.0, 4000),
        chance.lognormal(0.0, 1.0, 4000),
        chance.uniform(1e-6, 2e-6, 4000),
    ]
    pooled = np.stack(columns, axis=1).astype(np.float32)
    found = asked(np.split(pooled, 10))
    assert (found.devices, found.count) == (10, 4000)
    for feature, values in zip(found.features, pooled.T.astype(np.float64), strict=True):
        spread = float(values.std())
        assert feature.mean == pytest.approx(values.mean(), abs=0.05 * spread)
        assert feature.deviation == pytest.approx(spread, rel=0.15 if feature is found.features[2] else 0.02)
        ranks = [float((values < each).mean()) for each in feature.quantiles]
        assert ranks == pytest.approx(QUANTILES, abs=0.01)


def test_a_constant_and_a_rare_value() -> None:
    rare = np.zeros((500, 1), np.float32)
    rare[:10] = 1.0
    found = asked([np.concatenate([rare, np.full_like(rare, 5.0)], axis=1)] * 4)
    assert found.features[0].mean == pytest.approx(0.02, abs=0.002)
    assert found.features[0].quantiles == pytest.approx((0.0,) * 5, abs=1e-9)
    assert found.features[1].mean == pytest.approx(5.0, abs=1e-3)
    assert found.features[1].deviation < 1e-3


def test_devices_count_by_their_samples_up_to_the_upper_quartile() -> None:
    small, large = column(*[0.0] * 100), column(*[1.0] * 300)
    half = asked([small, small, large, large])
    assert half.features[0].mean == pytest.approx(600 / 800, abs=0.01)
    one = asked([small, small, small, column(*[1.0] * 100_000)])
    assert one.features[0].mean == pytest.approx(1 / 4, abs=0.01), "as the others, whatever it claims"


def test_values_of_an_image_count_as_parts_of_one_sample() -> None:
    edges = np.linspace(0.0, 1.0, BINS + 1)[None]
    found = histogram.counts(np.array([[[0.0, 0.999]], [[0.999, 0.999]]]), edges)
    assert (found[0, 0], found[0, -1], found.sum()) == (0.5, 1.5, 2.0)


def test_a_liar_moves_ranks_by_its_share_and_the_mean_by_a_bounded_part_of_the_spread() -> None:
    chance = np.random.default_rng(43)
    fleet = list(chance.normal(0.0, 1.0, (9, 300, 1)).astype(np.float32))
    honest = asked(fleet).features[0]
    for far in (1e30, -1e30):
        lied = asked([*fleet, np.full((300, 1), far, np.float32)]).features[0]
        assert abs(lied.quantiles[2]) < 0.2, "one tenth moves the median by at most 0.14"
        fence = 1.91 + histogram.REACH * (1.91 + 1.06)  # of normal numbers, one tenth of them moved out
        assert abs(lied.mean - honest.mean) < 0.1 * fence + 0.1
        assert lied.beyond == pytest.approx(0.1, abs=0.01)


def test_an_answer_beyond_all_that_can_be_is_scaled_down() -> None:
    task = histogram.unknown(1)
    lie = {**task, SHARES: np.full((2, BINS), 1e9, np.float32)}
    shares = histogram.pooled(task, [*answers(task, [column(*[3.0] * 50)] * 4), lie])[SHARES]
    assert shares.max(axis=1)[0] == pytest.approx(0.8, abs=0.01)


@pytest.mark.parametrize("noise", [0.0, 8.0])
@pytest.mark.parametrize("bin", [0, BINS // 2])
def test_shares_below_0_do_not_pass_for_noise_that_hides_all_others(bin: int, noise: float) -> None:
    chance = np.random.default_rng(43)
    fleet = list(chance.normal(50.0, 10.0, (20, 400, 1)).astype(np.float32))
    shares = np.zeros((2, BINS), np.float32)
    shares[:, bin] = -3e38
    found = asked(fleet, noise, ({SHARES: shares},)).features[0]
    assert found.mean == pytest.approx(50.0, abs=2.0)
    assert found.deviation == pytest.approx(10.0, rel=0.3)


def test_with_noise_quartiles_are_still_found_and_empty_bins_stay_empty() -> None:
    chance = np.random.default_rng(43)
    fleet = list(chance.normal(50.0, 10.0, (20, 400, 1)).astype(np.float32))
    found = asked(fleet, noise=8.0).features[0]
    assert found.quantiles[1:4] == pytest.approx((43.26, 50.0, 56.74), abs=1.5)
    assert found.mean == pytest.approx(50.0, abs=1.0)
    assert found.deviation == pytest.approx(10.0, rel=0.15)
    assert found.edges[np.flatnonzero(found.shares)].min() > 0.0


def test_groups_together_are_their_samples_together() -> None:
    low, high = [column(*np.linspace(0, 1, 200))] * 4, [column(*np.linspace(9, 10, 600))] * 4
    both = histogram.together([asked(low), asked(high)])
    assert both.count == 3200
    assert both.features[0].mean == pytest.approx((0.5 + 3 * 9.5) / 4, abs=0.02)
    assert both.features[0].quantiles[2] == pytest.approx(9.0 + 1 / 3, abs=0.05)


def test_the_picture_has_its_highest_bar_where_most_values_are() -> None:
    drawn = asked([column(*[0.0] * 10, *[1.0] * 80, *[2.0] * 10)]).features[0].picture
    assert drawn.count("█") == 1
    assert drawn.strip("▁ ").count("█") == 1


@pytest.mark.parametrize(
    "changed",
    [
        {EDGES: np.zeros((1, 3))},
        {EDGES: np.full((2, BINS + 1), np.nan)},
        {EDGES: np.tile(np.arange(BINS + 1.0)[::-1], (2, 1))},
        {SHARES: np.zeros((3, BINS), np.float32)},
        {ABOUT: np.array([np.inf, 0.0, 0.0])},
        {"more": np.zeros(1)},
    ],
)
def test_a_histogram_that_cannot_be_is_refused(changed: dict[str, Array]) -> None:
    with pytest.raises(BadPayload, match="cannot be counted"):
        histogram.check({**histogram.unknown(1), **changed})


def test_data_with_other_features_are_refused() -> None:
    with pytest.raises(BadPayload, match="have 3 features, and 2 were asked for"):
        histogram.counts(np.zeros((5, 3)), histogram.unknown(2)[EDGES][:-1])


def test_what_data_have_in_common_with_a_histogram() -> None:
    same = column(*np.linspace(0, 1, 300))
    task: Tensors = histogram.refined(
        histogram.pooled(histogram.unknown(1), answers(histogram.unknown(1), [same]))
    )
    model = histogram.pooled(task, answers(task, [same]))
    for data, expected in ((same, 1.0), (same + 7.0, 0.0), (column(*np.linspace(0.5, 1.5, 300)), 0.5)):
        shared = histogram.overlap(model, histogram.counts(data, model[EDGES][:-1]), 300)
        assert shared == pytest.approx(expected, abs=0.05)
