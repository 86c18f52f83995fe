"""The same answers with PyTorch and without, for every built-in network and both examples.

    python -m benchmarks.light_agreement

First, each network is exported at its default size. The same samples, drawn at random, pass it in PyTorch and
in ONNX Runtime, with the weights of four clusters, which are drawn at random too. The table has the furthest
difference of scores, latents, projected moments, and probabilities of the clusters, and which cluster a
newcomer chooses on each side, for each seed, among models of 8 and of 4 bits, as a device fetches them.
Learners with a loss of their own choose none: see below.

Then both examples are trained, and their newcomers are placed with PyTorch and without, as their runs place
them: the readers' by the models of the clusters, in 8 bits (FMCL), and the clinics' by a description of its
data (FLUX).

The exit code is 1 if a cluster differs, or anything by more than 1e-4.
"""

import argparse
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

import numpy as np

import shoal
from fedclient.light.session import OnnxNetwork
from shoal.core.data.dataset import Dataset
from shoal.core.data.views import Views
from shoal.core.device_kit.context import DeviceContext
from shoal.core.device_kit.learner import Learner, builtin, initial_weights
from shoal.core.device_kit.tracing import export, sample_of
from shoal.core.exchange.choosing import Choose, Wish
from shoal.core.exchange.choosing.compact import compact
from shoal.core.exchange.parts import ClusterAssignment
from shoal.core.inference import newcomer
from shoal.core.inference.context import InferenceContext
from shoal.core.inference.describing import moments_of, projected
from shoal.core.inference.graph.model import read_graph
from shoal.core.inference.network import batches
from shoal.core.inference.newcomer import NoClassifier
from shoal.core.server_kit import placing
from shoal.core.types import Array, Tensors
from shoal.shell import learners

ROOT = Path(__file__).parents[1] / "examples"
NETWORKS: Mapping[str, tuple[Callable[[], Learner], tuple[int, ...], int]] = {
    "mlp": (lambda: builtin("mlp", {"inputs": 784, "classes": 10}), (784,), 300),
    "lenet5": (lambda: builtin("lenet5", {}), (1, 28, 28), 300),
    "resnet9": (lambda: builtin("resnet9", {}), (3, 32, 32), 60),
    "cnn1d": (lambda: builtin("cnn1d", {}), (6, 128), 300),
    "clinics": (lambda: learners.from_file(ROOT / "clinics" / "learner.py"), (30,), 300),
    "encoder": (lambda: learners.from_file(ROOT / "encoder" / "learner.py"), (64,), 300),
}
TRAINING = {"learning_rate": 0.05, "batch_size": 16}
EXAMPLES: Mapping[str, tuple[str, str, str, Mapping[str, Any]]] = {
    "clinics": ("measurements.csv", "malignant", "flux", {**TRAINING, "classes": 2, "privacy": "off"}),
    "encoder": ("images.csv", "digit", "fmcl", TRAINING),
}
"""A device's file, its column of classes, and the run of `run.sh`."""
WAYS = {8: 4, 4: 6}
"""In how many bits the models of how many clusters come to a newcomer."""
MOST = 1e-4


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seeds", default="42,43,44", help="seeds of samples and weights, and of trainings")
    parser.add_argument("--only", choices=NETWORKS, help="compare this network only")
    given = parser.parse_args()
    seeds = [int(each) for each in given.seeds.split(",")]
    print(f"{'network':<9}{'seed':>5}{'scores':>10}{'latents':>10}{'moments':>10}{'odds':>10}  cluster")
    agree = True
    for name, (make, shape, samples) in NETWORKS.items():
        if given.only not in (None, name):
            continue
        learner = make()
        graph = export(learner, sample_of(shape), {}).data
        for seed in seeds:
            found = compared(learner, graph, shape, samples, seed)
            figures = "".join(
                f"{_shown(found[each]):>10}" for each in ("scores", "latents", "moments", "odds")
            )
            both = "; ".join(" and ".join(pair) for pair in found["clusters"]) or "the run decides"
            print(f"{name:<9}{seed:>5}{figures}  {both}", flush=True)
            agree &= all(here == there for there, here in found["clusters"])
            agree &= all(
                found[each] is None or found[each] <= MOST for each in ("scores", "latents", "moments")
            )
    print("\nexample   seed  newcomer's cluster")
    for name in EXAMPLES:
        for seed in seeds if given.only in (None, name) else ():
            clusters = placed(name, seed)
            print(f"{name:<9}{seed:>5}  {' and '.join(clusters)}", flush=True)
            agree &= len(set(clusters)) == 1
    sys.exit(not agree)


