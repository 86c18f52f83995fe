"""A graph that a run gives to its devices, read from the bytes of an ONNX file and checked.

A server may be hostile, and a runtime is a large program: so no runtime sees a graph before it
has passed here. It may have no operator but those below, no graph within the graph, no file beside it, and
only a limited number of bytes and nodes. What is left can still compute for long or take much memory; a limit
of the process that runs it is for that.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from shoal.core.errors import BadPayload
from shoal.core.exchange.payload import BlobRef, Weights
from shoal.core.exchange.tensors import MAX_TENSORS, Manifest, TensorSpec
from shoal.core.inference.graph.operators import OPERATORS
from shoal.core.inference.graph.wire import HINT, Fields, signed

MAX_BYTES, MAX_NODES = 16 << 20, 4096
MAX_SAMPLE = 1 << 26
"""Values of one sample."""
OPSETS = range(13, 24)
"""The versions of ONNX's operators that are taken. Older ones differ in what their operators mean."""
SAMPLES, SCORES, LATENT, EMBEDDING = "x", "scores", "latent", "embedding"
OF_NETWORKS = ((SCORES,), (SCORES, LATENT))
MODEL = {1: False, 2: False, 7: False, 8: True, 14: True}
GRAPH = {1: True, 2: False, 5: True, 11: True, 12: True}
NODE = {1: True, 2: True, 4: False, 5: True, 7: False}
ATTRIBUTE = {**dict.fromkeys((1, 2, 3, 4, 5, 6, 20), False), **dict.fromkeys((7, 8, 9, 10, 11), True)}
TENSOR = {**dict.fromkeys((1, 4, 5, 7, 10, 11, 13), True), **dict.fromkeys((2, 8, 9, 14), False)}
VALUE, TYPE, TENSOR_TYPE = {1: False, 2: False}, {1: False}, {1: False, 2: False}
SHAPE, SIZE = {1: True}, {1: False, 2: False}
OPERATOR_SET, ENTRY = {1: False, 2: False}, {1: False, 2: False}
DTYPES: Mapping[int, str] = MappingProxyType(
    {
        1: "float32",
        2: "uint8",
        3: "int8",
        5: "int16",
        6: "int32",
        7: "int64",
        9: "bool",
        10: "float16",
        11: "float64",
    }
)
"""ONNX's numbers of the types that a set of tensors may have."""


@dataclass(frozen=True, eq=False)
class Graph:
    """A checked graph. data: its bytes. sample: the type and shape of one sample, without the batch.

    weights: what the learner's state looks like, in its order. outputs: "scores", and perhaps "latent"; of a
    frozen encoder, which has its weights in it, "embedding".
    facts: what the author's machine noted: learner, classifier ("yes" or "no"), preprocessing and classes.
    """

    data: bytes
    sample: TensorSpec
    weights: Manifest
    outputs: tuple[str, ...]
    facts: Mapping[str, str]

    @property
    def classifier(self) -> bool:
        """Whether its scores are of classes, and the learner has no loss or evaluation of its own."""
        return self.facts.get("classifier") == "yes"

    @property
    def class_names(self) -> tuple[str, ...]:
        """The names of class 0, 1 and so on; empty where the author's machine noted none."""
        return tuple(map(str, json.loads(self.facts.get("classes", "[]"))))


def reference_of(sha256: str, size: int) -> Weights:
    """A graph of this hash and this many bytes as a set of tensors with one tensor, so that it is stored and
    sent like others."""
    return Weights((TensorSpec("graph", "uint8", (size,)),), BlobRef(sha256, size))


def read_graph(data: bytes, allowed: Sequence[tuple[str, ...]] = OF_NETWORKS) -> Graph:
    """The graph in an ONNX file, with one of these lists of outputs. Raises BadPayload, with the reason, for
    one that is not taken."""
    if len(data) > MAX_BYTES:
        raise BadPayload(
            f"the graph has {len(data)} bytes",
            f"at most {MAX_BYTES} are taken; weights do not belong in it",
        )
    model = Fields(memoryview(data), MODEL, "the graph's file")
    _check_operator_sets(model)
    graph = Fields(model.bytes(7), GRAPH, "the graph")
    nodes = graph.all(1)
    if not 1 <= len(nodes) <= MAX_NODES:
        raise BadPayload(f"the graph has {len(nodes)} nodes", f"1 to {MAX_NODES} are taken")
    for node in nodes:
        _check_node(Fields(node, NODE, "a node of the graph"))
    for tensor in graph.all(5):
        _check_constant(Fields(tensor, TENSOR, "a constant of the graph"))
    inputs = [_tensor_of(Fields(each, VALUE, "an input of the graph")) for each in graph.all(11)]
    outputs = tuple(Fields(each, VALUE, "an output of the graph").text(1) for each in graph.all(12))
    if outputs not in allowed:
        raise BadPayload(f"the graph's outputs are {_listed(outputs)}, not {' and '.join(allowed[-1])}", HINT)
    facts = {}
    for each in model.all(14):
        entry = Fields(each, ENTRY, "a note of the graph")
        facts[entry.text(1).removeprefix("shoal.")] = entry.text(2)
    return Graph(data, _sample_of(inputs), _weights_of(inputs), outputs, MappingProxyType(facts))


