"""One device's bounds do not stretch the projector of all, and descriptors end at the bounds."""

from dataclasses import replace

import numpy as np
import pytest

from shoal.core.algorithm import Basis, Report, discover
from shoal.core.algorithms.feroma import server as feroma_half
from shoal.core.algorithms.flux import server as flux_half
from shoal.core.exchange.admit import admit_message
from shoal.core.exchange.messages import Describe, Described, Evaluated
from shoal.core.exchange.parts import (
    ClusterAssignment,
    Descriptor,
    FloatArray,
    LatentBounds,
    Moments,
    NoisySums,
    PrivacySettings,
)
from shoal.core.exchange.tensors import digest
from shoal.core.server_kit.clustered import GLOBAL
from shoal.core.server_kit.frozen_encoder import MARGIN, bounded, make_projector, merged_bounds
from tests.core.server_kit.described import BALANCED, CLASSES, DIMS, private

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


@pytest.mark.parametrize("lie", ["no samples", "much noise"])
def test_a_descriptor_that_tells_nothing_hides_no_group_from_newcomers(lie: str) -> None:
    encoder = {"w": np.ones(2, np.float32)}
    projector = {"mean": np.zeros(8), "components": np.ones((DIMS, 8)), "radius": np.array(1.0)}
    asked = Describe(encoder, projector, CLASSES, BALANCED)

    def described(shown: Descriptor) -> Described:
        found = Described(replace(shown, projector=digest(projector)), 600)
        admit_message(asked, found)
        return found

    answers = {f"d{n}": described(private(n, 0.3 * (n % 2))) for n in range(8)}
    sums = private(0).statistics
    assert isinstance(sums, NoisySums)
    nothing = NoisySums(np.zeros_like(sums.values), sums.sigma, 1.0)
    liar = nothing if lie == "no samples" else replace(sums, sigma=1e9)
    answers["liar"] = described(Descriptor(liar, digest(projector), BALANCED))
    reports = [Report(device, answer) for device, answer in answers.items()]
    basis = Basis(encoder, projector, BALANCED, CLASSES, DIMS)
    flux = discover()["flux"].configure("default", {"privacy": "balanced", "placing": "distance"})
    begun = flux_half.State(parameters=flux, models={GLOBAL: encoder}, phase="bounds", basis=basis, scale={})
    state = flux_half.reduce(begun, reports)
    assert state.undescribed == ("liar",)
    for shift, device in ((0.0, "d0"), (0.3, "d1")):
        found = flux_half.place(state, private(50, shift))
        assert isinstance(found, ClusterAssignment)
        assert (found.cluster, found.abstained) == (state.assignments[device], False)
    feroma = discover()["feroma"].configure("default", {"privacy": "balanced"})
    mixed = feroma_half.State(
        parameters=feroma, models={GLOBAL: encoder}, phase="bounds", basis=basis, scale={}
    )
    assert {*feroma_half.reduce(mixed, reports).profiles} == {*answers} - {"liar"}
