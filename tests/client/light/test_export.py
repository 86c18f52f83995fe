"""Learners as graphs: ONNX Runtime gives what PyTorch gives, and finds the same cluster."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from fedclient.config import DataConfig
from fedclient.light.session import OnnxNetwork, open_encoder, open_session
from fedclient.work.runtime import with_graph
from fedserver.cli.models.onnx import save
from shoal.core import models
from shoal.core.data.dataset import Dataset
from shoal.core.data.scale import DEVIATION, LINEAR, MEAN, TARGET, scale_of, with_scale
from shoal.core.data.views import Views
from shoal.core.device_kit import prototypes, tracing
from shoal.core.device_kit.context import DeviceContext
from shoal.core.device_kit.learner import Learner, builtin, initial_weights, load_weights, tensors_of
from shoal.core.device_kit.scaling import in_own_units
from shoal.core.device_kit.tracing import export, sample_of
from shoal.core.errors import LearnerFault
from shoal.core.exchange.choosing import Choose
from shoal.core.exchange.choosing.compact import compact
from shoal.core.exchange.messages import Built, Represent, Score
from shoal.core.inference import newcomer
from shoal.core.inference.context import InferenceContext
from shoal.core.inference.graph.binding import bound
from shoal.core.inference.graph.model import read_graph
from shoal.core.inference.newcomer import NoClassifier
from shoal.core.types import Tensors
from shoal.shell import learners
from tests.core.inference.graphs import graph

pytest.importorskip("onnx", reason="the packages for exports are not installed")
pytest.importorskip("onnxruntime", reason="ONNX Runtime is not installed")

EXAMPLES = Path(__file__).parents[3] / "examples"
CASES = {
    "mlp": (lambda: builtin("mlp", {"inputs": 12, "hidden": (8,), "classes": 4}), (12,)),
    "lenet5": (lambda: builtin("lenet5", {"size": 12}), (1, 12, 12)),
    "cnn1d": (lambda: builtin("cnn1d", {"length": 32}), (6, 32)),
    "resnet9": (lambda: builtin("resnet9", {"size": 16, "classes": 10}), (3, 16, 16)),
    "clinics": (lambda: learners.from_file(EXAMPLES / "clinics" / "learner.py"), (30,)),
    "encoder": (lambda: learners.from_file(EXAMPLES / "encoder" / "learner.py"), (64,)),
}


def both(
    learner: Learner, shape: tuple[int, ...]
) -> tuple[DeviceContext, InferenceContext, tuple[Tensors, ...]]:
    """A context with PyTorch and one without, on the same data, and models of four clusters."""
    made = export(learner, sample_of(shape), {})
    count = 60 if np.prod(shape) < 500 else 12  # a ResNet takes its time
    x = np.random.default_rng(3).random((count, *shape)).astype(np.float32)
    data = Views.of(Dataset(x))
    noise = np.random.default_rng(0)
    light = InferenceContext(OnnxNetwork(read_graph(made.data), 1), data, noise)
    models = tuple({k: 2 * w for k, w in initial_weights(learner, seed).items()} for seed in range(4))
    return DeviceContext(learner, data, "cpu", 0, noise), light, models


def test_a_frozen_encoder_becomes_a_graph_by_which_all_devices_embed_alike() -> None:
    learner = CASES["encoder"][0]()
    made = tracing.encoder(learner, sample_of((64,)))
    assert made is not None
    assert tracing.encoder(builtin("lenet5", {"size": 12}), sample_of((1, 12, 12))) is None
    x, y = np.random.default_rng(3).random((30, 64)).astype(np.float32), np.arange(30) % 3
    context = DeviceContext(learner, Views.of(Dataset(x, y)), "cpu", 0, np.random.default_rng(0))
    context.open_encoder = partial(open_encoder, threads=1)
    own = prototypes.represent(Represent(), context).prototypes
    given = Represent(encoder={"graph": np.frombuffer(made.data, np.uint8)})
    found = prototypes.represent(given, context).prototypes
    np.testing.assert_allclose(found.means, own.means, atol=1e-5)
    assert found.encoder != own.encoder


@pytest.mark.parametrize("name", CASES)
def test_scores_latents_moments_and_choice_agree(name: str) -> None:
    make, shape = CASES[name]
    trained, light, models = both(make(), shape)
    x = light.inputs(["train"])
    light.network.load(models[0])
    trained.network.load(models[0])
    assert light.network.scores(x) == pytest.approx(trained.network.scores(x), abs=1e-4)
    assert light.network.classifier == trained.network.classifier
    assert light.network.manifest == trained.network.manifest
    question = Choose(models, "a b c all", (1.0, 1.0, 1.0))
    if light.network.classifier:
        found = [newcomer.choose(question, each).assignment.cluster for each in (light, trained)]
        assert found[0] == found[1]
    else:
        for each in (light, trained):
            with pytest.raises(NoClassifier):
                newcomer.choose(question, each)
    for each in (light, trained):
        each.network.load(models[0])
    assert light.network.latents(x) == pytest.approx(trained.network.latents(x), abs=1e-4)


def test_a_network_without_a_last_linear_layer_becomes_a_graph_without_a_latent() -> None:
    made = export(Learner("mean", lambda: nn.Conv1d(2, 3, 4)), sample_of((2, 4)), {})
    network = OnnxNetwork(read_graph(made.data), 1)
    with pytest.raises(LearnerFault, match="has no latent"):
        network.latents(np.zeros((5, 2, 4), np.float32))


class Counting(nn.Module):
    """What it computes for a sample depends on how many there are."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x) * float(np.arange(len(x)).sum() + 1)  # type: ignore[no-any-return]


