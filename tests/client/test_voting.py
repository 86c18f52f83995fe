"""A newcomer that votes for a cluster: what leaves it, what it pays, and what that proves of its samples."""

import asyncio
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from torch import nn

from fedclient.agent.allowance import Allowance
from fedclient.config import WorkConfig
from fedclient.faults import TaskFailed
from fedclient.placing.asking import Asker
from fedclient.placing.placement import PlacementResult, Placer
from fedclient.store.blobs import BlobStore
from fedclient.store.ledger import Ledger
from fedclient.work.runtime import Runtime
from shoal.core.data.dataset import Dataset
from shoal.core.data.views import Views
from shoal.core.device_kit.context import DeviceContext
from shoal.core.device_kit.learner import Learner, initial_weights
from shoal.core.errors import BadPayload
from shoal.core.exchange.choosing import ClusterDensities
from shoal.core.exchange.choosing.vote import Vote, vote_on
from shoal.core.exchange.link import Failure, Placement, Question, Task
from shoal.core.exchange.parts import Ballot, ClusterAssignment
from shoal.core.exchange.payload import encode
from shoal.core.exchange.tensors import manifest_of
from shoal.core.inference.newcomer import vote
from shoal.core.privacy.accountant import Unmetered
from shoal.core.privacy.ledger.entries import Open, Release, chosen, paid
from shoal.core.privacy.payment import VOTE
from shoal.core.types import Tensors
from tests.audit.bounds import epsilon_bound
from tests.client.in_process import InProcess
from tests.client.memory_server import MemoryLink, MemoryServer, quiet

NAMES = ("near", "far", "farther")


@pytest.fixture
def newcomer(work: WorkConfig, tmp_path: Path) -> WorkConfig:
    samples = np.random.default_rng(3).normal(size=(60, 4)).astype(np.float32)
    np.savez(tmp_path / "new.npz", x=np.concatenate([samples, samples[:5]]))
    return replace(work, file=tmp_path / "new.npz", labels=False, newcomer=True)


def question(work: WorkConfig, epsilon: float = 1.0) -> Vote:
    """On three clusters, of which the first one has data like the device's."""
    model = initial_weights(Runtime.open(work)._context.learner, 5)
    clusters = {
        "shares": np.ones((3, 1)),
        "means": np.array([0.0, 2.0, 4.0])[:, None, None] * np.ones((1, 1, 2)),
        "variances": np.full((3, 1, 2), 0.5),
    }
    projector = {"mean": np.zeros(8), "components": np.eye(2, 8)}
    return vote_on(NAMES, ClusterDensities(model, projector, clusters), epsilon)


class Voting(MemoryLink):
    """A run that asks newcomers to vote, and gives them the model for which they do."""

    def __init__(self, server: MemoryServer, asked: Vote, models: dict[str, Tensors]) -> None:
        super().__init__(server)
        self.server, self.models, self.shown = server, models, list[object]()
        server.question = Question("r1", encode(asked, server.keep))

    async def place(self, run: str, evidence: object, accept_nearest: bool = False) -> Question | Placement:
        self.shown.append(evidence)
        if not isinstance(evidence, Ballot):
            assert self.server.question is not None
            return self.server.question
        model = self.server.keep(self.models[evidence.cluster])
        return Placement("r1", ClusterAssignment(evidence.cluster, confidence=0.0), model)


def placed(work: WorkConfig, store: BlobStore, asked: Vote) -> tuple[PlacementResult, Voting]:
    model = initial_weights(Runtime.open(work)._context.learner, 5)
    models = {name: {key: w + number for key, w in model.items()} for number, name in enumerate(NAMES)}
    link = Voting(MemoryServer([]), asked, models)
    placer = Placer(
        Asker(link, store, quiet, Allowance(1 << 20, give_up_after=0.05)),
        InProcess(Runtime.open(work)),
        quiet,
    )
    return asyncio.run(placer.place()), link


