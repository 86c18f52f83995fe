"""One device's bounds do not stretch the projector of all, and descriptors end at the bounds."""

import numpy as np
import pytest

from shoal.core.algorithm import Report
from shoal.core.exchange.messages import Evaluated
from shoal.core.exchange.parts import Descriptor, FloatArray, LatentBounds, Moments, PrivacySettings
from shoal.core.exchange.tensors import digest
from shoal.core.server_kit.frozen_encoder import MARGIN, bounded, make_projector, merged_bounds

LATENTS, OFF = 6, PrivacySettings()


def bounds(low: float, high: float) -> LatentBounds:
    return LatentBounds(np.full(LATENTS, float(low)), np.full(LATENTS, float(high)))


def merged(*parts: LatentBounds) -> tuple[float, float]:
    reports = [Report(f"d{i}", Evaluated(0.5, 1.0, 9, each, LATENTS)) for i, each in enumerate(parts)]
    found, _ = merged_bounds(reports, PrivacySettings())
    assert found is not None
    return float(found.low.min()) / MARGIN, float(found.high.max()) / MARGIN


@pytest.mark.parametrize("lie", [bounds(-1e30, 1e30), bounds(500, 501), bounds(-40, 1)])
def test_bounds_that_are_far_from_most_are_not_merged(lie: LatentBounds) -> None:
    assert merged(bounds(0, 1), bounds(0, 2), bounds(-1, 1), lie) == (-1, 2)


def test_bounds_that_differ_as_those_of_honest_devices_do_are_all_merged() -> None:
    assert merged(bounds(0, 1), bounds(0, 2), bounds(-3, 1), bounds(4, 9)) == (-3, 9)
    assert merged(bounds(0, 0), bounds(0, 0), bounds(0, 0)) == (0, 0)
    assert merged(bounds(0, 1), bounds(-1e6, 1)) == (-1e6, 1)


def descriptor(mean: float, deviation: float, privacy: PrivacySettings = OFF) -> Descriptor:
    shape = (2, 3)
    moments = Moments(np.full(shape, mean), np.full(shape, deviation), np.array([30.0, 30.0]))
    return Descriptor(moments, "0" * 64, privacy)


def moved(box: LatentBounds, given: Descriptor) -> tuple[FloatArray, FloatArray]:
    found = bounded(box, make_projector(box, LATENTS, 3), {"a": given})["a"].statistics
    assert isinstance(found, Moments)
    return found.means, found.deviations


def test_a_descriptor_outside_the_bounds_of_all_devices_is_moved_to_their_edge() -> None:
    """So a lie moves no other device farther than an honest outlier may."""
    box = bounds(0.0, 1.0)
    projector = make_projector(box, LATENTS, 3)
    assert digest(projector) == digest(make_projector(box, LATENTS, 3))
    means, deviations = moved(box, descriptor(0.5, 0.3))
    assert (means == 0.5).all()
    assert (deviations == 0.3).all()
    reach = np.abs(projector["components"]).sum(axis=1) * 1.5
    middle = projector["components"] @ (0.5 - projector["mean"])
    assert np.allclose(moved(box, descriptor(-1e8, 0.3))[0], middle - reach)
    assert np.allclose(moved(box, descriptor(30.0, 0.1))[0], middle + reach)
    assert np.allclose(moved(box, descriptor(0.0, 1e8))[1], reach)
    noisy = PrivacySettings("paper", 0.01)  # a scale of 1 / (30 * 0.01) of the range
    assert (moved(box, descriptor(30.0, 0.1, noisy))[0] == 30.0).all()
    assert (moved(box, descriptor(1e8, 0.1, noisy))[0] < 1e4).all()


def test_bounds_without_any_width_move_no_descriptor() -> None:
    """An encoder whose training failed may be constant on the few held-out samples, and not on all others."""
    box = bounds(0.0, 0.0)
    assert (moved(box, descriptor(0.01, 0.02))[0] == 0.01).all()