def compared(
    learner: Learner, graph: bytes, shape: tuple[int, ...], samples: int, seed: int
) -> dict[str, Any]:
    """The furthest differences, and the clusters (with PyTorch, without) of each of `WAYS`."""
    chance = np.random.default_rng(seed)
    data = Views.of(Dataset(chance.random((samples, *shape)).astype(np.float32)))
    models = tuple(
        {name: 2 * value for name, value in initial_weights(learner, 100 * seed + number).items()}
        for number in range(max(WAYS.values()) + 1)
    )
    network = OnnxNetwork(read_graph(graph), 1)
    light = InferenceContext(network, data, chance)
    trained = DeviceContext(learner, data, "cpu", 0, chance)
    odds, clusters = None, list[tuple[str, str]]()
    for bits, count in WAYS.items() if light.network.classifier else ():
        names = " ".join((*(f"c{number}" for number in range(count)), "all"))
        question = compact(Choose((*models[:count], models[-1]), names, (1.0,) * count))
        assert question.bits == bits
        here, there = (cast(Any, newcomer.perform(question, each)) for each in (light, trained))
        odds = max(odds or 0.0, _furthest(np.array(here.odds), np.array(there.odds)))
        clusters.append((there.assignment.cluster, here.assignment.cluster))
    light.network.load(models[0])
    trained.network.load(models[0])
    x = light.inputs(["train"])
    scores, wanted = (
        np.concatenate([each.network.scores(batch) for batch in batches(each.network, x)])
        for each in (light, trained)
    )
    described = "latent" in network.graph.outputs
    return {
        "scores": _furthest(scores, wanted),
        **(_described(trained, light, models[0], chance) if described else dict.fromkeys(LATENT)),
        "odds": odds,
        "clusters": clusters,
    }


def placed(name: str, seed: int) -> tuple[str, str]:
    """The cluster of an example's newcomer, with PyTorch and without; its run is trained in this process."""
    file, label, algorithm, parameters = EXAMPLES[name]
    with TemporaryDirectory() as copy:
        folder = Path(copy) / name
        shutil.copytree(ROOT / name, folder, ignore=shutil.ignore_patterns("data", "results"))
        subprocess.run([sys.executable, folder / "make_data.py"], check=True, capture_output=True)
        read = {each.name: _read(each / file, label) for each in sorted((folder / "data").glob("*/"))}
        learner = learners.from_file(folder / "learner.py")
        new = read.pop("newcomer")
        result = shoal.simulate(
            algorithm, shoal.Fleet(read), model=learner, seed=seed, device="cpu", **parameters
        )
        graph = export(learner, sample_of(new.x.shape[1:]), {}).data
        views, server, found = Views.of(new), result.card.server(), list[str]()
        trained = DeviceContext(learner, views, "cpu", 0, np.random.default_rng(seed))
        light = InferenceContext(OnnxNetwork(read_graph(graph), 1), views, trained.noise)
        found.extend(_cluster(server, result.state, each) for each in (trained, light))
    return found[0], found[1]


def _cluster(server: Any, state: Any, context: InferenceContext) -> str:
    """As a run and a device settle it: by the models, or by what the run asks for where they cannot be."""
    answer = placing.place(server, state, Wish(64, True), 64)
    if isinstance(answer, Choose):
        try:
            chosen: Any = newcomer.perform(compact(answer), context)
            return str(chosen.assignment.cluster)
        except NoClassifier:
            answer = server.place(state, None)
    if not isinstance(answer, ClusterAssignment):
        described: Any = newcomer.perform(answer, context)
        answer = server.place(state, described.descriptor)
    return str(answer.cluster)


def _read(path: Path, label: str) -> Dataset:
    """A device's file of an example; the newcomer's may have no classes."""
    names = path.open().readline().strip().split(",")
    table = np.loadtxt(path, delimiter=",", skiprows=1)
    x = np.delete(table, names.index(label), axis=1) if label in names else table
    y = table[:, names.index(label)].astype(np.int64) if label in names else None
    return Dataset(x.astype(np.float32), y)


LATENT = ("latents", "moments")


def _described(
    trained: DeviceContext, light: InferenceContext, model: Tensors, chance: np.random.Generator
) -> dict[str, float]:
    x = light.inputs(["train"])
    found, wanted = (
        np.concatenate([each.network.latents(batch) for batch in batches(each.network, x)])
        for each in (light, trained)
    )
    width = wanted.shape[1]
    components = np.linalg.qr(chance.normal(size=(width, min(10, width))))[0].T
    projector: Tensors = {"mean": wanted.mean(axis=0, dtype=np.float64), "components": components}
    here, there = (
        moments_of(projected(each, model, projector, ["train"]), None, 0) for each in (light, trained)
    )
    moments = max(_furthest(here.means, there.means), _furthest(here.deviations, there.deviations))
    return {"latents": _furthest(found, wanted), "moments": moments}


def _furthest(found: Array, wanted: Array) -> float:
    """The largest difference, as a share of the largest number where that is above 1."""
    return float(np.abs(found - wanted).max() / max(1.0, np.abs(wanted).max()))


def _shown(figure: float | None) -> str:
    return "-" if figure is None else f"{figure:.1e}"


if __name__ == "__main__":
    main()
