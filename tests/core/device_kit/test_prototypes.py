"""Mean embeddings by the learner's frozen encoder."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from shoal.core.data.dataset import Dataset
from shoal.core.device_kit import samples, standard
from shoal.core.device_kit.prototypes import WIDEST, _itself, prototypes
from shoal.core.errors import DeviceFault, LearnerFault, Unprotected
from shoal.core.exchange.messages import Represent, Represented
from shoal.core.privacy.accountant import MaskedUpdate

from .conftest import context_of, small

X = np.arange(40, dtype=np.float32).reshape(10, 4)
Y = np.array([3, 1, 3, 1, 3, 1, 3, 1, 3, 1])


def doubled(x: Tensor) -> Tensor:
    return 2 * x


def kept(context: Any) -> tuple[np.ndarray, np.ndarray]:
    """What of the data is in the training part."""
    part = context.views.train
    return part.x.astype(float), part.y


@pytest.mark.parametrize("at_once", [3, 256])
def test_the_mean_of_each_class_that_is_there(at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(samples, "PASS", at_once)
    context = context_of(replace(small(), encoder=doubled), Dataset(X, Y))
    found, (x, y) = prototypes(context, by_class=True), kept(context)
    assert found.classes.tolist() == [1.0, 3.0]
    assert found.counts.tolist() == [(y == 1).sum(), (y == 3).sum()]
    np.testing.assert_allclose(found.means, [2 * x[y == c].mean(0) for c in (1, 3)])


def test_without_classes_the_mean_of_all_samples_and_no_labels_are_needed() -> None:
    context = context_of(replace(small(), encoder=doubled), Dataset(X))
    found = prototypes(context, by_class=False)
    assert (found.classes.tolist(), found.counts.tolist()) == ([0.0], [10.0])
    np.testing.assert_allclose(found.means, 2 * X.mean(0, keepdims=True))


def test_a_module_is_used_as_it_is_in_evaluation_mode_and_not_trained() -> None:
    module = nn.Sequential(nn.Linear(4, 2), nn.Dropout(0.5))
    before = {name: value.clone() for name, value in module.state_dict().items()}
    context = context_of(replace(small(), encoder=module), Dataset(X, Y))
    first, again = (prototypes(context, by_class=True).means for _ in range(2))
    np.testing.assert_array_equal(first, again)
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())


def test_without_an_encoder_the_inputs_are_their_own_embedding_in_limited_width() -> None:
    own = replace(small(), encoder=lambda x: x.flatten(1))
    found, wanted = (
        prototypes(context_of(learner, Dataset(X, Y)), by_class=True).means for learner in (small(), own)
    )
    np.testing.assert_array_equal(found, wanted)
    images = torch.arange(2 * 3 * 64 * 48.0).reshape(2, 3, 64, 48)
    assert _itself(images, "net").shape == (2, 3 * 32 * 32)
    assert _itself(torch.zeros(2, 9000), "net").shape == (2, WIDEST)


def test_tokens_without_an_encoder_and_data_without_labels_are_told_what_would_help() -> None:
    with pytest.raises(LearnerFault, match="no encoder"):
        _itself(torch.zeros(2, 5, dtype=torch.int64), "net")
    blind = context_of(replace(small(), encoder=doubled), Dataset(X))
    with pytest.raises(DeviceFault, match=r"the data have none \(label some samples, or ask a run"):
        prototypes(blind, by_class=True)


@pytest.mark.parametrize(
    ("encoder", "problem"),
    [
        (lambda x: x[:1], r"shape \(1, 4\) for 8 samples"),
        (lambda x: x.sum(1), "for 8 samples"),
        (lambda x: x.numpy(), "a ndarray for 8 samples"),
        (lambda x: x / 0, "NaN or infinite"),
        (lambda x: 1 / 0, r"encoder\(\) failed: ZeroDivisionError"),
    ],
)
def test_an_encoder_that_gives_no_embeddings_is_the_authors_fault(encoder: Any, problem: str) -> None:
    with pytest.raises(LearnerFault, match=problem):
        prototypes(context_of(replace(small(), encoder=encoder), Dataset(X, Y)), by_class=True)


def test_the_owner_can_keep_them_from_leaving() -> None:
    noted: list[str] = []

    class Strict:
        def pay(self, payment: Any, exact: Any, noised: Any) -> Any:
            raise AssertionError

        def summed(self, update: MaskedUpdate) -> None:
            raise AssertionError

        def unprotected(self, what: str, data: str) -> None:
            noted.append(what)
            raise Unprotected("no")

    context = context_of(replace(small(), encoder=doubled), Dataset(X, Y))
    answer = standard.perform(Represent(), context)
    assert isinstance(answer, Represented)
    assert answer.examples == 8
    context.account = Strict()
    with pytest.raises(Unprotected):
        standard.perform(Represent(), context)
    assert "prototypes" in noted[0]
