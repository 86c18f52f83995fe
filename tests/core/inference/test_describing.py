import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.core.data.dataset import Dataset
from shoal.core.data.views import Views
from shoal.core.errors import BadPayload, DataFault, DeviceFault, LearnerFault
from shoal.core.exchange.parts import PrivacySettings
from shoal.core.exchange.tensors import Manifest
from shoal.core.inference.context import InferenceContext
from shoal.core.inference.describing import (
    described,
    exact_sums,
    moments_of,
    project,
    projected,
    standardized,
)
from shoal.core.types import Array, Tensors

IDENTITY: Tensors = {"mean": np.zeros(2), "components": np.eye(2)}
AS_IT_IS: Tensors = {}
"""The weights of `Inputs`."""


class Inputs:
    """A network whose latents are its inputs."""

    name, classifier, batch = "inputs", True, 4
    manifest: Manifest = ()

    def load(self, weights: Tensors) -> None:
        assert not weights

    def latents(self, x: Array) -> Array:
        return x

    scores = latents


def whole(data: Dataset) -> Views:
    return Views.of(data, share=0.0)


def context(views: Views) -> InferenceContext:
    return InferenceContext(Inputs(), views, np.random.default_rng(0))


def test_moments_by_hand() -> None:
    """Class 0: (0, 0) and (2, 4); class 1: one sample, which makes no moments; class 2: none."""
    projected = np.array([[0.0, 0.0], [5.0, -1.0], [2.0, 4.0]])
    moments = moments_of(projected, np.array([0, 1, 0]), classes=3)
    third = 14 / 3  # mean square distance from the mean of 0, 4, -1, whose mean is 1
    assert moments.means == pytest.approx(np.array([[7 / 3, 1.0], [1.0, 2.0], [0.0, 0.0], [0.0, 0.0]]))
    assert moments.deviations == pytest.approx(
        np.array([[np.sqrt(38 / 9), np.sqrt(third)], [1.0, 2.0], [0.0, 0.0], [0.0, 0.0]])
    )
    assert moments.counts.tolist() == [3.0, 2.0, 1.0, 0.0]
    assert (moments.low, moments.high) == (-1.0, 5.0)


def test_without_classes_there_is_one_row() -> None:
    moments = moments_of(np.array([[1.0], [3.0]]), None, classes=0)
    assert (moments.means.tolist(), moments.deviations.tolist()) == ([[2.0]], [[1.0]])
    assert moments.counts.tolist() == [2.0]


def test_a_single_sample_has_no_spread() -> None:
    moments = moments_of(np.array([[1.0, 2.0]]), None, classes=0)
    assert (moments.means.tolist(), moments.deviations.tolist()) == ([[1.0, 2.0]], [[0.0, 0.0]])


def test_projection_is_in_double_precision() -> None:
    """1e8 + 1 is no float32: the mean has to be taken off in float64."""
    projector: Tensors = {"mean": np.array([1e8 + 1.0]), "components": np.array([[2.0]])}
    found = project([np.array([[1e8]], np.float32), np.array([[1e8 + 8]], np.float32)], projector)
    assert found.dtype == np.float64
    assert found.tolist() == [[-2.0], [14.0]]


def test_a_sample_is_projected_alike_however_many_there_are() -> None:
    """Else what a device describes would depend on how its data are passed, and on the processor's cores."""
    chance = np.random.default_rng(0)
    latents = chance.normal(size=(257, 129)).astype(np.float32)
    for width, radius in ((129, {}), (131, {"radius": np.array(1.0)})):
        projector = {
            "mean": chance.normal(size=width),
            "components": chance.normal(size=(5, width)),
            **radius,
        }
        whole = project([latents], projector)
        assert whole.tolist() == project([latents[:16], latents[16:]], projector).tolist()
        if not radius:
            exact = (latents - projector["mean"]) @ projector["components"].T
            assert whole == pytest.approx(exact, abs=1e-12)


def test_parts_are_described_as_one() -> None:
    data = Dataset(np.arange(12.0).reshape(6, 2), np.array([0, 1, 0, 1, 0, 1]))
    parts = Views(data.subset(slice(0, 4)), data.subset(slice(4, 6)))
    found = projected(context(parts), AS_IT_IS, IDENTITY, ["train", "held_out"])
    assert found.tolist() == data.x.tolist()
    assert context(parts).labels(["train", "held_out"]).tolist() == [0, 1, 0, 1, 0, 1]  # type: ignore[union-attr]


def test_repeated_samples_are_worth_less_and_move_nothing() -> None:
    """Of class 0 one sample is there three times: 4 samples worth 4^2 / (3^2 + 1^2) drawn once each."""
    projected, labels = np.array([[1.0], [1.0], [1.0], [5.0], [7.0]]), np.array([0, 0, 0, 0, 1])
    plain = moments_of(projected, labels, 2)
    found = moments_of(projected, labels, 2, distinct=np.array([0, 0, 0, 1, 2]))
    assert np.array_equal(found.means, plain.means)
    assert np.array_equal(found.deviations, plain.deviations)
    assert found.counts == pytest.approx([25 / 11, 16 / 10, 1.0])


