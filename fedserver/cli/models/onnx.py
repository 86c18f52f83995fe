"""A model as an ONNX file that any runtime opens by itself, with a card for people or for MLflow."""

import json
import platform
import uuid
from collections.abc import Mapping
from pathlib import Path

import yaml

from fedserver.store.records import RunSpec
from shoal.core.errors import BadPayload, NotFound
from shoal.core.inference.graph.binding import bound
from shoal.core.inference.graph.model import Graph
from shoal.core.types import Tensors
from shoal.shell.disk import write

MLMODEL = "MLmodel"


def no_graph(run: str, spec: RunSpec | None) -> NotFound:
    """What is said where a run has no graph."""
    given = spec is not None and spec.initial
    why = "its first weights came without --graph" if given else f"fedserver run logs {run} says why"
    return NotFound(
        f"run {run} has no graph of its network, so its models cannot become ONNX files: {why}",
        "make one with `fedclient export`: fedserver model export --graph graph.onnx --out model.onnx",
    )


def save(graph: Graph, tensors: Tensors, path: Path, facts: Mapping[str, str]) -> Path:
    """Write the model to `path`, and its card beside it, whose path is returned. facts: of the run.

    Raises BadPayload if the weights are not the graph's.
    """
    write(path.absolute(), bound(graph, tensors, facts))
    written = path.with_suffix(".md")
    write(written.absolute(), card(graph, path.name, facts).encode())
    return written


def files(graph: Graph, tensors: Tensors, run: str, cluster: str) -> dict[str, bytes]:
    """The files of a model that MLflow's flavors `onnx` and `python_function` read; none if the weights are
    not the graph's, as those of a run that counts."""
    try:
        data = bound(graph, tensors, {"run": run, "cluster": cluster})
    except BadPayload:
        return {}
    samples = {"dtype": graph.sample.dtype, "shape": [-1, *graph.sample.shape]}
    flavors = {
        "onnx": {"data": "model.onnx", "providers": ["CPUExecutionProvider"], "onnx_version": "1.17.0"},
        "python_function": {
            "loader_module": "mlflow.onnx",
            "data": "model.onnx",
            "env": {"virtualenv": "python_env.yaml"},
            "python_version": platform.python_version(),
        },
    }
    description = {
        "flavors": flavors,
        "signature": {"inputs": json.dumps([{"type": "tensor", "tensor-spec": samples}])},
        "model_uuid": uuid.uuid4().hex,
        "metadata": {"run": run, "cluster": cluster, **graph.facts},
    }
    environment = {"python": platform.python_version(), "dependencies": ["-r requirements.txt"]}
    return {
        "model.onnx": data,
        MLMODEL: yaml.safe_dump(description, sort_keys=False).encode(),
        "python_env.yaml": yaml.safe_dump(environment).encode(),
        "requirements.txt": b"mlflow\nnumpy\nonnx\nonnxruntime\n",
    }


def card(graph: Graph, name: str, facts: Mapping[str, str]) -> str:
    """What a user of the file has to know, in Markdown."""
    sizes = ", ".join(["n", *map(str, graph.sample.shape)])
    classes = ", ".join(f"{number} is {each}" for number, each in enumerate(graph.class_names))
    lines = [
        f"# {name}",
        "",
        f"- run: {facts['run']}, cluster: {facts['cluster']}",
        *([f"- {facts['verdict']}"] if "verdict" in facts else []),
        f"- learner: {graph.facts.get('learner', 'not noted')}",
        f"- input `x`: ({sizes}) {graph.sample.dtype}",
        f"- preprocessing: {graph.facts.get('preprocessing', 'not noted')}",
        *(
            [f"- graph: made by device {facts['graph_by']}, with the first weights"]
            if facts["graph_by"]
            else []
        ),
        f"- outputs: {', '.join(f'`{each}`' for each in graph.outputs)}; `scores` are before any softmax",
        f"- classes: {classes or 'numbered from 0'}",
        f"- privacy: {facts['privacy']}",
        f"- privacy of the same devices over all runs: {facts['privacy_over_all_runs']}",
        "",
        "```python",
        "import numpy as np, onnxruntime",
        f'session = onnxruntime.InferenceSession("{name}")',
        f"x = np.zeros({(1, *graph.sample.shape)}, np.{graph.sample.dtype})",
        '(scores,) = session.run(["scores"], {"x": x})',
        "```",
    ]
    return "\n".join(lines) + "\n"
