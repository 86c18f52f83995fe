"""A newcomer that chooses its model itself: what it fetches, what it finds, and that it tells nothing."""

import asyncio
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import save_file

from fedclient.agent.allowance import Allowance
from fedclient.cli.place import _mixture, _tried
from fedclient.config import ClientConfig, WorkConfig
from fedclient.faults import TaskFailed
from fedclient.placing.asking import MAX_MODELS, Asker
from fedclient.placing.placement import PlacementResult, Placer, save
from fedclient.store.blobs import BlobStore
from fedclient.store.ledger import Ledger
from fedclient.store.state import PLACEMENT
from fedclient.work.executor import Spawned
from fedclient.work.predict import classify
from fedclient.work.predictions import read_mixture, read_model
from fedclient.work.runtime import Runtime
from shoal.core.device_kit.learner import initial_weights
from shoal.core.errors import BadPayload, DataFault, Refused
from shoal.core.exchange.choosing import Choose, Wish
from shoal.core.exchange.choosing.compact import compact
from shoal.core.exchange.link import Failure, Placement, Question, Task
from shoal.core.exchange.parts import ClusterAssignment
from shoal.core.exchange.payload import Payload, encode
from shoal.core.inference.describing import projected
from shoal.core.types import Tensors
from tests.client.conftest import LEARNER
from tests.client.in_process import InProcess
from tests.client.memory_server import MemoryLink, MemoryServer, quiet

PROJECTOR = {"mean": np.zeros(8), "components": np.eye(2, 8)}


@pytest.fixture
def newcomer(work: WorkConfig, tmp_path: Path) -> WorkConfig:
    samples = np.random.default_rng(3).normal(size=(40, 4)).astype(np.float32)
    np.savez(tmp_path / "new.npz", x=samples)
    return replace(work, file=tmp_path / "new.npz", labels=False, newcomer=True)


@pytest.fixture
def models(newcomer: WorkConfig) -> list[Tensors]:
    """One that is sure of its samples, one that says the same of all, and one that knows nothing."""
    first = initial_weights(Runtime.open(newcomer)._context.learner, 5)
    sure = {name: array * np.float32(20.0) for name, array in first.items()}
    nothing = {name: np.zeros_like(array) for name, array in first.items()}
    same = {**nothing, "2.bias": np.array([9.0, 0.0, 0.0], np.float32)}
    return [same, sure, nothing]


@pytest.fixture
def server(models: list[Tensors]) -> MemoryServer:
    server = MemoryServer([])
    ask(server, Choose(tuple(models), "c0 c1 global", (2.0, 1.0)))
    return server


def ask(server: MemoryServer, choice: Choose) -> None:
    """Let the server ask newcomers to choose, as a run does: the models travel in few bits."""
    server.question = Question("r1", encode(compact(choice), server.keep))


def same(found: Tensors, model: Tensors) -> None:
    """The model, as it comes in few bits."""
    assert {name: array.dtype.name for name, array in found.items()} == dict.fromkeys(model, "float32")
    for name, array in model.items():
        assert found[name] == pytest.approx(array, abs=float(np.abs(array).max()) / 100)


def placed(server: MemoryServer, work: WorkConfig, store: BlobStore, limit: int = 1 << 20) -> PlacementResult:
    executor = InProcess(Runtime.open(work))
    placer = Placer(
        Asker(MemoryLink(server), store, quiet, Allowance(limit, give_up_after=0.05)), executor, quiet
    )
    return asyncio.run(placer.place())


def test_it_tries_the_models_takes_one_and_says_nothing_to_the_server(
    server: MemoryServer, newcomer: WorkConfig, store: BlobStore, models: list[Tensors], tmp_path: Path
) -> None:
    found = placed(server, newcomer, store)
    assert server.log == ["place", "fetch 0", "fetch 0"], "one call, and nothing after the models"
    assert server.placed == []
    assert (found.run, found.assignment.cluster, found.sent) == ("r1", "c1", 0)
    assert found.received == sum(len(data) for data in server.blobs.values())
    assert found.model is not None
    same(store.load(found.model), models[1])
    assert [each.model for each in found.tried] == ["c0", "c1", "global"]
    assert found.tried[0].information == pytest.approx(0.0, abs=1e-6)
    assert found.tried[1].information > 0.3
    assert found.tried[1].error == 0.0
    assert found.tried[0].error > 0.0
    assert found.assignment.confidence == found.tried[1].probability > 0.9
    assert Ledger(newcomer.account, newcomer.privacy).entries() == []
    save(found, store, tmp_path / "model")
    facts = json.loads((tmp_path / "model" / PLACEMENT).read_text())
    assert [each["model"] for each in facts["tried"]] == ["c0", "c1", "global"]


