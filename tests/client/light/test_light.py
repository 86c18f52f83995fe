"""A device without a learner: it is placed and predicts with the graph of a run, without PyTorch."""

import asyncio
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
from safetensors.numpy import save_file

from fedclient.agent.allowance import Allowance
from fedclient.config import ClientConfig, DataConfig, WorkConfig
from fedclient.faults import TaskFailed, WorkerDied
from fedclient.light.endpoint import Predictions
from fedclient.light.runtime import LightRuntime
from fedclient.placing import placement
from fedclient.placing.asking import Asker
from fedclient.placing.placement import PlacementResult, Placer, save
from fedclient.store.blobs import BlobStore
from fedclient.store.state import GRAPH, MODEL, PLACEMENT
from fedclient.work.data import open_views
from fedclient.work.executor import Spawned
from fedclient.work.predict import classify
from fedclient.work.predictions import read_model
from shoal.core.errors import BadPayload, DataFault, NotFound, Refused
from shoal.core.exchange.choosing import Choose
from shoal.core.exchange.choosing.compact import compact
from shoal.core.exchange.link import Placement, Question
from shoal.core.exchange.messages import INPUTS, Describe, Represent, Score
from shoal.core.exchange.parts import ClusterAssignment, Prototypes
from shoal.core.exchange.payload import encode
from shoal.core.exchange.tensors import digest
from shoal.core.inference.graph.wire import message, varint
from shoal.core.inference.network import softmax
from shoal.core.privacy.budget import Budget
from shoal.core.types import Tensors
from tests.client.in_process import InProcess
from tests.client.memory_server import MemoryLink, MemoryServer, quiet
from tests.core.inference.graphs import HOSTILE, NARROW, attribute, graph, node, value

pytest.importorskip("onnxruntime", reason="ONNX Runtime is not installed")

SAMPLES = np.random.default_rng(3).normal(size=(40, 4)).astype(np.float32)
SIZES = message([(1, 2), (2, 7), (7, 2 * varint(1 << 28)), (8, "sizes")])
HUGE = graph(
    [
        node(
            "Constant",
            [],
            ["sizes"],
            attribute("value", (5, SIZES)),
        ),
        node("Expand", ["x", "sizes"], ["scores"]),
    ]
)


def model(seed: int, scale: float = 1.0) -> Tensors:
    chance = np.random.default_rng(seed)
    return {
        "weight": (scale * chance.normal(size=(4, 3))).astype(np.float32),
        "bias": np.zeros(3, np.float32),
    }


SURE, NOTHING = model(5, 20.0), model(5, 0.0)


@pytest.fixture
def work(tmp_path: Path) -> WorkConfig:
    np.savez(tmp_path / "new.npz", x=SAMPLES)
    data = DataConfig(npz=tmp_path / "new.npz")
    return WorkConfig(tmp_path / "blobs", tmp_path / "privacy", data=data, labels=False)


def server(question: Choose | Describe | Represent | Score, file: bytes | None = None) -> MemoryServer:
    made = MemoryServer([])
    stored = made.keep({"graph": np.frombuffer(graph() if file is None else file, np.uint8)})
    asked = compact(question) if isinstance(question, Choose) else question
    made.question = Question("r1", encode(asked, made.keep), stored.blob)
    return made


CHOICE = Choose((NOTHING, SURE, NOTHING), "c0 c1 global", (1.0, 1.0))


def placed(
    known: MemoryServer, work: WorkConfig, executor: InProcess | Spawned | None = None
) -> PlacementResult:
    store = BlobStore(work.blobs)
    return asyncio.run(placer_of(MemoryLink(known), store, executor or InProcess(LightRuntime(work))).place())


def placer_of(link: MemoryLink, store: BlobStore, executor: InProcess | Spawned) -> Placer:
    return Placer(
        Asker(link, store, quiet, Allowance(1 << 20, give_up_after=0.05), light=True),
        executor,
        quiet,
        light=True,
    )


