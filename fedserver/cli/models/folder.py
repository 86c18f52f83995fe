"""All models of a run as a folder: config.json, a model card, checksums, and a folder for each model.

README.md      the card, as Hugging Face reads it
c0/            model.safetensors and config.json, as Hugging Face reads them; with the run's graph also
               model.onnx and MLmodel: `mlflow models serve -m FOLDER/c0`
"""

import hashlib
import json
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

import yaml

from fedserver.cli import text
from fedserver.cli.models import onnx
from fedserver.coordinator.status_types import DeviceFigures, ReleaseStatus, RunStatus
from shoal import __version__
from shoal.core.data.scale import DEVIATION, LINEAR, MEAN, TARGET
from shoal.core.inference.graph.model import Graph, read_graph, reference_of
from shoal.core.privacy.report import Statement
from shoal.core.server_kit.history.records import RoundHistory
from shoal.core.texts import measure, percent
from shoal.core.types import DeviceId, ModelKey
from shoal.shell import disk
from shoal.shell.weights import save

if TYPE_CHECKING:
    from fedserver.rpc.client import OperatorClient

CARD, CONFIG, SUMS, GRAPH = "README.md", "config.json", "SHA256SUMS", "graph.onnx"
SIGNED, SIGNATURE, CERTIFICATE = "release.json", "release.sig", "authority.pem"
"""Of a release: its card, as it was signed, and what proves it."""


def write_folder(
    client: "OperatorClient", status: RunStatus, folder: Path, release: ReleaseStatus | None = None
) -> list[Path]:
    """Fetch the models of a run, or of a release that was checked, and write the folder. Returns its files;
    the checksums are written last, so a folder without them is not whole. Raises BadPayload where the server
    names a cluster so that its files would be elsewhere."""
    run, folders = status.summary.run, {key: disk.inside(folder, key) for key in status.models}
    rounds = list(client.history(run, devices=False))
    in_all = {device: each for device, each in client.status().released.items() if device in status.released}
    with disk.storing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / SUMS).unlink(missing_ok=True)
    files = dict[str, bytes]()
    graph, names = graph_of(client, status), list[Path]()
    for key, weights in status.models.items():
        tensors, own = client.fetch(weights), folders[key]
        with disk.storing(own):
            own.mkdir(exist_ok=True)
        save(tensors, own / "model.safetensors", {"run": run, "cluster": key})
        names.append(own / "model.safetensors")
        files[f"{key}/{CONFIG}"] = _json(_config_of_model(status, key, graph))
        if graph is not None:
            files |= {f"{key}/{name}": each for name, each in onnx.files(graph, tensors, run, key).items()}
    if graph is not None:
        files[GRAPH] = graph.data
    files |= {CONFIG: _json(_config(status, rounds)), CARD: _card(status, rounds, in_all).encode()}
    if release is not None:
        proof = {SIGNATURE: release.signature, CERTIFICATE: release.certificate} if release.signature else {}
        files |= {SIGNED: release.card, **proof}
    for name, content in files.items():
        disk.write(folder / name, content)
        names.append(folder / name)
    sums = [
        f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.relative_to(folder)}\n" for path in names
    ]
    disk.write(folder / SUMS, "".join(sums).encode())
    return [*names, folder / SUMS]


def graph_of(client: "OperatorClient", status: RunStatus) -> Graph | None:
    """The network of a run; None if there is no graph of it."""
    spec = status.spec
    if spec is None or not spec.graph:
        return None
    return read_graph(client.fetch(reference_of(spec.graph, spec.graph_bytes))["graph"].tobytes())


def _json(found: Any) -> bytes:
    return f"{json.dumps(found, indent=1, default=str)}\n".encode()


def _config(status: RunStatus, rounds: Sequence[RoundHistory]) -> dict[str, Any]:
    summary, spec = status.summary, status.spec
    return {
        "run": summary.run,
        "algorithm": summary.algorithm,
        "stage": summary.stage,
        "rounds": summary.progress,
        **({} if spec is None else text.spec_data(spec)),
        "clusters": {
            key: {
                "file": f"{key}/model.safetensors",
                "sha256": weights.blob.sha256,
                "devices": len(status.clusters.get(key, ())),
                "accuracy": _accuracy(status, key),
                "lineage": _lineage(key, rounds),
            }
            for key, weights in status.models.items()
        },
        "exported_by": f"shoal {__version__}",
    }


def _config_of_model(status: RunStatus, key: ModelKey, graph: Graph | None) -> dict[str, Any]:
    """In the words of Hugging Face, as far as it has them."""
    names = graph.class_names if graph else ()
    learner = graph.facts.get("learner", "") if graph else status.spec.learner if status.spec else ""
    return {
        "model_type": "shoal",
        **({"architectures": [learner]} if learner else {}),
        **(
            {"id2label": dict(enumerate(names)), "label2id": {n: i for i, n in enumerate(names)}}
            if names
            else {}
        ),
        "run": status.summary.run,
        "cluster": key,
        "devices": len(status.clusters.get(key, ())),
        "accuracy": _accuracy(status, key),
    }


