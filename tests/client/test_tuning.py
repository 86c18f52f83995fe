"""A device that trains is placed: it fine-tunes its cluster's model itself, and tells the server nothing."""

import asyncio
import json
from dataclasses import replace
from pathlib import Path

import pytest
from safetensors import safe_open

from fedclient.agent.allowance import Allowance
from fedclient.cli.place import _tuning
from fedclient.config import WorkConfig
from fedclient.placing.asking import MAX_MODELS, Asker
from fedclient.placing.placement import PlacementResult, Placer, save
from fedclient.store.blobs import BlobStore
from fedclient.store.state import PLACEMENT
from fedclient.work.runtime import Runtime
from shoal.core.device_kit.evaluation.evaluate import evaluate
from shoal.core.device_kit.learner import initial_weights
from shoal.core.errors import BadPayload
from shoal.core.exchange.choosing import Wish
from shoal.core.exchange.choosing.tuning import MAX_LOSS_LEFT, Tune
from shoal.core.exchange.link import Placement, Question
from shoal.core.exchange.messages import TrainingSettings
from shoal.core.exchange.payload import Payload, encode
from shoal.core.types import Tensors
from tests.client.in_process import InProcess
from tests.client.memory_server import MemoryLink, MemoryServer, quiet

SETTINGS = TrainingSettings(epochs=5, batch_size=8, learning_rate=0.2)


@pytest.fixture
def model(work: WorkConfig) -> Tensors:
    return initial_weights(Runtime.open(work)._context.learner, 5)


class Asked(MemoryLink):
    """A server that answers with its question, and a note of what it was asked."""

    def __init__(self, server: MemoryServer, model: Tensors, settings: TrainingSettings) -> None:
        super().__init__(server)
        self.question = Question("r1", encode(Tune(model, settings, "c1"), server.keep))
        self.evidence: list[object] = []

    async def place(self, run: str, evidence: object, accept_nearest: bool = False) -> Question | Placement:
        self.evidence.append(evidence)
        return self.question


def placed(
    link: Asked, work: WorkConfig, store: BlobStore, own: WorkConfig | None, tune: bool = True
) -> PlacementResult:
    newcomer = InProcess(Runtime.open(replace(work, newcomer=True)))
    trainer = InProcess(Runtime.open(replace(own, newcomer=True))) if own else None
    asker = Asker(link, store, quiet, Allowance(1 << 20, give_up_after=0.05))
    return asyncio.run(Placer(asker, newcomer, quiet, own=trainer, tune=tune).place())


def test_it_keeps_the_fine_tuned_model_and_sends_nothing(
    work: WorkConfig, store: BlobStore, model: Tensors, tmp_path: Path
) -> None:
    link = Asked(MemoryServer([]), model, SETTINGS)
    found = placed(link, work, store, work)
    assert link.evidence == [Wish(MAX_MODELS, own=True)], "one call, which says nothing"
    assert (found.run, found.assignment.cluster, found.sent) == ("r1", "c1", 0)
    assert found.model is not None
    assert found.tuning is not None
    assert found.tuning.kept
    context = Runtime.open(work)._context
    before, kept = (
        evaluate(context.learner, context.load(each), context.samples("held_out"))[1]
        for each in (model, store.load(found.model))
    )
    assert found.tuning.before == pytest.approx(before)
    assert found.tuning.after is not None
    assert kept < found.tuning.after <= MAX_LOSS_LEFT * before, (
        "what is kept has learned from these samples too"
    )
    path = save(found, store, tmp_path / "model")
    facts = json.loads((path.parent / PLACEMENT).read_text())
    assert facts["model"] == found.model.blob.sha256
    assert facts["fine_tuning"]["kept"] is True
    with safe_open(path, "numpy") as file:
        assert file.metadata()["fine_tuning"] == "on the data of the device that fetched it"
    assert "fine-tuned on this device's data: held-out loss" in _tuning(found)[0]


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        (replace(SETTINGS, epochs=1, learning_rate=1e-6), "did not lower the held-out loss by 10%"),
        (replace(SETTINGS, learning_rate=1e30), "fine-tuning failed"),
    ],
)
def test_it_takes_the_clusters_model_where_fine_tuning_does_not_pay_or_fails(
    work: WorkConfig, store: BlobStore, model: Tensors, settings: TrainingSettings, why: str, tmp_path: Path
) -> None:
    link = Asked(MemoryServer([]), model, settings)
    found = placed(link, work, store, work)
    assert found.model == link.question.payload.parts["model"]
    assert found.tuning is not None
    assert not found.tuning.kept
    assert why in _tuning(found)[0]
    with safe_open(save(found, store, tmp_path / "model"), "numpy") as file:
        assert "fine_tuning" not in file.metadata()


def test_its_owner_may_want_the_clusters_model_as_it_is(
    work: WorkConfig, store: BlobStore, model: Tensors
) -> None:
    link = Asked(MemoryServer([]), model, SETTINGS)
    found = placed(link, work, store, work, tune=False)
    assert found.model == link.question.payload.parts["model"]
    assert found.tuning is None


@pytest.mark.parametrize("missing", ["model", "cluster"])
def test_a_question_without_a_model_or_a_cluster_is_refused(
    work: WorkConfig, store: BlobStore, model: Tensors, missing: str
) -> None:
    link = Asked(MemoryServer([]), model, SETTINGS)
    parts = {name: part for name, part in link.question.payload.parts.items() if name != missing}
    link.question = Question("r1", Payload("tune", parts))
    with pytest.raises(BadPayload, match="names no model or no cluster"):
        placed(link, work, store, work)


def test_data_on_which_it_does_not_train_are_not_trained_on(
    work: WorkConfig, store: BlobStore, model: Tensors
) -> None:
    link = Asked(MemoryServer([]), model, SETTINGS)
    with pytest.raises(BadPayload, match="other data than this device's own"):
        placed(link, work, store, None)
    assert link.evidence == [Wish(MAX_MODELS)]