@pytest.fixture(autouse=True)
def own_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit is for a process of its own, and must not stay in this one."""
    monkeypatch.setattr("fedclient.light.runtime.limit_memory", lambda most: None)


def test_it_chooses_by_the_clusters_models_and_tells_nothing(work: WorkConfig) -> None:
    known = server(CHOICE)
    found = placed(known, work)
    assert found.assignment.cluster == "c1"
    assert [each.model for each in found.tried] == ["c0", "c1", "global"]
    assert (found.sent, known.placed) == (0, [])
    assert found.facts()["graph"] == found.graph.sha256 if found.graph else False


def test_it_embeds_by_the_encoder_that_the_run_gives_or_by_the_inputs(
    work: WorkConfig, tmp_path: Path
) -> None:
    labels = np.arange(len(SAMPLES)) % 3
    np.savez(tmp_path / "labeled.npz", x=SAMPLES, y=labels)
    work = replace(work, data=DataConfig(npz=tmp_path / "labeled.npz"), labels=True)
    file = graph([node("Relu", ["x"], ["embedding"])], [value("x")], [value("embedding")])
    given = {"graph": np.frombuffer(file, np.uint8)}
    train = open_views(work).train
    assert train.y is not None
    encoders = (
        (Represent(encoder=given), np.maximum(train.x, 0.0), digest(given)),
        (Represent(), train.x, INPUTS),
    )
    for question, embedded, name in encoders:
        known = server(question)
        known.placement = Placement("r1", ClusterAssignment("c0"), known.keep(NOTHING))
        placed(known, work)
        (shown,) = known.placed
        assert isinstance(shown, Prototypes)
        assert shown.encoder == name
        means = [embedded[train.y == each].mean(axis=0) for each in range(3)]
        np.testing.assert_allclose(shown.means, means, rtol=1e-5)
    with pytest.raises(TaskFailed, match="outputs are"):
        placed(server(Represent(encoder={"graph": np.frombuffer(graph(), np.uint8)})), work)


def test_the_model_is_used_in_a_process_of_its_own(work: WorkConfig, tmp_path: Path) -> None:
    found, store = placed(server(CHOICE), work), BlobStore(work.blobs)
    path = save(found, store, tmp_path / "model")
    assert path.with_name(GRAPH).read_bytes() == graph()
    settings = ClientConfig(data=work.data)
    said = classify(settings, None, path, tmp_path / "classes.npz")
    assert found.model is not None
    weight = store.load(found.model)["weight"]
    assert weight == pytest.approx(SURE["weight"], abs=float(np.abs(SURE["weight"]).max()) / 100)
    wanted = softmax((SAMPLES @ weight).astype(np.float64))
    assert said.probabilities == pytest.approx(wanted, abs=1e-4)
    assert said.classes.tolist() == wanted.argmax(axis=1).tolist()
    assert np.load(tmp_path / "classes.npz")["classes"].tolist() == said.classes.tolist()
    assert said.names == ()


def test_classes_are_named_as_the_settings_say_or_else_as_the_graphs_author_did(
    work: WorkConfig, tmp_path: Path
) -> None:
    noted = graph(file=[(14, message([(1, "shoal.classes"), (2, '["cat", "dog", "eel"]')]))])
    path = save(placed(server(CHOICE), work), BlobStore(work.blobs), tmp_path / "model")
    found = read_model(path)
    path.with_name(GRAPH).write_bytes(noted)
    save_file(dict(found), path)  # with a header that names no other graph
    assert work.data is not None
    by_author = classify(ClientConfig(data=work.data), None, path, tmp_path / "found.csv")
    assert by_author.names == ("cat", "dog", "eel")
    assert (tmp_path / "found.csv").read_text().startswith("row,class,name,p0,p1,p2\n0,")
    own = replace(work.data, classes=("ape", "bee", "cow"))
    assert classify(ClientConfig(data=own), None, path, None).names == ("ape", "bee", "cow")


@pytest.mark.parametrize(
    ("step", "names"), [("_write", ()), ("move", ("cat", "dog", "eel")), ("", ("cat", "dog", "eel"))]
)
def test_a_crash_while_the_model_is_replaced_leaves_a_graph_that_belongs_to_it(
    work: WorkConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, names: tuple[str, ...]
) -> None:
    """step: of saving another model with another graph, before which the process is killed; "": none."""
    store, folder = BlobStore(work.blobs), tmp_path / "model"
    save(placed(server(CHOICE), work), store, folder)
    noted = graph(file=[(14, message([(1, "shoal.classes"), (2, '["cat", "dog", "eel"]')]))])
    other = placed(server(CHOICE, noted), work)
    with monkeypatch.context() as patched:
        if step:
            patched.setattr(placement, step, Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt) if step else nullcontext():
            save(other, store, folder)
    path = folder / MODEL
    assert classify(ClientConfig(data=work.data), None, path, None).names == names
    Predictions(work).use(path.with_name(GRAPH), path, {})
    if not step:
        assert sorted(each.name for each in folder.iterdir()) == [GRAPH, MODEL, PLACEMENT]


def test_a_flipped_bit_of_the_graph_is_found(work: WorkConfig, tmp_path: Path) -> None:
    """In a name of its author's, say, it would change nothing, and in a constant every prediction."""
    path = save(placed(server(CHOICE), work), BlobStore(work.blobs), tmp_path / "model")
    file = path.with_name(GRAPH)
    file.write_bytes(file.read_bytes()[:-1] + bytes([file.read_bytes()[-1] ^ 1]))
    for using in (
        lambda: classify(ClientConfig(data=work.data), None, path, None),
        lambda: Predictions(work).use(file, path, {}),
    ):
        with pytest.raises(DataFault, match=r"graph.onnx is damaged"):
            using()


