"""What released sums can be: every honest release is admitted, and what no data have is refused."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.core.errors import BadPayload
from shoal.core.exchange.admit.plausible import check_sums
from shoal.core.exchange.parts import NoisySums
from shoal.core.privacy.sums import GRID, sums_of

DIMS, RADIUS = 4, 2.0


def released(samples: int, classes: int, sigma: float, seed: int, spread: float = 1.0) -> NoisySums:
    chance = np.random.default_rng(seed)
    latents = chance.normal(0.0, spread, (samples, DIMS)) + chance.normal(size=DIMS)
    labels = chance.integers(0, max(classes, 1), samples)
    exact = sums_of([(latents, labels)], RADIUS, DIMS, classes)
    noise = np.rint(chance.normal(0.0, sigma * GRID, exact.values.shape)).astype(np.int64)
    return NoisySums(exact.values + noise, sigma, RADIUS)


@settings(deadline=None, max_examples=60)
@given(
    st.sampled_from([0, 1, 7, 500]),
    st.sampled_from([0, 1, 10]),
    st.sampled_from([1e-6, 0.5, 5.0, 300.0]),
    st.integers(0, 1000),
    st.sampled_from([0.0, 1.0, 100.0]),
)
def test_what_an_honest_device_releases_is_always_admitted(
    samples: int, classes: int, sigma: float, seed: int, spread: float
) -> None:
    check_sums(released(samples, classes, sigma, seed, spread))


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda v: np.full_like(v, 1 << 60), "more than its samples can"),
        (lambda v: v * np.where(np.arange(9) < 4, 10**6, 1), "the latents sum to more"),
        (
            lambda v: v * np.where((np.arange(9) >= 4) & (np.arange(9) < 8), 1000, 1),
            "the squares sum to more",
        ),
        (lambda v: np.where((np.arange(9) >= 4) & (np.arange(9) < 8), -v, v), "squares is negative"),
        (lambda v: -v, "fewer than no samples"),
        (lambda v: v * np.array([[3], [1], [1], [1]]), "its classes are not the sum"),
        (lambda v: v[[0, 1, 1, 1]], "its classes are not the sum"),
    ],
)
def test_what_no_data_have_is_refused_by_name(change, why: str) -> None:  # type: ignore[no-untyped-def]
    honest = released(400, 3, 0.01, 1)
    check_sums(honest)
    with pytest.raises(BadPayload, match=why):
        check_sums(NoisySums(change(honest.values), honest.sigma, RADIUS))