def test_one_name_leaves_and_is_paid_for_once(newcomer: WorkConfig, store: BlobStore) -> None:
    found, link = placed(newcomer, store, question(newcomer, 2.0))
    assert found.assignment.cluster == "near"
    ledger = Ledger(newcomer.account, newcomer.privacy)
    (debit,), (release,) = paid(ledger.verify(), VOTE), chosen(ledger.entries(), Release)
    assert (debit.payment.facts, debit.run, release.debit) == ({"epsilon": 2.0}, "r1", debit.number)
    assert chosen(ledger.entries(), Open) == []
    assert link.shown[-1] == Ballot("near", 2.0)
    assert found.model is not None
    again, _ = placed(newcomer, store, question(newcomer, 2.0))
    assert again.assignment.cluster == "near"
    assert len(paid(ledger.entries(), VOTE)) == 1, "the same question has the same answer, at no cost"


def test_the_owners_budget_decides_whether_it_votes(newcomer: WorkConfig, store: BlobStore) -> None:
    poor = replace(newcomer, privacy=replace(newcomer.privacy, epsilon=0.5))
    with pytest.raises(TaskFailed) as refused:
        placed(poor, store, question(newcomer))
    assert refused.value.code == "over-budget"
    assert Ledger(newcomer.account, newcomer.privacy).entries() == []


def test_a_device_that_trains_does_not_vote_for_a_server_that_gives_it_the_task(
    newcomer: WorkConfig, store: BlobStore
) -> None:
    payload = encode(question(newcomer), store.keep)
    trainer = Runtime.open(replace(newcomer, newcomer=False))
    answer = trainer.perform(Task("r1", 1, 1, 7, "", payload))
    assert isinstance(answer, Failure)
    assert "can do a 'vote' task" in answer.message


@pytest.mark.parametrize("names", [("a",), ("a", "a"), ("a", "")])
def test_a_vote_that_is_none_is_refused(newcomer: WorkConfig, names: tuple[str, ...]) -> None:
    asked = question(newcomer)
    with pytest.raises(BadPayload):
        Vote(" ".join(names), 1.0, asked.encoder, asked.projector, asked.densities)
    model = initial_weights(Runtime.open(newcomer)._context.learner, 5)
    with pytest.raises(BadPayload, match="3 densities of 2 clusters"):
        Vote("a b", 1.0, asked.encoder, asked.projector, asked.densities).opened(manifest_of(model))


def test_many_votes_prove_no_more_of_a_sample_than_their_epsilon(
    newcomer: WorkConfig, tmp_path: Path
) -> None:
    """Against the sample that matters most: it is BOUND less likely in one cluster than in the other."""
    learner = Learner("plain", build=_identity, latent=lambda model, x: x)
    clusters = {
        "shares": np.ones((2, 1)),
        "means": np.array([-1.0, 1.0])[:, None, None],
        "variances": np.full((2, 1, 1), 0.01),
    }
    projector = {"mean": np.zeros(1), "components": np.ones((1, 1))}
    weights = initial_weights(learner, 1)
    asked = vote_on(("left", "right"), ClusterDensities(weights, projector, clusters), 1.0)
    sides = []
    for present in (False, True):
        x = np.array([[-1.0], [1.0], *([[1.0001]] if present else [])], np.float32)
        context = DeviceContext(
            learner, Views.of(Dataset(x)), "cpu", 0, np.random.default_rng(0),
            account=Unmetered(np.random.default_rng(7 + present).bytes),
        )  # fmt: skip
        named = [vote(asked, context).ballot.cluster == "right" for _ in range(400)]
        sides.append(np.array(named, float))
    assert 0.5 < sides[1].mean() < 1.0
    proved = max(epsilon_bound(*sides, 0.0), epsilon_bound(1.0 - sides[1], 1.0 - sides[0], 0.0))
    assert 0.2 < proved <= 1.0


def _identity() -> nn.Module:
    return nn.Linear(1, 2)