def test_a_network_that_cannot_be_recorded_is_refused() -> None:
    with pytest.raises(LearnerFault, match="computes other scores than the learner, for 1 samples"):
        export(Learner("counting", build=Counting), sample_of((4,)), {}, older_only=True)


def test_equal_tensors_keep_their_names() -> None:
    """The scales of both batch norms are equal, and an exporter would keep only one of them."""

    def build() -> nn.Module:
        return nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 4), nn.BatchNorm1d(4))

    learner = Learner("twins", build=build, latent="1")
    made = export(learner, sample_of((4,)), {})
    assert [spec.name for spec in made.weights] == list(tensors_of(learner.module(0)))
    assert made.outputs == ("scores", "latent")


@pytest.mark.parametrize("name", models.names())
def test_the_file_of_each_network_of_the_library_agrees_to_1e_5(name: str) -> None:
    """Whatever networks there are: each has a case."""
    make, shape = CASES[name]
    learner = make()
    made, weights = export(learner, sample_of(shape), {}), initial_weights(learner, 43)
    session = open_session(bound(made, weights), threads=1)
    module = learner.module(0).eval()
    load_weights(module, weights)
    x = torch.randn((20, *shape), generator=torch.Generator().manual_seed(43))
    (scores,) = session.run(["scores"], {"x": x.numpy()})
    assert np.abs(scores - module(x).detach().numpy()).max() < 1e-5