def test_the_chosen_one_is_stored_and_nothing_is_fetched_for_it(
    server: MemoryServer, newcomer: WorkConfig, store: BlobStore, models: list[Tensors], tmp_path: Path
) -> None:
    ask(server, Choose(tuple(models), "c0 c1 global", (2.0, 1.0), **described(newcomer, models[1], 8.0)))
    found = placed(server, newcomer, store)
    assert server.log == ["place", *["fetch 0"] * 5], "the same for all newcomers, whatever they choose"
    assert (found.assignment.cluster, found.sent) == ("c1", 0)
    assert "tell its operator" in found.assignment.reason
    assert found.model is not None
    same(store.load(found.model), models[1])
    assert found.facts()["model"] == found.model.blob.sha256
    assert save(found, store, tmp_path / "model").exists()


def test_models_of_another_network_and_too_many_are_refused(
    server: MemoryServer, newcomer: WorkConfig, store: BlobStore, models: list[Tensors]
) -> None:
    others = tuple({**model, "more": np.zeros((2, 2), np.float32)} for model in models)
    ask(server, Choose(others, "a b all", (1.0, 1.0)))
    with pytest.raises(TaskFailed, match="not those of this device's network"):
        placed(server, newcomer, store)
    server.log.clear()
    names = " ".join(f"c{number}" for number in range(MAX_MODELS + 2))
    many = {**server.question.payload.parts, "names": names}
    asked, server.question = server.question, Question("r1", Payload("choose_compact", many))
    with pytest.raises(BadPayload, match=f"gives {MAX_MODELS + 2} models"):
        placed(server, newcomer, store)
    assert server.calls("fetch") == []
    server.question = asked
    with pytest.raises(Refused, match=r"limits\.download_bytes"):
        placed(server, newcomer, store, limit=10)


def test_people_see_what_was_found_of_each_model(
    server: MemoryServer, newcomer: WorkConfig, store: BlobStore
) -> None:
    lines = _tried(placed(server, newcomer, store))
    assert lines[0].split() == ["model", "information", "error", "probability", "agreement"]
    assert [line.split()[0] for line in lines[1:]] == ["c0", "c1", "global"]


def described(work: WorkConfig, model: Tensors, away: float) -> dict[str, Tensors]:
    """What a run says of two clusters: the samples lie `away` deviations from the data of the first one, and
    three times as far and two more from those of the second."""
    context = Runtime.open(work)._context
    shown = projected(context, model, PROJECTOR, context.usable)
    middle, variance = shown.mean(axis=0), shown.var(axis=0)
    steps = np.array([away, 3.0 * away + 2.0])[:, None, None] * np.sqrt(variance)
    clusters = {
        "shares": np.ones((2, 1)),
        "means": middle + steps,
        "variances": np.broadcast_to(variance, steps.shape).copy(),
    }
    return {"encoder": model, "projector": PROJECTOR, "densities": clusters}


def test_where_the_clusters_data_lie_decides_between_models_that_are_alike(
    server: MemoryServer, newcomer: WorkConfig, store: BlobStore, models: list[Tensors]
) -> None:
    _, sure, nothing = models
    swapped = {name: array[[1, 0, 2]] if name.startswith("2.") else array for name, array in sure.items()}
    question = Choose((swapped, sure, nothing), "c0 c1 global", (1.0, 1.0))
    ask(server, question)
    alike = placed(server, newcomer, store)
    assert alike.assignment.confidence < 0.6, "equally sure of other classes"
    ask(server, replace(question, **described(newcomer, sure, 0.0)))
    found = placed(server, newcomer, store)
    assert found.assignment.cluster == "c0"
    assert found.assignment.confidence > 0.9
    assert found.assignment.reason == "chosen on this device by mutual information and likelihood"
    assert [each.likelihood is None for each in found.tried] == [False, False, True]
    assert found.tried[0].likelihood == 0.0
    assert _tried(found)[0].split()[-1] == "likelihood"
    assert found.sent == 0
    same(store.load(found.model), swapped)  # type: ignore[arg-type]


def undecided(models: list[Tensors], like: float = 1.0) -> Choose:
    """Among two models that are about equally sure of other classes, and one that knows nothing."""
    _, sure, nothing = models
    swapped = {n: like * a[[1, 0, 2]] if n.startswith("2.") else like * a for n, a in sure.items()}
    return Choose((swapped, sure, nothing), "c0 c1 global", (1.0, 1.0))


