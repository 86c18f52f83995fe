"""PlacementResult against a server in memory: what is asked, what is sent, what is stored; then
prediction.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedclient.agent.allowance import Allowance
from fedclient.config import ClientConfig, DataConfig, WorkConfig
from fedclient.faults import TaskFailed
from fedclient.net.throttle import Throttle
from fedclient.placing.asking import Asker
from fedclient.placing.placement import PlacementResult, Placer, save
from fedclient.store.blobs import BlobStore
from fedclient.store.state import MODEL, PLACEMENT
from fedclient.work.executor import Spawned
from fedclient.work.predict import classify
from fedclient.work.predictions import read_model
from fedclient.work.runtime import Runtime
from shoal.core.device_kit.learner import initial_weights
from shoal.core.errors import BadPayload, ConfigError, DataFault, NotFound, Refused, Unavailable
from shoal.core.exchange.link import Placement, Question
from shoal.core.exchange.messages import Describe
from shoal.core.exchange.parts import ClusterAssignment, Descriptor
from shoal.core.exchange.payload import BlobRef, encode
from shoal.core.exchange.tensors import digest
from shoal.core.types import RunId, Tensors
from tests.client.in_process import InProcess
from tests.client.memory_server import MemoryLink, MemoryServer, quiet

PROJECTOR = {"mean": np.zeros(8), "components": np.eye(2, 8)}
ASSIGNMENT = ClusterAssignment("c1", 0.5, "c0", 2.0, 0.75)


@pytest.fixture
def runtime(work: WorkConfig, tmp_path: Path) -> Runtime:
    np.savez(tmp_path / "new.npz", x=np.arange(120, dtype=np.float32).reshape(30, 4))
    return Runtime.open(replace(work, file=tmp_path / "new.npz"))


@pytest.fixture
def model(runtime: Runtime) -> Tensors:
    return initial_weights(runtime._context.learner, 5)


@pytest.fixture
def server(model: Tensors) -> MemoryServer:
    server = MemoryServer([])
    server.question = Question("r1", encode(Describe(model, PROJECTOR), server.keep))
    server.placement = Placement("r1", ASSIGNMENT, server.keep(model))
    return server


def placed(
    server: MemoryServer,
    runtime: Runtime,
    store: BlobStore,
    accept_nearest: bool = False,
    limit: int = 1 << 20,
) -> PlacementResult:
    doing: list[str] = []
    link, executor = MemoryLink(server), InProcess(runtime)
    placer = Placer(
        Asker(link, store, doing.append, Allowance(limit, give_up_after=0.05)), executor, doing.append
    )
    return asyncio.run(placer.place("", accept_nearest))


def test_a_question_an_answer_and_a_model(
    server: MemoryServer, runtime: Runtime, store: BlobStore, model: Tensors, tmp_path: Path
) -> None:
    found = placed(server, runtime, store)
    assert server.log == ["place", "fetch 0", "fetch 0", "place r1"]  # the model is the encoder: not fetched
    assert (found.run, found.assignment) == ("r1", ASSIGNMENT)
    (descriptor,) = server.placed
    assert descriptor.classes == 0  # nothing about labels
    assert descriptor.projector == digest(PROJECTOR)
    assert descriptor.statistics.counts.tolist() == [30.0]
    assert found.received == sum(len(data) for data in server.blobs.values())
    assert found.sent > 0
    path = save(found, store, tmp_path / "model")
    assert path == tmp_path / "model" / MODEL
    stored = read_model(path)
    assert {name: array.tolist() for name, array in stored.items()} == {
        name: array.tolist() for name, array in model.items()
    }
    facts = json.loads((tmp_path / "model" / PLACEMENT).read_text())
    assert (facts["cluster"], facts["distance"], facts["runner_up"]) == ("c1", 0.5, "c0")
    assert facts["model"] == digest(model)


def test_a_run_with_one_model_asks_nothing(
    server: MemoryServer, runtime: Runtime, store: BlobStore, tmp_path: Path
) -> None:
    assert server.placement is not None
    server.question = None
    server.placement = replace(server.placement, assignment=ClusterAssignment("global"))
    found = placed(server, runtime, store)
    assert server.placed == []
    save(found, store, tmp_path / "model")
    assert json.loads((tmp_path / "model" / PLACEMENT).read_text())["distance"] is None


def test_an_abstention_brings_no_model_unless_the_owner_takes_the_nearest(
    server: MemoryServer, runtime: Runtime, store: BlobStore
) -> None:
    assert server.placement is not None
    far = replace(ASSIGNMENT, abstained=True, reason="farther than any member")
    server.placement = replace(server.placement, assignment=far)
    assert placed(server, runtime, store).model is None
    assert placed(server, runtime, store, accept_nearest=True).model == server.placement.model
    server.placement = replace(server.placement, model=None)
    assert placed(server, runtime, store, accept_nearest=True).model is None


def test_more_than_the_owner_stores_is_refused_before_a_byte_is_fetched(
    server: MemoryServer, runtime: Runtime, store: BlobStore
) -> None:
    """Each of the models may be small enough, and all of them together fill the disk."""
    assert server.question is not None
    blobs = [weights.blob for weights in server.question.payload.weights()]
    assert len(blobs) == 2
    for kept, fetched in ((sum(blob.size for blob in blobs) - 1, 0), (sum(blob.size for blob in blobs), 2)):
        asker = Asker(MemoryLink(server), store, quiet, Allowance(1 << 20, kept, give_up_after=0.05))
        if fetched:
            asyncio.run(asker.ask("", None, False))
        else:
            with pytest.raises(Refused, match=f"keeps at most {kept}") as caught:
                asyncio.run(asker.ask("", None, False))
            assert caught.value.hint == "raise limits.kept_bytes in this device's settings"
        assert len(server.calls("fetch")) == fetched


def test_models_of_a_placement_take_no_more_bandwidth_than_the_owner_allows(
    server: MemoryServer, store: BlobStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[int] = []

    async def take(self: Throttle, size: int) -> None:
        assert self._rate == 32768.0
        taken.append(size)

    monkeypatch.setattr(Throttle, "take", take)
    asker = Asker(MemoryLink(server), store, quiet, Allowance(give_up_after=0.05, bandwidth=32768.0))
    asyncio.run(asker.ask("", None, False))
    assert sum(taken) == asker.received > 0


def test_what_can_go_wrong_is_said(server: MemoryServer, runtime: Runtime, store: BlobStore) -> None:
    with pytest.raises(Refused, match=r"limits\.download_bytes"):
        placed(server, runtime, store, limit=10)
    assert server.question is not None
    wrong = encode(Describe({"x": np.zeros(3, np.float32)}, PROJECTOR), server.keep)
    server.question = Question("r1", wrong)
    with pytest.raises(TaskFailed, match="tensor"):
        placed(server, runtime, store)
    server.question = Question("r1", replace(wrong, kind="horoscope"))
    with pytest.raises(TaskFailed, match="'horoscope'"):
        placed(server, runtime, store)
    server.question, server.placement = None, None
    with pytest.raises(Refused, match="no model yet"):
        placed(server, runtime, store)
    server.away = 1 << 30
    with pytest.raises(Unavailable):
        placed(server, runtime, store)


def test_the_data_are_looked_at_before_the_server_is_asked(
    server: MemoryServer, work: WorkConfig, store: BlobStore, tmp_path: Path
) -> None:
    """Also where a run has one model, and asks nothing about the data."""
    server.question = None
    executor = Spawned(replace(work, file=tmp_path / "MISSING.csv"))
    placer = Placer(
        Asker(MemoryLink(server), store, quiet, Allowance(1 << 20, give_up_after=0.05)), executor, quiet
    )
    with pytest.raises(DataFault, match=r"MISSING\.csv: No such file") as caught:
        asyncio.run(placer.place())
    assert caught.value.hint
    assert server.log == []


class Forgetful(MemoryLink):
    """A server that has forgotten its answers, `left` times, as after a restart."""

    left = 0

    async def place(
        self, run: RunId, descriptor: Descriptor | None, accept_nearest: bool = False
    ) -> Question | Placement:
        self.remembers = self.left <= 0
        self.left -= 1
        return await super().place(run, descriptor, accept_nearest)

    async def fetch(self, blob: BlobRef, start: int) -> AsyncIterator[bytes]:
        if not self.remembers:
            raise NotFound(f"blob {blob.sha256[:12]} is not for this device")
        async for data in super().fetch(blob, start):
            yield data


def test_a_server_that_forgot_what_it_told_is_asked_once_again(
    server: MemoryServer, runtime: Runtime, store: BlobStore
) -> None:
    said: list[str] = []
    link = Forgetful(server)
    link.left = 1
    placer = Placer(
        Asker(link, store, said.append, Allowance(1 << 20, give_up_after=0.05)),
        InProcess(runtime),
        said.append,
    )
    assert asyncio.run(placer.place()).assignment == ASSIGNMENT
    assert server.log == ["place", "place", "fetch 0", "fetch 0", "place r1"]
    assert any("asking the server again: blob" in text for text in said)
    store.trim(0)
    link.left, server.question = 1, None
    assert asyncio.run(placer.place()).model is not None
    store.trim(0)
    link.left = 2
    with pytest.raises(NotFound, match="is not for this device"):
        asyncio.run(placer.place())


def test_a_question_after_the_answer_is_refused(
    server: MemoryServer, runtime: Runtime, store: BlobStore
) -> None:
    class Asking(MemoryLink):
        async def place(self, run: str, descriptor: object, _: bool = False) -> Question | Placement:
            return await super().place(run, None)

    placer = Placer(
        Asker(Asking(server), store, quiet, Allowance(1 << 20, give_up_after=0.05)), InProcess(runtime), quiet
    )
    with pytest.raises(BadPayload, match="the same question again"):
        asyncio.run(placer.place())


# -- prediction -----------------------------------------------------------------------------------------


@pytest.fixture
def settings(
    work: WorkConfig, server: MemoryServer, runtime: Runtime, store: BlobStore, tmp_path: Path
) -> ClientConfig:
    save(placed(server, runtime, store), store, tmp_path / "model")
    return ClientConfig(learner=work.learner, data=work.data, state=tmp_path)


def test_classes_and_probabilities(settings: ClientConfig, tmp_path: Path) -> None:
    model = tmp_path / "model" / MODEL
    found = classify(settings, tmp_path / "new.npz", model, tmp_path / "out.csv")
    assert found.probabilities.shape == (30, 3)
    assert found.accuracy is None
    np.testing.assert_allclose(found.probabilities.sum(1), 1.0, rtol=1e-5)
    lines = (tmp_path / "out.csv").read_text().splitlines()
    assert lines[0] == "row,class,p0,p1,p2"
    assert lines[1].split(",")[:2] == ["0", str(found.classes[0])]
    assert len(lines) == 31
    classify(settings, tmp_path / "new.npz", model, tmp_path / "out.npz")
    with np.load(tmp_path / "out.npz") as written:
        assert written["classes"].tolist() == found.classes.tolist()
        assert written["probabilities"].tolist() == found.probabilities.tolist()
    assert sum(found.counts().values()) == 30


def test_the_file_of_the_settings_in_its_own_order(settings: ClientConfig, tmp_path: Path) -> None:
    found = classify(settings, None, tmp_path / "model" / MODEL, None)
    with np.load(tmp_path / "train.npz") as data:
        assert found.accuracy == (found.classes == data["y"]).mean()
        other = classify(settings, tmp_path / "train.npz", tmp_path / "model" / MODEL, None)
    assert found.classes.tolist() == other.classes.tolist()


def test_a_prediction_that_cannot_be(settings: ClientConfig, tmp_path: Path) -> None:
    model = tmp_path / "model" / MODEL
    with pytest.raises(NotFound, match="fedclient place"):
        classify(settings, None, tmp_path / "none", None)
    (tmp_path / "cut").write_bytes(model.read_bytes()[:-4])
    with pytest.raises(DataFault, match="is not a model"):
        classify(settings, None, tmp_path / "cut", None)
    with pytest.raises(NotFound, match="there is no graph"):
        classify(replace(settings, learner=None), None, model, None)
    with pytest.raises(ConfigError, match="fedclient predict DATA"):
        classify(replace(settings, data=None), None, model, None)
    (tmp_path / "learner.py").write_text("from torch import nn\ndef build(): return nn.Linear(4, 2)\n")
    with pytest.raises(BadPayload, match="tensor"):
        classify(settings, None, model, None)


def test_a_class_column_that_no_setting_names_is_the_fault_of_the_data(
    settings: ClientConfig, tmp_path: Path
) -> None:
    """By prediction, and by the training process that describes the data for a placement."""
    truth = tmp_path / "truth.csv"
    truth.write_text("a,b,c,d,class\n1,2,3,4,0\n5,6,7,8,1\n")
    said = r"truth\.csv has 5 columns, the network takes 4 "
    with pytest.raises(DataFault, match=said) as caught:
        classify(settings, truth, tmp_path / "model" / MODEL, None)
    assert caught.value.hint == "name the class column with data.label"
    data = DataConfig(csv=tmp_path / "new.csv", label="class")
    found = classify(replace(settings, data=data), truth, tmp_path / "model" / MODEL, None)
    assert found.accuracy is not None


def test_a_newcomers_class_column_is_the_fault_of_the_data(
    work: WorkConfig, server: MemoryServer, store: BlobStore, tmp_path: Path
) -> None:
    truth = tmp_path / "truth.csv"
    truth.write_text("a,b,c,d,class\n1,2,3,4,0\n5,6,7,8,1\n")
    with pytest.raises(TaskFailed) as caught:
        placed(server, Runtime.open(replace(work, file=truth)), store)
    assert caught.value.code == "bad-data"
    assert "truth.csv has 5 columns, the network takes 4" in caught.value.message
    assert "data.label" in caught.value.message
