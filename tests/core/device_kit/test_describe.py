import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from shoal.core.data.dataset import Dataset
from shoal.core.data.version import distinct
from shoal.core.device_kit.describe import describe, project, standardized, sums
from shoal.core.device_kit.learner import Learner, builtin
from shoal.core.device_kit.samples import PASS, convert
from shoal.core.errors import BadPayload, DataFault, DeviceFault, LearnerFault
from shoal.core.inference.moments import moments_of
from shoal.core.types import Tensors

CPU = torch.device("cpu")
IDENTITY: Tensors = {"mean": np.zeros(2), "components": np.eye(2)}
AS_IT_IS = builtin("mlp", {"inputs": 2, "hidden": (), "classes": 2})
"""A learner whose latents are its inputs."""


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
    found = project(iter([torch.tensor([[1e8]]), torch.tensor([[1e8 + 8]])]), projector)
    assert found.dtype == np.float64
    assert found.tolist() == [[-2.0], [14.0]]


def test_it_is_what_numpy_makes_of_the_same_latents() -> None:
    chance = np.random.default_rng(0)
    count = PASS + 40
    data = Dataset(chance.random((count, 1, 12, 12), np.float32), chance.integers(0, 3, count))
    learner = builtin("lenet5", {"size": 12, "classes": 3})
    model = learner.module(0)
    projector: Tensors = {"mean": chance.normal(size=16), "components": chance.normal(size=(5, 16))}
    moments = describe(learner, model, [convert(data, CPU)], projector, classes=4)

    with torch.no_grad():
        z = model.latent(torch.from_numpy(data.x)).numpy().astype(np.float64)  # type: ignore[operator]
    projected = (z - projector["mean"]) @ projector["components"].T
    assert data.y is not None
    for row, mask in enumerate([data.y >= 0, data.y == 0, data.y == 1, data.y == 2]):
        own = projected[mask]
        mean = own.sum(0) / len(own)
        assert moments.counts[row] == len(own)
        assert moments.means[row] == pytest.approx(mean, abs=1e-6)
        assert moments.deviations[row] == pytest.approx(
            np.sqrt(((own - mean) ** 2).sum(0) / len(own)), abs=1e-6
        )
    assert moments.counts[4] == 0
    assert (moments.low, moments.high) == pytest.approx((projected.min(), projected.max()), abs=1e-6)


def test_parts_are_described_as_one() -> None:
    data = Dataset(np.arange(12.0).reshape(6, 2), np.array([0, 1, 0, 1, 0, 1]))
    parts = [convert(data.subset(slice(0, 4)), CPU), convert(data.subset(slice(4, 6)), CPU)]
    whole = describe(AS_IT_IS, AS_IT_IS.module(0), [convert(data, CPU)], IDENTITY, classes=2)
    pieces = describe(AS_IT_IS, AS_IT_IS.module(0), parts, IDENTITY, classes=2)
    assert np.array_equal(whole.means, pieces.means)
    assert np.array_equal(whole.deviations, pieces.deviations)


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
        some = data.subset(np.array(rows))
        which = distinct([some], labels=True)
        parts = [convert(some, CPU)]
        return sums(AS_IT_IS, AS_IT_IS.module(0), parts, projector, 2, which).values.tolist()

    assert found([0, 1, 2, 3]) == found([0, 1, 3]) == found([3, 2, 0, 0, 1])
    assert found([0, 1, 2, 3]) != found([0, 1])


def test_classes_need_labels_and_a_label_free_description_does_not() -> None:
    unlabelled = [convert(Dataset(np.ones((3, 2))), CPU)]
    with pytest.raises(DeviceFault, match="needs labels"):
        describe(AS_IT_IS, AS_IT_IS.module(0), unlabelled, IDENTITY, classes=2)
    assert describe(AS_IT_IS, AS_IT_IS.module(0), unlabelled, IDENTITY, classes=0).counts.tolist() == [3.0]


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
        project(iter([torch.zeros(1, 2)]), projector)


def test_the_order_of_the_projectors_tensors_does_not_matter() -> None:
    turned: Tensors = {"components": np.array([[0.0, 1.0]]), "mean": np.array([0.0, 1.0])}
    assert project(iter([torch.tensor([[5.0, 3.0]])]), turned).tolist() == [[2.0]]


def test_latents_that_are_not_finite_are_the_learners_to_hint() -> None:
    learner = Learner("nan", AS_IT_IS.build, latent=lambda model, x: x / 0)
    with pytest.raises(LearnerFault, match="NaN or infinite"):
        describe(learner, AS_IT_IS.module(0), [convert(Dataset(np.ones((1, 2))), CPU)], IDENTITY, 0)


def test_a_projector_with_a_radius_has_latents_standardised_first() -> None:
    projector: Tensors = {"mean": np.zeros(5), "components": np.eye(5), "radius": np.array(0.5)}
    latents = torch.tensor([[1.0, 2.0, 3.0], [0.1, 0.1, 0.1], [1e30, 0.0, -1e30], [torch.inf, 0.0, 1.0]])
    found = project(iter([latents]), projector)
    half = np.sqrt(0.5)
    np.testing.assert_allclose(found[:3, :3], [[-half, 0, half], [0, 0, 0], [half, 0, -half]], atol=1e-12)
    turned = np.log(2.0)  # two radians for each factor of e, of a length of the root of 2
    np.testing.assert_allclose(found[0, 3:], [np.cos(turned), np.sin(turned)], atol=1e-12)
    assert found[1].tolist() == [0.0] * 5
    assert np.isnan(found[3]).all()


@given(unit=st.floats(1e-6, 1e6), factor=st.floats(1.05, 20.0))
def test_what_differs_by_a_factor_alone_differs_whatever_the_unit_is(unit: float, factor: float) -> None:
    """Brightness, for one: and by how much is the same wherever it is."""
    latents = unit * torch.tensor([[1.0, 2.0, 5.0]], dtype=torch.float64)
    dim, bright = standardized(torch.cat([latents, factor * latents]))
    assert torch.allclose(dim[:3], bright[:3])
    assert float((dim[3:] - bright[3:]).norm()) == pytest.approx(
        2.0 * abs(math.sin(math.log(factor))), abs=1e-9
    )
    assert float(dim.norm()) == pytest.approx(math.sqrt(2.0))


@pytest.mark.parametrize("radius", [0.0, -1.0, np.nan, np.inf])
def test_a_radius_that_is_none_is_refused(radius: float) -> None:
    projector = {"mean": np.zeros(4), "components": np.eye(4), "radius": np.array(radius)}
    with pytest.raises(BadPayload, match="the projector's radius is"):
        project(iter([torch.zeros(1, 2)]), projector)
