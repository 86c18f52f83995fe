"""Mean embeddings by the learner's frozen encoder."""

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from shoal.core.data.dataset import Dataset
from shoal.core.device_kit import standard
from shoal.core.device_kit.prototypes import digest_of, represent
from shoal.core.errors import DeviceFault, LearnerFault, Unprotected
from shoal.core.exchange.messages import INPUTS, Represent, Represented
from shoal.core.exchange.parts import Prototypes
from shoal.core.inference import representing
from shoal.core.inference.representing import WIDEST, itself
from shoal.core.privacy.accountant import MaskedUpdate

from .conftest import context_of, small

X = np.arange(40, dtype=np.float32).reshape(10, 4)
Y = np.array([3, 1, 3, 1, 3, 1, 3, 1, 3, 1])


def doubled(x: Tensor) -> Tensor:
    return 2 * x


def prototypes(context: Any, by_class: bool) -> Prototypes:
    return represent(Represent(by_class), context).prototypes


def kept(context: Any) -> tuple[np.ndarray, np.ndarray]:
    """What of the data is in the training part."""
    part = context.views.train
    return part.x.astype(float), part.y


@pytest.mark.parametrize("at_once", [3, 256])
def test_the_mean_of_each_class_that_is_there(at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(representing, "PASS", at_once)
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
        prototypes(context_of(learner, Dataset(X, Y)), by_class=True) for learner in (small(), own)
    )
    np.testing.assert_array_equal(found.means, wanted.means)
    assert found.encoder == INPUTS != wanted.encoder
    chance = torch.Generator().manual_seed(0)
    images, rows = torch.rand(2, 3, 64, 48, generator=chance), torch.rand(2, 9000, generator=chance)
    np.testing.assert_allclose(
        itself(images.numpy()), F.adaptive_avg_pool2d(images, 32).flatten(1), rtol=0, atol=1e-6
    )
    np.testing.assert_allclose(
        itself(rows.numpy()), F.adaptive_avg_pool1d(rows[:, None], WIDEST)[:, 0], rtol=0, atol=1e-6
    )


def test_an_encoder_is_known_by_its_code_and_its_weights() -> None:
    def network(seed: int) -> nn.Module:
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(4, 2), nn.ReLU())

    def by(module: nn.Module) -> Any:
        return lambda x: module(x)

    one, again, other = (digest_of(network(seed)) for seed in (0, 0, 1))
    assert one == again != other
    assert digest_of(nn.Sequential(nn.Linear(4, 2), nn.Tanh())) not in (one, other)
    assert digest_of(by(network(0))) == digest_of(by(network(0))) != digest_of(by(network(1)))
    assert len({digest_of(doubled), digest_of(kept), digest_of(partial(doubled, 2)), one}) == 4


def test_an_encoder_is_known_by_all_that_it_is_made_of() -> None:
    """Of several networks, or of several functions, none may be taken for one that was looked at before."""

    def line(weight: float) -> nn.Module:
        made = nn.Linear(4, 4)
        nn.init.constant_(made.weight, weight)
        nn.init.constant_(made.bias, 0.0)
        return made

    def of_networks(weight: float) -> Any:
        first, second = line(1.0), line(weight)
        return lambda x: second(first(x))

    def of_functions(weight: float) -> Any:
        one, other = [0.25], [weight]

        def first(x: Tensor) -> Tensor:
            return x * one[0]

        def second(x: Tensor) -> Tensor:
            return x * other[0]

        return lambda x: second(first(x))

    for made in (of_networks, of_functions):
        digests = [digest_of(made(weight)) for weight in (1.5, 2.5, 3.5, 2.5)]
        assert len({*digests}) == 3
        assert digests[1] == digests[3]


def test_a_device_with_another_encoder_than_the_others_refuses_before_anything_leaves() -> None:
    context = context_of(replace(small(), encoder=doubled), Dataset(X, Y))
    own = represent(Represent(), context).prototypes.encoder
    assert represent(Represent(digest=own), context).prototypes.encoder == own
    with pytest.raises(LearnerFault, match=f"themselves, and this one by the encoder {own[:12]}"):
        represent(Represent(digest=INPUTS), context)


def test_tokens_without_an_encoder_and_data_without_labels_are_told_what_would_help() -> None:
    with pytest.raises(LearnerFault, match="no encoder"):
        itself(np.zeros((2, 5), np.int64))
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