def test_models_that_the_samples_do_not_tell_apart_predict_together(
    server: MemoryServer,
    newcomer: WorkConfig,
    store: BlobStore,
    models: list[Tensors],
    tmp_path: Path,
) -> None:
    ask(server, undecided(models))
    found = placed(server, newcomer, store)
    assert [each.cluster for each in found.mixture] == ["c0", "c1"]
    likely = np.array([each.probability for each in found.tried[:2]]) ** (40 / 45)
    assert [each.share for each in found.mixture] == pytest.approx(likely / likely.sum())
    assert found.model in {each.model for each in found.mixture}
    path = save(found, store, tmp_path / "model")
    facts = json.loads(path.with_name(PLACEMENT).read_text())
    assert [each["cluster"] for each in facts["mixture"]] == ["c0", "c1"]
    assert len(list(path.parent.glob("*.safetensors"))) == 2
    settings = ClientConfig(learner=newcomer.learner, data=newcomer.data, state=tmp_path)
    together = classify(settings, newcomer.file, path, None, together=True)
    single = {each.name: classify(settings, newcomer.file, each, None) for each in path.parent.glob("*.s*")}
    weighted = sum(share * single[name].probabilities for name, share in files_of(path).items())
    assert together.probabilities == pytest.approx(weighted, abs=1e-6)
    assert not np.allclose(together.probabilities, single[path.name].probabilities, atol=0.05)
    assert _mixture(found)[0].startswith("predictions mix c0 (0.")


def files_of(path: Path) -> dict[str, float]:
    with safe_open(path, "numpy") as file:
        found: dict[str, float] = json.loads(file.metadata()["mixture"])
    return found


def test_a_mixture_is_replaced_as_a_whole_and_one_that_is_torn_is_named(
    server: MemoryServer, newcomer: WorkConfig, store: BlobStore, models: list[Tensors], tmp_path: Path
) -> None:
    seen = []
    for like in (1.0, 0.9):
        ask(server, undecided(models, like))
        path = save(placed(server, newcomer, store), store, tmp_path / "model")
        seen.append({each.name for each in path.parent.glob("model-*")})
        assert seen[-1] == set(files_of(path)) - {path.name}
        assert sum(share for share, _ in read_mixture(path)) == pytest.approx(1.0)
    assert seen[0].isdisjoint(seen[1]), "what no file names any more is gone"
    (path.parent / seen[1].pop()).unlink()
    with pytest.raises(DataFault, match=r"model-.*safetensors") as caught:
        read_mixture(path)
    assert caught.value.hint == "run `fedclient place` again"
    assert read_model(path), "one model by itself can still be used"
    ask(server, Choose(tuple(models), "c0 c1 global", (2.0, 1.0)))
    decided = placed(server, newcomer, store)
    assert save(decided, store, tmp_path / "model") == path
    assert [share for share, _ in read_mixture(path)] == [1.0]
    assert sorted(each.name for each in path.parent.iterdir()) == ["model.safetensors", "placement.json"]