def read_encoder(data: bytes) -> Graph:
    """The frozen encoder in an ONNX file, with its weights. Raises BadPayload for one that is not taken."""
    found = read_graph(data, ((EMBEDDING,),))
    if found.weights:
        raise BadPayload("the encoder's graph lacks its weights", HINT)
    return found


def _check_operator_sets(model: Fields) -> None:
    sets = [Fields(each, OPERATOR_SET, "an operator set") for each in model.all(8)]
    found = [(each.text(1), each.number(2)) for each in sets]
    if len(found) != 1 or found[0][0] not in ("", "ai.onnx"):
        domains = _listed(domain or "ai.onnx" for domain, _ in found)
        raise BadPayload(f"the graph uses the operator sets {domains}", "only ONNX's own operators are taken")
    if found[0][1] not in OPSETS:
        raise BadPayload(
            f"the graph uses version {found[0][1]} of ONNX's operators",
            f"versions {OPSETS.start} to {OPSETS.stop - 1} are taken; {HINT}",
        )


def _check_node(node: Fields) -> None:
    kind, domain = node.text(4), node.text(7)
    if domain not in ("", "ai.onnx"):
        raise BadPayload(
            f"the graph uses the custom operator {domain}.{kind}", "only ONNX's own operators are taken"
        )
    if kind not in OPERATORS:
        raise BadPayload(
            f"the graph uses the operator {kind!r}, which is not taken",
            "build the network of usual layers, or use PyTorch on the device",
        )
    for each in node.all(5):
        attribute = Fields(each, ATTRIBUTE, f"an attribute of {kind}")
        if attribute.has(6) or attribute.has(11):
            raise BadPayload(f"{kind} has a graph of its own within the graph", "such graphs are not taken")
        for tensor in (*attribute.all(5), *attribute.all(10)):
            _check_constant(Fields(tensor, TENSOR, f"a constant of {kind}"))


def _check_constant(tensor: Fields) -> None:
    if tensor.has(13) or tensor.number(14):
        raise BadPayload(f"{tensor.what} is in another file", "a graph may not name files")
    if tensor.number(2) not in DTYPES:
        raise BadPayload(f"{tensor.what} has the type {tensor.number(2)}, which is not taken", HINT)


def _tensor_of(value: Fields) -> tuple[str, str, list[int | None]]:
    """The name, the dtype and the sizes of an input; None for a size that is not fixed."""
    name = value.text(1)
    tensor = Fields(Fields(value.bytes(2), TYPE, f"input {name!r}").bytes(1), TENSOR_TYPE, f"input {name!r}")
    if (dtype := DTYPES.get(tensor.number(1))) is None:
        raise BadPayload(f"input {name!r} of the graph has the type {tensor.number(1)}, which is not taken")
    sizes: list[int | None] = []
    for each in Fields(tensor.bytes(2), SHAPE, f"the shape of input {name!r}").all(1):
        size = Fields(each, SIZE, f"a size of input {name!r}")
        sizes.append(signed(size.number(1)) if size.has(1) else None)
    return name, dtype, sizes


def _sample_of(inputs: list[tuple[str, str, list[int | None]]]) -> TensorSpec:
    found = [each for each in inputs if each[0] == SAMPLES]
    if len(found) != 1:
        raise BadPayload(f"the graph has {len(found)} inputs named {SAMPLES!r}, not one", HINT)
    _, dtype, sizes = found[0]
    fixed = [size for size in sizes[1:] if size is not None]
    if not sizes or sizes[0] is not None or len(fixed) < len(sizes) - 1 or dtype not in ("float32", "int64"):
        raise BadPayload(
            f"the graph takes samples {dtype} {sizes}", "the batch has to be open, and everything else fixed"
        )
    spec = TensorSpec(SAMPLES, dtype, tuple(fixed))
    if not 1 <= math.prod(spec.shape) <= MAX_SAMPLE:
        raise BadPayload(f"the graph takes samples of shape {list(spec.shape)}", HINT)
    return spec


def _weights_of(inputs: list[tuple[str, str, list[int | None]]]) -> Manifest:
    found = []
    for name, dtype, sizes in inputs:
        if name == SAMPLES:
            continue
        fixed = tuple(size for size in sizes if size is not None)
        if len(fixed) < len(sizes):
            raise BadPayload(f"input {name!r} of the graph has no fixed shape", HINT)
        found.append(TensorSpec(name, dtype, fixed))
    if len(found) > MAX_TENSORS or len({spec.name for spec in found}) < len(found):
        raise BadPayload(f"the graph has {len(found)} weights, or two of one name", HINT)
    return tuple(found)


def _listed(names: object) -> str:
    return ", ".join(map(repr, names)) or "none"  # type: ignore[call-overload]
