"""A server that asks for everything, of a device whose owner lets nothing leave in the open.

More than 400 requests: every message of every algorithm, with ordinary, amplified, infinite and missing
weights, parameters that nothing sane has, and terms that lie about the run; and all four exchanges of secure
aggregation, in which the server plays the rest of the cohort with the keys that the device has announced. The
learner prints its tensors when a check fails, as PyTorch's own distributions do. What leaves is then a
code with a fixed text, or something that a line of the ledger pays for, or a fact that does not depend on
data.
"""

import contextlib
import dataclasses
import itertools
import re
import typing
from collections.abc import Generator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fedclient.store.blobs import BlobStore
from fedclient.store.ledger import Ledger
from fedclient.store.memory import Memory
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
from shoal.core.exchange.parts import Letters, PrivacySettings
from shoal.core.exchange.payload import Payload, decode, encode
from shoal.core.exchange.summing import (
    SECURE,
    Announce,
    Announced,
    Masked,
    Share,
    Shared,
    TrainMasked,
    Unmask,
    Unmasked,
)
from shoal.core.exchange.wire import payload_to_bytes, work_key
from shoal.core.privacy.budget import Budget
from shoal.core.privacy.cost import total
from shoal.core.privacy.ledger.entries import Entry, Open, Reserved, Summed, chosen, paid
from shoal.core.privacy.secure import member as members
from shoal.core.privacy.secure.cohort import MIN_COHORT, Manifest, Unsigned
from shoal.core.server_kit.frozen_encoder import public_projector
from shoal.core.types import Tensors

INPUTS, CLASSES, SAMPLES, HIDDEN = 6, 3, 90, 4
ALSO = {"other-shape": r"(: \[[0-9, ]*\] in the run, and \[[0-9, ]*\] here)?"}
"""What follows the text of a code: shapes of weights, which do not depend on data."""
FREE = {"built", "latents_counted", "announced", "shared", "unmasked"}
"""Kinds of answers that do not depend on data."""
SETTINGS = TrainingSettings(epochs=1, batch_size=200)
Asking = Generator[Message, Message | None, None]
"""A server: it asks, and gets the answers, None where the device has failed."""


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


def asks() -> Asking:
    every = models()
    for model in every.values():
        yield Train(model, SETTINGS)
        yield CountLatents(model)
        yield Score((model, model))
        for part, bounds in itertools.product(("train", "held_out", "test", "else"), ("", "scalar")):
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


def summing(model: Tensors) -> Asking:
    """A sum in which the server invents all other devices; each question also out of turn and twice."""
    session, me = "round 1, attempt 1", "d0"
    others = {f"d{number}": members.announced(session, Unsigned()) for number in range(1, MIN_COHORT)}
    invented = {name: announcement for name, (announcement, _) in others.items()}
    yield from exchanges(model, session, invented, {})
    answer = yield Announce(session)
    assert isinstance(answer, Announced)
    own = answer.keys.by_device[""]
    few = dict([(me, own), *invented.items()][: MIN_COHORT - 1])
    for cohort in (invented, few, {**invented, me: own, "d8": own}, {**invented, me: own[:-1]}):
        yield Share(session, Letters(cohort))
    whole = {**invented, me: own}
    shared = yield Share(session, Letters(whole))
    assert isinstance(shared, Shared)
    assert not shared.lost
    sent = {
        name: members.shared(member, Manifest(session, whole), Unsigned())[0][me]
        for name, (_, member) in others.items()
    }
    yield from exchanges(model, session, whole, sent)
    yield from exchanges(model, "another", whole, sent)


def exchanges(model: Tensors, session: str, cohort: dict[str, bytes], letters: dict[str, bytes]) -> Asking:
    yield Share(session, Letters(cohort))
    for clip, noise in ((1.0, 4.0), (1.0, 0.0), (1e9, 0.0), (1.0, 1e-9)):
        sent = Letters(letters)
        yield TrainMasked(model, SETTINGS, session=session, letters=sent, clip=clip, noise=noise)
    names = sorted(cohort)
    for survivors in (names[:5], names[1:], names, names[:6], [*names, "d9"]):
        yield Unmask(session, Letters(dict.fromkeys(survivors, b"")))


def lie() -> str:
    """The terms of a run that is said to cost nearly nothing, and to let nothing leave in the open."""
    lies = {"rounds": 1, "dp_epsilon": 0.1, "evaluate": False}
    card, _ = algorithm.find("fedavg")
    return terms_of(card, card.configure("default", lies))


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