def test_a_flipped_bit_is_no_model_and_one_without_a_digest_is(
    server: MemoryServer, newcomer: WorkConfig, store: BlobStore, models: list[Tensors], tmp_path: Path
) -> None:
    """Wherever it is: in the weights, or in the header that says how models predict together."""
    ask(server, undecided(models))
    path = save(placed(server, newcomer, store), store, tmp_path / "model")
    whole, settings = path.read_bytes(), ClientConfig(data=newcomer.data, learner=newcomer.learner)
    begins, share = 8 + int.from_bytes(whole[:8], "little"), whole.index(b"0.")
    for place in (begins, (begins + len(whole)) // 2, len(whole) - 1, share + 2):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        for together in (True, False):
            with pytest.raises(DataFault, match=r"model.safetensors is damaged") as caught:
                classify(settings, newcomer.file, path, None, together)
            assert caught.value.hint == "run `fedclient place` again"
    path.write_bytes(whole)
    tensors = read_model(path)
    save_file(dict(tensors), path, {"run": "r1", "cluster": "c0"})  # as other programs do
    assert len(classify(settings, newcomer.file, path, None, together=True).classes) == 40


@pytest.mark.parametrize(
    "header", ["[]", "{}", "{", '{"../m": 1.0}', '{"m": "a"}', '{"m": -1}', '{"m": NaN}']
)
def test_a_header_that_is_no_mixture_is_refused(tmp_path: Path, header: str) -> None:
    save_file({"w": np.zeros(2, np.float32)}, tmp_path / "m", {"mixture": header})
    with pytest.raises(DataFault, match="is not a model"):
        read_mixture(tmp_path / "m")


def test_a_newcomer_that_is_unlike_all_devices_is_told_so(
    server: MemoryServer, newcomer: WorkConfig, store: BlobStore, models: list[Tensors]
) -> None:
    ask(server, Choose(tuple(models), "c0 c1 global", (1.0, 1.0), **described(newcomer, models[1], 8.0)))
    found = placed(server, newcomer, store)
    assert found.assignment.cluster == "c1", "the models decide"
    assert "tell its operator" in found.assignment.reason
    assert server.placed == [], "and only the owner can"


@pytest.mark.usefixtures("forked_workers")
def test_the_training_process_of_a_newcomer_does_the_same(
    server: MemoryServer, newcomer: WorkConfig, store: BlobStore
) -> None:
    async def play() -> PlacementResult:
        executor = Spawned(newcomer)
        try:
            return await Placer(
                Asker(MemoryLink(server), store, quiet, Allowance(1 << 20, give_up_after=0.05)),
                executor,
                quiet,
            ).place()
        finally:
            await executor.stop()

    found, here = asyncio.run(play()), placed(server, newcomer, store)
    assert (found.assignment.cluster, found.assignment.reason) == (
        here.assignment.cluster,
        "chosen on this device by mutual information",
    )
    assert found.tried == here.tried


def test_no_task_of_a_server_makes_a_device_choose(
    server: MemoryServer, newcomer: WorkConfig, store: BlobStore
) -> None:
    """What it found would leave the device, with no price paid."""
    assert server.question is not None
    task = Task("r1", 1, 1, 7, "", server.question.payload)
    answer = Runtime.open(replace(newcomer, newcomer=False)).perform(task)
    assert isinstance(answer, Failure)
    assert "can do a 'choose_compact' task" in answer.message


@pytest.mark.parametrize(
    ("changes", "code"), [({"names": "c0 c1"}, "bad-payload"), ({"shares": (1.0, -1.0)}, "bad-payload")]
)
def test_a_choice_that_is_none_is_refused(
    server: MemoryServer, newcomer: WorkConfig, store: BlobStore, changes: dict[str, object], code: str
) -> None:
    assert server.question is not None
    parts = {**server.question.payload.parts, **changes}
    server.question = Question("r1", Payload("choose_compact", parts))  # type: ignore[arg-type]
    with pytest.raises(TaskFailed) as caught:
        placed(server, newcomer, store)
    assert caught.value.code == code


def test_models_that_hold_no_numbers_are_no_evidence(
    server: MemoryServer, newcomer: WorkConfig, store: BlobStore, models: list[Tensors]
) -> None:
    """One device may have made a cluster's model diverge: it is not chosen, and harms no other."""
    broken = {name: np.full_like(array, np.nan) for name, array in models[0].items()}
    ask(server, Choose((broken, *models[1:]), "c0 c1 global", (5.0, 1.0)))
    found = placed(server, newcomer, store)
    assert found.assignment.cluster == "c1"
    assert found.tried[0].information == pytest.approx(0.0, abs=1e-9)


def test_a_learner_with_a_loss_of_its_own_leaves_the_choice_to_the_run(
    server: MemoryServer, newcomer: WorkConfig, store: BlobStore, models: list[Tensors], tmp_path: Path
) -> None:
    shapes = tmp_path / "shapes.py"
    shapes.write_text(LEARNER + "\ndef loss(model, x, y): return nn.functional.cross_entropy(model(x), y)\n")
    asked = []

    class Deciding(MemoryLink):
        async def place(
            self, run: str, evidence: object, accept_nearest: bool = False
        ) -> Question | Placement:
            asked.append(evidence)
            if isinstance(evidence, Wish):
                assert server.question is not None
                return server.question
            return Placement("r1", ClusterAssignment("c0"), server.keep(models[0]))

    executor = InProcess(Runtime.open(replace(newcomer, learner=replace(newcomer.learner, file=shapes))))
    placer = Placer(
        Asker(Deciding(server), store, quiet, Allowance(1 << 20, give_up_after=0.05)), executor, quiet
    )
    found = asyncio.run(placer.place())
    assert asked == [Wish(MAX_MODELS), None]
    assert found.assignment.cluster == "c0"
    assert found.tried == ()