def test_the_process_has_no_pytorch(
    work: WorkConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A torch that cannot be imported stands first in the path of the process."""
    (tmp_path / "torch.py").write_text("raise ImportError('there is no PyTorch here')")
    monkeypatch.syspath_prepend(tmp_path)
    executor = Spawned(work)

    async def place() -> PlacementResult:
        try:
            link = MemoryLink(server(CHOICE))
            store = BlobStore(work.blobs)
            return await placer_of(link, store, executor).place()
        finally:
            await executor.stop()

    assert asyncio.run(place()).assignment.cluster == "c1"


def test_it_describes_its_data_and_pays_for_it(work: WorkConfig) -> None:
    """From the same ledger as on a device with PyTorch; without an allowance, not at all."""
    question = Describe(SURE, {"mean": np.zeros(3), "components": np.eye(2, 3)})
    with pytest.raises(TaskFailed, match="without"):
        placed(server(question), replace(work, privacy=Budget(allow_unprotected=False)))
    known = server(question)
    with pytest.raises(Refused, match="no model yet"):  # the server got the description, and has no answer
        placed(known, replace(work, privacy=Budget(allow_unprotected=True)))
    (descriptor,) = known.placed
    latents = np.maximum(SAMPLES @ SURE["weight"], 0).astype(np.float64)[:, :2]
    assert descriptor.statistics.means[0] == pytest.approx(latents.mean(0), rel=1e-5)  # type: ignore[union-attr]


def test_a_failure_that_keeps_evidence_back_has_a_line(work: WorkConfig) -> None:
    """What a hostile server learns of it depends on its graph."""
    question = Describe(SURE, {"mean": np.zeros(3), "components": np.eye(2, 3)})
    refused, noted = replace(work, privacy=Budget(allow_unprotected=False)), list[tuple[str, str]]()

    def note(run: str, code: str) -> None:
        noted.append((run, code))

    for asked, own in ((question, refused), (CHOICE, work)):
        link, executor = MemoryLink(server(asked)), InProcess(LightRuntime(own))
        asker = Asker(link, BlobStore(work.blobs), quiet, Allowance(1 << 20, give_up_after=0.05), light=True)
        with pytest.raises(TaskFailed) if asked is question else nullcontext():
            asyncio.run(Placer(asker, executor, quiet, True, note).place())
    assert noted == [("r1", "unprotected")]


def test_evidence_that_needs_the_authors_code_names_the_way_out(work: WorkConfig) -> None:
    with pytest.raises(TaskFailed, match=r"without a learner cannot answer 'score'"):
        placed(server(Score((SURE, NOTHING))), work)


@pytest.mark.parametrize(
    ("columns", "hint"), [("a,b,c", "add the columns that are missing"), ("a,b,c,d,class", "data.label")]
)
def test_a_table_with_another_number_of_columns_is_the_fault_of_the_data(
    work: WorkConfig, tmp_path: Path, columns: str, hint: str
) -> None:
    """By placement and by prediction: another shape, which the network's refusal names, would not help."""
    path, found = tmp_path / "few.csv", save(placed(server(CHOICE), work), BlobStore(work.blobs), tmp_path)
    numbers = ",".join("1" for _ in columns.split(","))
    path.write_text(f"{columns}\n{numbers}\n{numbers}\n")
    data = DataConfig(csv=path)
    for using in (
        lambda: placed(server(CHOICE), replace(work, data=data)),
        lambda: classify(ClientConfig(data=data), None, found, None),
    ):
        with pytest.raises(TaskFailed) as caught:
            using()
        assert caught.value.code == "bad-data"
        assert f"few.csv has {len(columns.split(','))} columns, the network takes 4" in caught.value.message
        assert hint in caught.value.message


def test_a_graph_whose_shape_depends_on_the_samples_tells_the_server_nothing_of_them(
    work: WorkConfig, tmp_path: Path
) -> None:
    """The run is asked to decide where the network is no classifier, whatever the samples are: so no sample
    may decide whether it is one."""

    def calls(name: str, largest: float, ended: AbstractContextManager[object]) -> list[str]:
        np.savez(tmp_path / f"{name}.npz", x=np.clip(SAMPLES[:10], -1.0, 1.0) * np.float32(largest))
        known = server(CHOICE, NARROW)
        with ended:
            placed(known, replace(work, blobs=tmp_path / name, data=DataConfig(npz=tmp_path / f"{name}.npz")))
        return known.log

    below = calls("below", 4.0, nullcontext())
    above = calls("above", 6.0, pytest.raises(TaskFailed, match=r"gives shape \(10, 1\)"))
    assert below == above
    assert [line for line in below if line.startswith("place")] == ["place"]


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_graph_is_refused_and_the_process_lives(work: WorkConfig, name: str) -> None:
    file, reason = HOSTILE[name]
    executor = InProcess(LightRuntime(work))
    limit = pytest.raises((TaskFailed, Refused), match="accepts at most" if name == "huge" else reason)
    with limit:
        placed(server(CHOICE, file), work, executor)
    assert placed(server(CHOICE), work, executor).assignment.cluster == "c1"


def test_a_graph_that_takes_too_much_memory_ends_at_most_its_process(work: WorkConfig) -> None:
    """It passes every check, and asks for 4 EiB once it runs."""
    executor = Spawned(replace(work, memory_bytes=1 << 29))

    async def place(file: bytes) -> PlacementResult:
        store = BlobStore(work.blobs)
        link = MemoryLink(server(CHOICE, file))
        return await placer_of(link, store, executor).place()

    async def both() -> PlacementResult:
        try:
            with pytest.raises((TaskFailed, WorkerDied)):
                await place(HUGE)
            return await place(graph())
        finally:
            await executor.stop()

    assert asyncio.run(both()).assignment.cluster == "c1"


def test_a_processor_that_lacks_an_instruction_ends_only_the_process(
    work: WorkConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "onnxruntime.py").write_text("import os, signal; os.kill(os.getpid(), signal.SIGILL)")
    monkeypatch.syspath_prepend(tmp_path)

    async def start() -> None:
        await Spawned(work).start()

    with pytest.raises(WorkerDied, match="ended by SIGILL") as fault:
        asyncio.run(start())
    assert "newer processor" in fault.value.hint


def test_a_server_that_gives_no_graph_is_told_apart(work: WorkConfig) -> None:
    known = server(CHOICE)
    known.question = replace(known.question, graph=None) if known.question else None
    with pytest.raises(BadPayload, match="no graph"):
        placed(known, work)


def test_a_prediction_without_a_graph_says_what_to_do(work: WorkConfig, tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="there is no graph"):
        classify(ClientConfig(data=work.data), None, tmp_path / "model.safetensors", None)
