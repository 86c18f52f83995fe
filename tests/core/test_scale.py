"""The scale of a fleet's inputs: what devices say, what becomes of it, and who can move it."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.core.data.scale import (
    DEVIATION,
    MEAN,
    MIN_SAMPLES,
    TARGET,
    Summary,
    merged,
    of_group,
    scale_of,
    summary_of,
    with_scale,
    without_scale,
)
from shoal.core.errors import BadPayload

MODEL = {"weight": np.ones((2, 2), np.float32)}


def normal(n: int, *pairs: tuple[float, float], seed: int = 0) -> np.ndarray:
    chance = np.random.default_rng(seed)
    return np.column_stack([chance.normal(mean, deviation, n) for mean, deviation in pairs]).astype(
        np.float32
    )


def test_each_column_has_its_own_and_a_channel_has_one_for_all_of_its_pixels() -> None:
    table = summary_of(normal(1000, (5.0, 2.0), (-300.0, 50.0)))
    assert table.means == pytest.approx((5.0, -300.0), rel=0.05)
    assert table.deviations == pytest.approx((2.0, 50.0), rel=0.1)
    images = np.stack([np.full((4, 3, 3), 1.0), np.full((4, 3, 3), 3.0)] * 8).astype(np.float32)
    images[:, 1] *= 10.0
    found = summary_of(images)
    assert found.means == (2.0, 20.0, 2.0, 2.0)
    assert found.deviations == (1.0, 10.0, 1.0, 1.0)


def test_an_outlier_moves_nothing_and_a_rare_value_is_still_seen() -> None:
    rows = normal(1000, (0.0, 1.0), (0.0, 1.0))
    calm = summary_of(rows)
    rows[3, 0] = 1e30
    assert summary_of(rows).deviations[0] == pytest.approx(calm.deviations[0], rel=0.05)
    rows[:, 1] = 0.0
    rows[7, 1] = 1.0
    assert summary_of(rows).deviations[1] > 0.0


def test_of_few_samples_and_of_tokens_nothing_is_said() -> None:
    assert summary_of(np.ones((MIN_SAMPLES - 1, 3), np.float32), np.ones(MIN_SAMPLES - 1)) == Summary((), ())
    assert summary_of(np.ones((50, 3), np.int64)) == Summary((), ())
    assert merged([Summary((), ())] * 3) == {}


def test_the_fleet_s_scale_has_the_differences_between_devices_in_it() -> None:
    found = merged([Summary((-1.0, 4.0), (1.0, 0.0)), Summary((1.0, 4.0), (1.0, 0.0))])
    assert found[MEAN].tolist() == [0.0, 4.0]
    assert found[DEVIATION].tolist() == [np.float32(np.sqrt(2.0)), 1.0], (
        "a constant is not divided by nothing"
    )
    assert TARGET not in found
    tiny = merged([Summary((0.0,), (1e-50,))] * 2)  # which is 0 in float32
    assert scale_of(tiny)[DEVIATION].tolist() == [1.0]
    numbers = merged([Summary((0.0,), (1.0,), (100.0, 10.0)), Summary((0.0,), (1.0,), (100.0, 10.0))])
    assert numbers[TARGET].tolist() == [100.0, 10.0]


def test_a_device_with_other_columns_is_left_out() -> None:
    odd = Summary((9.0, 9.0, 9.0), (1.0, 1.0, 1.0))
    assert merged([Summary((1.0,), (2.0,)), odd, Summary((1.0,), (2.0,))])[MEAN].tolist() == [1.0]


@given(
    st.lists(st.tuples(st.floats(-10, 10), st.floats(0.1, 10)), min_size=3, max_size=40),
    st.lists(st.tuples(st.floats(-1e37, 1e37), st.floats(0, 1e37)), min_size=1, max_size=13),
)
def test_fewer_than_a_quarter_cannot_move_it_out_of_what_the_others_have(
    honest: list[tuple[float, float]], lies: list[tuple[float, float]]
) -> None:
    lies = lies[: (len(honest) - 1) // 3]
    found = merged([Summary((mean,), (deviation,)) for mean, deviation in [*honest, *lies]])
    means = [mean for mean, _ in honest]
    assert min(means) - 1e-3 <= found[MEAN][0] <= max(means) + 1e-3
    assert 0.09 <= found[DEVIATION][0] <= 1e-3 + np.hypot(20.0, 10.0)


@pytest.mark.parametrize(
    "values",
    [
        ((1.0,), ()),
        ((1.0,), (-1.0,)),
        ((float("nan"),), (1.0,)),
        ((1.0,), (float("inf"),)),
        ((1e39,), (1.0,)),
        ((1.0,), (1.0,), (1.0,)),
        ((1.0,), (1.0,), (1.0, -1.0)),
    ],
)
def test_what_cannot_be_is_refused(values: tuple[tuple[float, ...], ...]) -> None:
    with pytest.raises(BadPayload, match="cannot be"):
        Summary(*values)


def test_a_model_carries_its_scale_last_and_has_no_other() -> None:
    scale = merged([Summary((1.0,), (2.0,))])
    model = with_scale(MODEL, scale)
    assert list(model) == ["weight", MEAN, DEVIATION]
    assert with_scale(model, scale) is model
    moved = {**model, MEAN: np.float32([7.0]), TARGET: np.float32([0.0, 1.0])}
    assert list(with_scale(moved, scale)) == list(model)
    assert scale_of(with_scale(moved, scale))[MEAN].tolist() == [1.0]
    assert without_scale(model) == MODEL
    assert scale_of(MODEL) == {}


@pytest.mark.parametrize(
    "wrong",
    [
        {MEAN: np.float32([1.0])},
        {MEAN: np.float32([1.0]), DEVIATION: np.float32([0.0])},
        {MEAN: np.float32([np.nan]), DEVIATION: np.float32([1.0])},
        {MEAN: np.float32([1.0, 2.0]), DEVIATION: np.float32([1.0])},
        {MEAN: np.float64([1.0]), DEVIATION: np.float64([1.0])},
        {TARGET: np.float32([1.0])},
        {TARGET: np.float32([1.0, 0.0])},
    ],
)
def test_a_scale_that_cannot_be_used_is_refused(wrong: dict[str, np.ndarray]) -> None:
    with pytest.raises(BadPayload, match="cannot be used"):
        scale_of({**MODEL, **wrong})


def test_where_most_devices_say_nothing_nothing_is_scaled() -> None:
    one, none = Summary((1.0,), (2.0,)), Summary((), ())
    assert merged([one, none]) == {}
    assert MEAN in merged([one, one, none])


def group(size: int, *features: tuple[float, float]) -> list[Summary]:
    means, deviations = zip(*features, strict=True)
    return [Summary(means, deviations)] * size


def test_a_group_has_its_own_scale_for_the_features_that_are_in_other_units() -> None:
    small, large = group(6, (1.0, 0.2), (0.0, 1.0)), group(6, (100.0, 20.0), (0.5, 1.0))
    fleet = merged([*small, *large])
    for one, own in ((small, (1.0, 0.2)), (large, (100.0, 20.0))):
        found = of_group(fleet, one)
        assert (found[MEAN][0], found[DEVIATION][0]) == (np.float32(own[0]), np.float32(own[1]))
        assert (found[MEAN][1], found[DEVIATION][1]) == (fleet[MEAN][1], fleet[DEVIATION][1])


def test_groups_that_differ_little_and_constants_keep_the_fleets_scale() -> None:
    first, second = group(5, (0.0, 1.0), (7.0, 0.0)), group(5, (1.0, 1.5), (9.0, 1.0))
    fleet = merged([*first, *second])
    assert of_group(fleet, first) is fleet
    assert of_group(fleet, [*first, *[Summary((), ())] * 5]) is fleet, "most have to say something"
    assert of_group({}, first) == {}


@pytest.mark.parametrize("lie", [Summary((0.0,), (1e30,)), Summary((1e9,), (0.2,)), Summary((0.0,), (1e-9,))])
@pytest.mark.parametrize("mates", [1, 2, 3, 4, 9])
def test_a_liar_does_not_move_the_scale_of_its_group(mates: int, lie: Summary) -> None:
    """Among up to four it takes nothing but the group's own scale from the others."""
    own = group(mates, (1.0, 0.2))
    fleet = merged([*own, *group(30, (100.0, 20.0))])
    found = of_group(fleet, [*own, lie])
    honest = of_group(fleet, own)
    assert found is fleet if mates < 4 else np.allclose(found[DEVIATION], honest[DEVIATION], atol=0.05)
