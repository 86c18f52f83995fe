"""A server that asks for everything, of a device whose owner lets nothing leave in the open.

More than 400 requests: every message of every algorithm and of secure aggregation, with ordinary,
amplified, infinite and missing weights, parameters that nothing sane has, and terms that lie about the run.
The learner prints its tensors when a check fails, as PyTorch's own distributions do. What leaves is then a
code with a fixed text, or something that a line of the ledger pays for, or a fact that does not depend on
data.
"""

import dataclasses
import itertools
import typing
from collections.abc import Iterator
from pathlib import Path
from secrets import token_bytes
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fedclient.config import LearnerConfig, WorkConfig
from fedclient.store.blobs import BlobStore
from fedclient.store.ledger import Ledger
from fedclient.work.failures import TEXTS, outgoing
from fedclient.work.runtime import Runtime
from shoal.core import algorithm
from shoal.core.algorithm.asks import terms_of
from shoal.core.data.dataset import Dataset
from shoal.core.data.views import Views
from shoal.core.device_kit.context import DeviceContext
from shoal.core.device_kit.learner import Learner, initial_weights
from shoal.core.errors import ShoalError
from shoal.core.exchange.link import Failure, Task
from shoal.core.exchange.messages import (
    WIDTH,
    CountLatents,
    Describe,
    Evaluate,
    Message,
    PrivateTraining,
    Represent,
    Score,
    Train,
    TrainingSettings,
)
from shoal.core.exchange.parts import PrivacySettings
from shoal.core.exchange.payload import Payload, encode
from shoal.core.exchange.summing import Announce, Share, TrainMasked, Unmask, letters_part
from shoal.core.exchange.wire import payload_to_bytes
from shoal.core.privacy.budget import Budget
from shoal.core.privacy.cost import total
from shoal.core.privacy.ledger import Entry, Open, Reserved, chosen, paid
from shoal.core.privacy.secure.cohort import FEWEST, KEY
from shoal.core.server_kit.frozen_encoder import public_projector
from shoal.core.types import Tensors

INPUTS, CLASSES, SAMPLES, HIDDEN = 6, 3, 90, 4
FREE = {"built", "latents_counted", "announced"}
"""Kinds of answers that do not depend on data."""
SETTINGS = TrainingSettings(epochs=1, batch_size=200)