def _front_matter(status: RunStatus) -> str:
    """What Hugging Face reads of a card: tags, and how good each model is."""
    found = {key: _accuracy(status, key) for key in status.models}
    kind = "r_squared" if status.summary.numbers else "accuracy"
    results = [
        {
            "task": {"type": "other", "name": f"cluster {key}"},
            "dataset": {"type": "held-out", "name": "held-out samples of the cluster's devices"},
            "metrics": [{"type": kind, "value": round(accuracy, 4)}],
        }
        for key, accuracy in found.items()
        if accuracy is not None
    ]
    index = {"model-index": [{"name": status.summary.run, "results": results}]} if results else {}
    facts = {"library_name": "shoal", "tags": ["federated-learning", status.summary.algorithm], **index}
    return f"---\n{yaml.safe_dump(facts, sort_keys=False)}---"


def _members(status: RunStatus, key: ModelKey) -> list[DeviceFigures]:
    return [each for each in status.devices if each.cluster == key]


def _accuracy(status: RunStatus, key: ModelKey) -> float | None:
    """Mean over the devices of a cluster that measured it."""
    known = [each.accuracy for each in _members(status, key) if each.accuracy is not None]
    return fmean(known) if known else None


def _lineage(key: ModelKey, rounds: Sequence[RoundHistory]) -> list[str]:
    """Where a cluster comes from: from the newest to the oldest, the round and the clusters before it."""
    found, names = [], {key}
    for each in reversed(rounds):
        for cluster in each.clusters:
            other = [name for name in cluster.parents if name != cluster.key]
            if cluster.key in names and other:
                found.append(f"{cluster.key} came from {', '.join(cluster.parents)} in round {each.progress}")
                names |= set(cluster.parents)
    return found


def _card(status: RunStatus, rounds: Sequence[RoundHistory], in_all: dict[DeviceId, Statement]) -> str:
    summary = status.summary
    goes_on = "" if summary.over else "; the run goes on, and later models differ"
    named = summary.algorithm if status.spec is None else f"{summary.algorithm}, preset {status.spec.preset}"
    rows = [
        (
            key,
            f"{key}/model.safetensors",
            str(len(status.clusters.get(key, ()))),
            str(sum(each.examples for each in _members(status, key)) or "-"),
            percent(_accuracy(status, key)),
        )
        for key in status.models
    ]
    what = measure(summary.numbers)
    lineage = [line for key in status.models for line in _lineage(key, rounds)]
    parts = [
        _front_matter(status),
        f"# Models of run {summary.run}",
        f"Trained by Shoal {__version__} with {named}: {summary.progress} rounds of training, exported on "
        f"{time.strftime('%Y-%m-%d', time.gmtime())} (UTC){goes_on}. `{CONFIG}` has every setting.",
        "## Models",
        *([f"**{status.verdict}.**"] if status.verdict else []),
        _markdown(("cluster", "file", "devices", "samples", what), rows),
        f"{what.capitalize()} is what the devices of a cluster measured on that many held-out or test "
        "samples of their own. Nothing else is known here about their data, which never left them.",
        *_scale(status),
        "## Where the clusters come from",
        "\n".join(f"- {line}" for line in lineage) or "One model from the beginning.",
        "## Privacy",
        "What the devices released in this run:",
        _quoted(text.privacy_table(status.released, status.central)),
        "What the same devices released over all runs of this server:",
        _quoted(text.privacy_table(in_all)),
        "## Which model to use",
        "A device of the federation gets the model that fits its data, without labels, by `fedclient place "
        "DATA`. Elsewhere, try each model on samples whose labels you know, and take the best one; without "
        "labels, take the one whose predictions are certain on single samples and varied over all of them. "
        "Where none is clearly better, do not trust any of them on these data.",
        "## Check the files",
        f"    sha256sum -c {SUMS}",
    ]
    return "\n\n".join(parts) + "\n"


def _scale(status: RunStatus) -> list[str]:
    """What a user of the files has to do with samples first, if the models carry a scale."""
    names = {spec.name for weights in status.models.values() for spec in weights.manifest}
    if MEAN not in names:
        return []
    return [
        "## Inputs",
        f"The network takes inputs in one scale. With z = (x - `{MEAN}`) / `{DEVIATION}` for each feature or "
        f"channel, it takes z up to {LINEAR:g} in absolute value, and sign(z) ({LINEAR:g} + log(1 + |z| - "
        f"{LINEAR:g})) beyond. Where there is `{TARGET}`, what the network predicts is multiplied by its "
        "second number, and its first is added. These tensors are no weights of the network. Shoal's own "
        "programs, and `model.onnx`, do all of this themselves.",
    ]


def _markdown(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _quoted(table: str) -> str:
    return "\n".join(f"    {line}" for line in table.splitlines())