@dataclass
class Device:
    """A device of this owner. answered, failed: how often, by kind of answer and by code of failure."""

    folder: Path
    data: Dataset
    budget: Budget
    answered: dict[str, int] = field(default_factory=dict)
    failed: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.ledger = Ledger(self.folder / "privacy", self.budget, "records")
        views = Views.of(self.data, self.data.subset(slice(0, 9)))
        context = DeviceContext(LEARNER, views, "cpu", 1, np.random.default_rng(), account=self.ledger)
        self.store = BlobStore(self.folder / "blobs")
        self.memory = Memory.beside(self.store.folder)
        self.runtime, self.tasks = Runtime(context, self.store), 0
        size = 4 * INPUTS
        self.records = {row.tobytes()[at : at + 4] for row in self.data.x for at in range(0, size, 4)}

    def serve(self, server: Asking, terms: str) -> int:
        """Answer everything that the server asks; every other run lies about its terms. Returns how often it
        asked."""
        answer: Message | None = None
        with contextlib.suppress(StopIteration):
            while True:
                answer = self.answer(server.send(answer), terms)
        return self.tasks

    def answer(self, message: Message, terms: str) -> Message | None:
        self.tasks += 1
        before, lines = len(paid(self.ledger.entries())), len(unreserved(self.ledger))
        # A sum takes several tasks of one run.
        lying = self.tasks % 2 == 0 and not isinstance(message, SECURE)
        run, given = ("lying", terms) if lying else ("honest", "")
        task = Task(run, self.tasks, 1, 0, "", encode(message, self.store.keep), given)
        result = self.runtime.perform(task)
        if isinstance(result, Failure):
            sent = outgoing(result)
            assert re.fullmatch(re.escape(TEXTS[sent.code]) + ALSO.get(sent.code, ""), sent.message), message
            assert sent.details == ""
            self.failed[sent.code] = self.failed.get(sent.code, 0) + 1
            return None
        assert isinstance(result, Payload)
        self.memory.settle(work_key(task))  # as the agent does, once the result is in its outbox
        self.answered[result.kind] = self.answered.get(result.kind, 0) + 1
        if result.kind not in FREE:
            # Paid for now, or given again: what was paid for before. Masks cost nothing, and have a line.
            now, after = len(paid(self.ledger.entries())) > before, len(unreserved(self.ledger))
            assert now or lines == after > 0 or (isinstance(message, TrainMasked) and lines < after), message
        if result.kind != "built":  # which has nothing of the data in it, but may have the same four bytes
            whole = payload_to_bytes(result) + b"".join(
                b"".join(self.store.chunks(weights.blob, 0)) for weights in result.weights()
            )
            assert not [each for each in self.records if each in whole], message
        reply = type(message).reply
        return decode(result, {reply.kind: reply}, self.store.load)


def test_nothing_of_the_data_leaves_outside_the_ledger(tmp_path: Path, data: Dataset) -> None:
    pytest.importorskip("opacus")
    budget = Budget(30.0, total_epsilon=30.0, allow_unprotected=False, allow_plain_weights=False)
    device = Device(tmp_path, data, budget)
    seen = device.serve(asks(), lie())
    assert seen >= 400, seen
    ledger, answered = device.ledger, device.answered
    assert not [each for each in ledger.verify() if isinstance(each, Open)]
    assert {"unprotected", "learner-failed", "bad-payload", "over-budget"} <= set(device.failed)
    expected = {"latents_counted", "evaluated", "described", "trained", "announced", "shared", "unmasked"}
    assert expected <= set(answered), answered
    assert "masked" not in answered, "the owner allows no update to leave, under masks or not"
    assert chosen(ledger.entries(), Reserved), "lies about what a run costs change nothing"
    spent = total(each.payment.cost for each in paid(ledger.entries()))
    assert budget.epsilon_of(spent) <= budget.total_epsilon * (1 + 1e-6)


def test_where_sums_are_allowed_one_update_leaves_under_masks_and_its_masks_are_given_once(
    tmp_path: Path, data: Dataset
) -> None:
    device, seen = Device(tmp_path, data, Budget(allow_plain_weights=True)), list[Message]()

    def watched(server: Asking) -> Asking:
        answer: Message | None = None
        with contextlib.suppress(StopIteration):
            while True:
                answer = yield server.send(answer)
                seen.extend([answer] if answer else [])

    device.serve(watched(summing(models()["usual"])), "")
    masked = [each for each in seen if isinstance(each, Masked) and not each.lost]
    assert len(masked) == 1
    given = [each.shares.by_device for each in seen if isinstance(each, Unmasked) and not each.lost]
    assert len(given) == 1, "lists of too few devices, or of others, and a second list get nothing"
    assert len(given[0]) == MIN_COHORT
    (line,) = chosen(device.ledger.verify(), Summed)
    assert (line.update.devices, line.update.fewest) == (MIN_COHORT, 6)