class Talkative(nn.Module):
    """A learner that checks its latents, and shows them where they are wrong."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.head = nn.Linear(INPUTS, HIDDEN), nn.Linear(HIDDEN, CLASSES)

    def latent(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.hidden(x)
        torch.distributions.Normal(found, nn.functional.softplus(found))  # its error prints the tensor
        return found

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.head(self.hidden(x))
        return scores


LEARNER = Learner("talkative", Talkative, encoder=lambda x: x)


def models() -> dict[str, Tensors]:
    """Weights that a server may send."""
    usual = initial_weights(LEARNER, 1)
    first = {name: array.copy() for name, array in usual.items()}
    first["hidden.bias"][0] = -1e9
    return {
        "usual": usual,
        "one bias that makes a check fail": first,
        "amplified": {name: array * np.float32(1e20) for name, array in usual.items()},
        "infinite": {name: np.full_like(array, np.inf) for name, array in usual.items()},
        "identity": {
            name: np.eye(*array.shape, dtype=np.float32) if array.ndim == 2 else array * 0
            for name, array in usual.items()
        },
        "no numbers": {name: np.full_like(array, np.nan) for name, array in usual.items()},
        "a shape of its own": {**usual, "hidden.weight": np.zeros((2, 2), np.float32)},
        "none": {},
    }


def projectors() -> list[Tensors]:
    public = public_projector(HIDDEN, 4)
    raw = {"mean": np.zeros(HIDDEN), "components": np.eye(2, HIDDEN)}
    return [
        public,
        {**public, "radius": np.array(1e-9)},
        raw,
        {**public, "components": 1e300 * raw["components"]},
    ]


def privacies() -> list[PrivacySettings]:
    return [
        PrivacySettings(),
        PrivacySettings("paper", 1e9),
        PrivacySettings("balanced", 5.0, 1e-6),
        PrivacySettings("strict", 1.0, 1e-6),
        PrivacySettings("explicit", 1e6, 0.5),
        PrivacySettings("explicit", 4.0, 1e-6, 3),
    ]


def asks() -> Iterator[Message]:
    every = models()
    for model in every.values():
        yield Train(model, SETTINGS)
        yield CountLatents(model)
        yield Score((model, model))
        for part, bounds in itertools.product(("train", "held_out", "test", "else"), ("", "scalar", WIDTH)):
            yield Evaluate(model, part, bounds=bounds)
        for rho in (1e-6, 0.01, 1e3):
            yield Evaluate(model, "held_out", rho=rho)
        yield Train(model, SETTINGS, private=PrivateTraining(epsilon=0.5))
        yield Train(model, SETTINGS, private=PrivateTraining(clip=1e9, noise=0.1))
    for model, projector, privacy in itertools.product(list(every.values())[:5], projectors(), privacies()):
        yield Describe(model, projector, 0, privacy)
        yield Train(model, SETTINGS, "", projector, CLASSES, privacy)
    for by_class in (False, True):
        yield Represent(by_class)
    yield from summing(every["usual"])
    for card in algorithm.discover().values():
        for kind in card.messages:
            if hasattr(kind, "reply"):
                for model in list(every.values())[:4]:
                    if (made := anything(kind, model)) is not None:
                        yield made


def summing(model: Tensors) -> Iterator[Message]:
    """A sum over made-up devices, without the keys of this one, and a sum that never began."""
    session = "round 1, attempt 1"
    letters = letters_part({f"d{number}": token_bytes(2 * KEY) for number in range(FEWEST)})
    yield Announce(session)
    for each in (session, "another"):
        yield Share(each, letters)
        for clip, noise in ((1.0, 0.0), (1e9, 0.0), (1.0, 1e-9), (1.0, 4.0)):
            yield TrainMasked(model, SETTINGS, session=each, letters=letters, clip=clip, noise=noise)
        yield Unmask(each, letters)


def lie() -> str:
    """The terms of a run that is said to cost nearly nothing, and to let nothing leave in the open."""
    lies = {"rounds": 1, "dp_epsilon": 0.1, "evaluate": False}
    return terms_of("fedavg", algorithm.find("fedavg")[0].configure("default", lies))


def anything(kind: type[Message], model: Tensors) -> Message | None:
    """A message of this class, with plausible fields; None where it takes others."""
    hints, values = typing.get_type_hints(kind), {}
    for item in dataclasses.fields(kind):  # type: ignore[arg-type]
        if item.default is dataclasses.MISSING and item.default_factory is dataclasses.MISSING:
            values[item.name] = value_of(hints[item.name], model)
    try:
        return kind(**values)
    except (ShoalError, TypeError, ValueError):
        return None


def value_of(hint: Any, model: Tensors) -> Any:
    plain = {
        int: CLASSES,
        float: 0.5,
        str: "held_out",
        bool: True,
        Tensors: model,
        TrainingSettings: SETTINGS,
    }
    if hint in plain:
        return plain[hint]
    if hint == tuple[Tensors, ...]:
        return (model, model)
    if hint == tuple[float, ...]:
        return (0.5, 0.5)
    if dataclasses.is_dataclass(hint):
        fields = [item for item in dataclasses.fields(hint) if item.default is dataclasses.MISSING]
        types = typing.get_type_hints(hint)
        return hint(**{item.name: value_of(types[item.name], model) for item in fields})  # type: ignore[operator]
    return None


def unreserved(ledger: Ledger) -> list[Entry]:
    """The lines that tell of something that left, or was to."""
    return [each for each in ledger.entries() if not isinstance(each, Reserved)]


@pytest.fixture
def data() -> Dataset:
    chance = np.random.default_rng(7)
    x = chance.uniform(1.0, 2.0, size=(SAMPLES, INPUTS)).astype(np.float32)
    return Dataset(x, np.arange(SAMPLES) % CLASSES)


def test_nothing_of_the_data_leaves_outside_the_ledger(tmp_path: Path, data: Dataset) -> None:
    pytest.importorskip("opacus")
    budget = Budget(30.0, total_epsilon=30.0, allow_unprotected=False, allow_plain_weights=False)
    ledger = Ledger(tmp_path / "privacy", budget, "records")
    views = Views.of(data, data.subset(slice(0, 9)))
    context = DeviceContext(LEARNER, views, "cpu", 1, np.random.default_rng(), account=ledger)
    work = WorkConfig(tmp_path / "blobs", tmp_path / "privacy", LearnerConfig(builtin="mlp"))
    store = BlobStore(work.blobs)
    runtime = Runtime(context, store)
    records = {row.tobytes()[start : start + 4] for row in data.x for start in range(0, 4 * INPUTS, 4)}
    seen, failed, answered, terms = 0, dict[str, int](), dict[str, int](), lie()
    for number, message in enumerate(asks()):
        seen += 1
        before, lines = len(paid(ledger.entries())), len(unreserved(ledger))
        run, given = ("honest", "") if number % 2 else ("lying", terms)
        result = runtime.perform(Task(run, number + 1, 1, 0, "", encode(message, store.keep), given))
        if isinstance(result, Failure):
            sent = outgoing(result)
            assert sent.message == TEXTS[sent.code], message
            assert sent.details == ""
            failed[sent.code] = failed.get(sent.code, 0) + 1
            continue
        assert isinstance(result, Payload)
        answered[result.kind] = answered.get(result.kind, 0) + 1
        if result.kind in FREE:
            continue
        # Paid for now, or given again: what was paid for before.
        assert len(paid(ledger.entries())) > before or lines == len(unreserved(ledger)) > 0, message
        whole = payload_to_bytes(result) + b"".join(
            b"".join(store.chunks(weights.blob, 0)) for weights in result.weights()
        )
        assert not [each for each in records if each in whole], message
    assert seen >= 400, seen
    assert not [each for each in ledger.verify() if isinstance(each, Open)]
    assert {"unprotected", "learner-failed", "bad-payload", "over-budget"} <= set(failed), failed
    assert {"latents_counted", "evaluated", "described", "trained", "announced"} <= set(answered), answered
    assert "masked" not in answered
    assert chosen(ledger.entries(), Reserved), "lies about what a run costs change nothing"
    spent = total(each.cost for each in paid(ledger.entries()))
    assert budget.epsilon_of(spent) <= budget.total_epsilon * (1 + 1e-6)
