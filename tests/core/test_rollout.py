"""Rollouts: who is in the share, what counts can be, and how often one ends wrongly."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.core.errors import BadPayload
from shoal.core.rollout import MAX_LABELED, PROMOTED, STOPPED, Counts, decide, summed, takes_part

NAMES = [f"d{number}" for number in range(40)]
CLUSTERS = {"c0": NAMES[:30], "c1": NAMES[30:35], "c2": NAMES[35:36]}


def played(seed: int, gains: Sequence[float], differ: float, margin: float, devices: int = 3) -> str:
    """How a rollout ends in which the counts are looked at 20 times. gains: of the clusters. differ: the
    share of samples on which one of the two releases is right."""
    chance = np.random.default_rng(seed)
    shares = [((differ + gain) / 2, (differ - gain) / 2, 1.0 - differ) for gain in gains]
    totals = np.zeros((len(gains), devices, 3), int)
    for _ in range(20):
        totals += np.array([chance.multinomial(MAX_LABELED // 20, each, devices) for each in shares])
        clusters = {f"c{number}": [counts(*each) for each in own] for number, own in enumerate(totals)}
        if outcome := decide(clusters, margin, len(gains)).outcome:
            return outcome
    return ""


def counts(better: int, worse: int, same: int) -> Counts:
    return Counts(labeled=better + worse + same, old_right=worse, new_right=better)


@pytest.mark.parametrize(("differ", "devices"), [(0.02, 1), (0.1, 3), (0.5, 1)])
def test_a_release_that_is_not_worse_is_hardly_ever_stopped_however_often_one_looks(
    differ: float, devices: int
) -> None:
    """At the very margin in each cluster, where it is likeliest. Of 80 rollouts, more than 9 would be stopped
    with a probability of 1 % if 5 % were on average."""
    ends = [played(seed, (-0.01,) * 3, differ, 0.01, devices) for seed in range(80)]
    assert ends.count(STOPPED) <= 9


@pytest.mark.parametrize("differ", [0.02, 0.1])
def test_a_release_that_is_worse_in_one_cluster_is_hardly_ever_promoted(differ: float) -> None:
    ends = [played(seed, (0.01, 0.01, -0.0101), differ, 0.01, 1) for seed in range(80)]
    assert ends.count(PROMOTED) <= 9


def test_what_is_clear_is_found() -> None:
    assert [played(seed, (0.02, -0.06), 0.1, 0.01) for seed in range(10)] == [STOPPED] * 10
    assert [played(seed, (0.02, 0.06), 0.1, 0.01) for seed in range(10)] == [PROMOTED] * 10


def test_one_device_of_three_decides_nothing() -> None:
    honest, liar = counts(30, 30, 940), counts(0, MAX_LABELED, 0)
    assert decide({"c0": [honest, honest, liar]}, 0.01, 1).outcome == ""
    assert decide({"c0": [liar, liar, honest]}, 0.01, 1).outcome == STOPPED
    good = counts(MAX_LABELED, 0, 0)
    assert decide({"c0": [honest, honest, good]}, 0.01, 1).outcome == ""


@pytest.mark.parametrize(("better", "worse"), [(MAX_LABELED, 0), (0, MAX_LABELED)])
def test_one_device_of_three_decides_nothing_where_only_its_programs_tell_labels(
    better: int, worse: int
) -> None:
    lone = counts(better, worse, 0)
    found = decide({"c0": [lone, Counts(), Counts()]}, 0.01, 1)
    assert found.outcome == ""
    assert "only one device" in found.why
    assert decide({"c0": [lone, lone, Counts()]}, 0.01, 1).outcome != ""
    assert decide({"c0": [lone, Counts()]}, 0.01, 1).outcome != "", "of two, one may"


def test_a_cluster_without_labels_is_waited_for_and_named() -> None:
    clear = [counts(100, 0, 900)] * 3
    found = decide({"c0": clear, "c1": [Counts(500, 490)], "c2": []}, 0.01, 3)
    assert found.outcome == ""
    assert "c1, c2" in found.why


def test_sums_have_bounds_that_hold_the_gain() -> None:
    found = summed([counts(30, 10, 960), Counts(10, 5, 0)], 1)
    assert (found.devices, found.predictions, found.labeled, found.agreement) == (2, 10, 1000, 0.5)
    assert found.low is not None
    assert found.high is not None
    assert -0.02 < found.low < 0.02 < found.high < 0.06
    assert summed([], 1).low is None


@pytest.mark.parametrize(
    "wrong",
    [
        {"predictions": -1},
        {"agreed": 1},
        {"labeled": 1, "old_right": 2},
        {"labeled": 1, "old_right": 1, "new_right": 1},
        {"labeled": 2, "both_right": 1},
        {"labeled": MAX_LABELED + 1},
        {"predictions": (1 << 40) + 1},
    ],
)
def test_counts_that_cannot_be_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(BadPayload, match="counts of a rollout"):
        Counts(**wrong)


@settings(max_examples=40)
@given(st.text(min_size=1), st.floats(0.001, 1.0), st.floats(0.001, 1.0))
def test_each_cluster_has_its_share_and_who_is_in_stays_in(rollout: str, one: float, other: float) -> None:
    less, more = sorted((one, other))
    few, many = (
        {name for name in NAMES if takes_part(rollout, name, share, CLUSTERS)} for share in (less, more)
    )
    assert few <= many
    for own in CLUSTERS.values():
        assert len(few.intersection(own)) == int(np.ceil(less * len(own)))


def test_of_devices_that_no_cluster_is_known_of_about_the_share_is_in() -> None:
    chosen = [name for name in map(str, range(10_000)) if takes_part("r", name, 0.1, CLUSTERS)]
    assert 900 < len(chosen) < 1100
    assert [name for name in map(str, range(10_000)) if takes_part("s", name, 0.1, CLUSTERS)] != chosen
    assert all(takes_part("r", name, 1.0, CLUSTERS) for name in NAMES)