class Odd(nn.Module):
    """A network that mixes the samples of a batch by a Python number, which an exporter records as it is."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(x) + float(x.sum())


@pytest.mark.parametrize(("network", "traced"), [(partial(nn.Linear, 4, 2), True), (Odd, False)])
def test_first_weights_come_with_a_graph_or_with_the_reason_why_not(
    network: Callable[[], nn.Module], traced: bool
) -> None:
    learner = Learner("mine", network)
    data = Views.of(Dataset(np.random.default_rng(3).random((20, 4)).astype(np.float32)))
    context = DeviceContext(learner, data, "cpu", 0, np.random.default_rng(0))
    settings = DataConfig(csv=Path("x.csv"), columns=("a", "b", "c", "d"), classes=("ill", "well"))
    built = with_graph(Built(initial_weights(learner, 0)), context, settings)
    assert (built.graph is not None, built.untraced is None) == (traced, traced)
    if built.graph is not None:
        found = read_graph(built.graph["graph"].tobytes())
        assert found.class_names == ("ill", "well")
        assert "a, b, c, d" in found.facts["preprocessing"]
    else:
        assert "computes other scores" in str(built.untraced)


def test_a_network_of_too_many_bytes_is_not_traced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracing, "MAX_MODEL", 100)
    with pytest.raises(LearnerFault, match="too many for an ONNX graph"):
        export(builtin("mlp", {"inputs": 12}), sample_of((12,)), {})


def test_a_model_of_a_run_opens_by_itself_and_its_card_says_how(tmp_path: Path) -> None:
    weights = {"weight": np.eye(4, 3, dtype=np.float32), "bias": np.ones(3, np.float32)}
    facts = {"run": "r1", "cluster": "c0", "privacy": "none", "privacy_over_all_runs": "none"}
    facts["graph_by"] = "attic"
    card = save(read_graph(graph()), weights, tmp_path / "c0.onnx", facts)
    session = open_session((tmp_path / "c0.onnx").read_bytes(), threads=1)
    assert [each.name for each in session.get_inputs()] == ["x"]
    (scores,) = session.run(["scores"], {"x": np.ones((2, 4), np.float32)})
    assert scores.tolist() == [[2.0] * 3] * 2
    notes = session.get_modelmeta().custom_metadata_map
    assert (notes["shoal.run"], notes["shoal.cluster"]) == ("r1", "c0")
    text = card.read_text()
    assert "`x`: (n, 4) float32" in text
    assert "cluster: c0" in text
    assert "made by device attic" in text
    code = text.partition("```python\n")[2].partition("```")[0].replace("c0.onnx", str(tmp_path / "c0.onnx"))
    exec(code, scope := {})
    assert json.loads(json.dumps(scope["scores"].tolist())) == [[1.0] * 3]


@pytest.mark.parametrize("regression", [False, True])
def test_a_scale_that_models_carry_is_applied_with_and_without_pytorch(regression: bool) -> None:
    width = 1 if regression else 3
    learner = Learner("own", lambda: nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, width)))
    trained, light, models = both(learner, (4,))
    scale = {MEAN: np.float32([0.5, 0, 0.2, 9]), DEVIATION: np.float32([0.1, 0.01, 2, 3])}
    if regression:
        scale[TARGET] = np.float32([100.0, 7.0])
    model = with_scale(models[0], scale)
    network = learner.module(seed=0)
    load_weights(network, model)
    x = light.inputs(["train"])
    with torch.no_grad():
        wanted = in_own_units(network.eval())(torch.from_numpy(x)).numpy()
    samples = trained.for_task(0, None, Score((model,))).samples("train")
    assert float(samples.x.abs().max()) > LINEAR, "some are far"
    trained.network.load(model)
    assert trained.network.scores(x) == pytest.approx(wanted, rel=1e-5, abs=1e-5)
    light.network.load(model)
    assert light.network.scores(x) == pytest.approx(wanted, rel=1e-5, abs=1e-4)
    light.network.load(models[0])
    assert light.network.scores(x) != pytest.approx(wanted, rel=1e-3, abs=1e-3)


def test_a_newcomer_chooses_among_models_that_carry_a_scale_with_and_without_pytorch() -> None:
    trained, light, models = both(Learner("own", lambda: nn.Sequential(nn.Linear(4, 3))), (4,))
    scale = {MEAN: np.float32([0.5, 0, 0.2, 9]), DEVIATION: np.float32([0.1, 0.01, 2, 3])}
    carrying = tuple(with_scale(model, scale) for model in models)
    question = compact(Choose(carrying, "a b c all", (1.0, 1.0, 1.0)))
    found = [newcomer.perform(question, each) for each in (light, trained)]
    assert {each.assignment.cluster for each in found} == {found[0].assignment.cluster}  # type: ignore[attr-defined]
    for each in found:
        assert scale_of(each.model)[MEAN].tolist() == scale[MEAN].tolist()  # type: ignore[attr-defined]