def test_what_has_a_guarantee_counts_a_repeated_sample_once() -> None:
    data = Dataset(np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0], [2.0, 1.0]]), np.array([0, 1, 0, 1]))
    projector = {"mean": np.zeros(4), "components": np.eye(4), "radius": np.array(1.5)}

    def found(rows: list[int]) -> list[list[int]]:
        some = context(whole(data.subset(np.array(rows))))
        return exact_sums(some, AS_IT_IS, projector, ["train"], 2).values.tolist()

    assert found([0, 1, 2, 3]) == found([0, 1, 3]) == found([3, 2, 0, 0, 1])
    assert found([0, 1, 2, 3]) != found([0, 1])


def test_classes_need_labels_and_a_label_free_description_does_not() -> None:
    unlabelled = context(whole(Dataset(np.arange(6.0).reshape(3, 2))))
    with pytest.raises(DeviceFault, match="needs labels"):
        described(unlabelled, AS_IT_IS, IDENTITY, ["train"], 2, PrivacySettings())
    found = described(unlabelled, AS_IT_IS, IDENTITY, ["train"], 0, PrivacySettings())
    assert found.statistics.counts.tolist() == [3.0]  # type: ignore[union-attr]


def test_a_label_that_the_run_does_not_know_is_named() -> None:
    with pytest.raises(DataFault, match="label 2"):
        moments_of(np.zeros((2, 1)), np.array([0, 2]), classes=2)


@pytest.mark.parametrize("classes", [-1, 10**9])
def test_a_number_of_classes_that_cannot_be(classes: int) -> None:
    with pytest.raises(BadPayload, match="classes"):
        moments_of(np.zeros((2, 1)), None, classes)


@pytest.mark.parametrize(
    ("projector", "message"),
    [
        ({"mean": np.zeros(2)}, "lacks tensor 'components'"),
        ({**IDENTITY, "scale": np.ones(2)}, "unknown tensor 'scale'"),
        ({"mean": np.zeros(3), "components": np.zeros((1, 3))}, "tensor 'mean'"),
        ({"mean": np.zeros(2), "components": np.zeros((1, 3))}, "tensor 'components'"),
        ({"mean": np.zeros(2), "components": np.zeros((0, 2))}, "no components"),
        ({"mean": np.zeros(2, np.float32), "components": np.eye(2)}, "tensor 'mean'"),
    ],
)
def test_a_projector_that_does_not_fit_is_refused(projector: Tensors, message: str) -> None:
    with pytest.raises(BadPayload, match=message):
        project([np.zeros((1, 2))], projector)


def test_the_order_of_the_projectors_tensors_does_not_matter() -> None:
    turned: Tensors = {"components": np.array([[0.0, 1.0]]), "mean": np.array([0.0, 1.0])}
    assert project([np.array([[5.0, 3.0]])], turned).tolist() == [[2.0]]


def test_latents_that_are_not_finite_are_the_learners_to_hint() -> None:
    with pytest.raises(LearnerFault, match="NaN or infinite"):
        moments_of(np.array([[np.nan, 1.0]]), None, 0)


def test_a_projector_with_a_radius_has_latents_standardised_first() -> None:
    projector: Tensors = {"mean": np.zeros(5), "components": np.eye(5), "radius": np.array(0.5)}
    latents = np.array([[1.0, 2.0, 3.0], [0.1, 0.1, 0.1], [1e30, 0.0, -1e30], [np.inf, 0.0, 1.0]], np.float32)
    found = project([latents], projector)
    half = np.sqrt(0.5)
    np.testing.assert_allclose(found[:3, :3], [[-half, 0, half], [0, 0, 0], [half, 0, -half]], atol=1e-12)
    turned = np.log(2.0)  # two radians for each factor of e, of a length of the root of 2
    np.testing.assert_allclose(found[0, 3:], [np.cos(turned), np.sin(turned)], atol=1e-12)
    assert found[1].tolist() == [0.0] * 5
    assert np.isnan(found[3]).all()


@given(unit=st.floats(1e-6, 1e6), factor=st.floats(1.05, 20.0))
def test_what_differs_by_a_factor_alone_differs_whatever_the_unit_is(unit: float, factor: float) -> None:
    """Brightness, for one: and by how much is the same wherever it is."""
    latents = unit * np.array([[1.0, 2.0, 5.0]])
    dim, bright = standardized(np.concatenate([latents, factor * latents]))
    assert dim[:3] == pytest.approx(bright[:3])
    between = float(np.linalg.norm(dim[3:] - bright[3:]))
    assert between == pytest.approx(2.0 * abs(math.sin(math.log(factor))), abs=1e-9)
    assert float(np.linalg.norm(dim)) == pytest.approx(math.sqrt(2.0))


@pytest.mark.parametrize("radius", [0.0, -1.0, np.nan, np.inf])
def test_a_radius_that_is_none_is_refused(radius: float) -> None:
    projector = {"mean": np.zeros(4), "components": np.eye(4), "radius": np.array(radius)}
    with pytest.raises(BadPayload, match="the projector's radius is"):
        project([np.zeros((1, 2))], projector)
