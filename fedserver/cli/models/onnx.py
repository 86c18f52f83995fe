"""A model as an ONNX file that any runtime opens by itself, with a card for people beside it."""

from collections.abc import Mapping
from pathlib import Path

from shoal.core.inference.graph.binding import bound
from shoal.core.inference.graph.model import Graph, read_graph
from shoal.core.types import Tensors
from shoal.shell.disk import write

NO_GRAPH = "start a run with --graph, or export safetensors: --out model.safetensors"


def save(graph: bytes, tensors: Tensors, path: Path, facts: Mapping[str, str]) -> Path:
    """Write the model to `path`, and its card beside it, whose path is returned. facts: of the run.

    Raises BadPayload if the weights are not the graph's.
    """
    found = read_graph(graph)
    write(path.absolute(), bound(found, tensors, facts))
    written = path.with_suffix(".md")
    write(written.absolute(), card(found, path.name, facts).encode())
    return written


def card(graph: Graph, name: str, facts: Mapping[str, str]) -> str:
    """What a user of the file has to know, in Markdown."""
    sizes = ", ".join(["n", *map(str, graph.sample.shape)])
    classes = ", ".join(f"{number} is {each}" for number, each in enumerate(graph.class_names))
    lines = [
        f"# {name}",
        "",
        f"- run: {facts['run']}, cluster: {facts['cluster']}",
        f"- learner: {graph.facts.get('learner', 'not noted')}",
        f"- input `x`: ({sizes}) {graph.sample.dtype}",
        f"- preprocessing: {graph.facts.get('preprocessing', 'not noted')}",
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
