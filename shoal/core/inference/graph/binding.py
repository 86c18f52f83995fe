"""ONNX files, written: a graph for a run, and a graph together with the weights of one model."""

from collections.abc import Mapping, Sequence

import numpy as np

from shoal.core.data.scale import DEVIATION, LINEAR, MEAN, TARGET, scale_of, without_scale
from shoal.core.errors import BadPayload
from shoal.core.exchange.tensors import Manifest, TensorSpec, check_finite, check_manifest, manifest_of
from shoal.core.inference.graph import model as onnx
from shoal.core.inference.graph.model import DTYPES, SAMPLES, SCORES, Graph
from shoal.core.inference.graph.wire import Fields, field, message
from shoal.core.types import Array, Tensors

VERSION = 8
"""Of the file format, not of the operators: the first that every runtime of today reads."""
PRODUCER = "shoal"
NUMBERS = {dtype: number for number, dtype in DTYPES.items()}
Part = tuple[int, bytes | str | int]
ALL_FIELDS = dict.fromkeys(range(1, 64), True)
"""What the file of an exporter may have: what is not needed is left out of ours."""


def bound(graph: Graph, tensors: Tensors, facts: Mapping[str, str] = {}) -> bytes:
    """An ONNX file of this graph with these weights, which any runtime opens by itself: "x" in, scores out.

    A scale of the inputs that the weights carry (`shoal.core.data.scale`) becomes nodes before and after the
    graph's own. facts: more notes for the file. Raises BadPayload if the weights are not this graph's, or not
    finite.
    """
    scale, tensors = scale_of(tensors), without_scale(tensors)
    ordered = {spec.name: tensors[spec.name] for spec in graph.weights if spec.name in tensors}
    check_manifest(manifest_of({**ordered, **tensors}), graph.weights)
    check_finite(tensors)
    file = Fields(memoryview(graph.data), onnx.MODEL, "the graph's file")
    inner = Fields(file.bytes(7), onnx.GRAPH, "the graph")
    samples = [
        each for each in inner.all(11) if Fields(each, onnx.VALUE, "an input of the graph").text(1) == SAMPLES
    ]
    nodes = [bytes(each) for each in inner.all(1)]
    constants = [*map(bytes, inner.all(5)), *(_constant(name, ordered[name]) for name in ordered)]
    if scale:
        nodes, more = in_own_units(nodes, scale, 1 + len(graph.sample.shape))
        constants += more
    parts: list[Part] = [
        *((1, each) for each in nodes),
        (2, PRODUCER),
        *((5, each) for each in constants),
        *((11, bytes(each)) for each in samples),
        *((12, bytes(each)) for each in inner.all(12)),
    ]
    return _file(message(parts), [bytes(each) for each in file.all(8)], {**graph.facts, **facts})


def without_weights(exported: bytes, weights: Manifest, prefix: str, facts: Mapping[str, str]) -> bytes:
    """The file of an exporter as a graph for a run: the learner's tensors become inputs.

    Names of nodes, comments and traces of the author's machine are left out. prefix: what the exporter has
    put before the names of the tensors. Raises BadPayload where a tensor has another shape there.
    """
    model = Fields(memoryview(exported), ALL_FIELDS, "the exported file")
    inner = Fields(model.bytes(7), ALL_FIELDS, "the exported graph")
    expected, constants = {prefix + spec.name: spec for spec in weights}, []
    for each in inner.all(5):
        tensor = Fields(each, ALL_FIELDS, "an exported tensor")
        spec = expected.get(tensor.text(8))
        if spec is None:
            constants.append(bytes(each))
        elif tuple(tensor.numbers(1)) != spec.shape:
            raise BadPayload(f"tensor {spec.name!r} has another shape in the exported graph")
    renamed = {prefix + spec.name: spec.name for spec in weights}
    parts: list[Part] = [
        *((1, _node(Fields(each, ALL_FIELDS, "an exported node"), renamed)) for each in inner.all(1)),
        (2, PRODUCER),
        *((5, each) for each in constants),
        *((11, _value(Fields(each, ALL_FIELDS, "an exported input"))) for each in inner.all(11)),
        *((11, _declared(spec)) for spec in weights),
        *((12, _value(Fields(each, ALL_FIELDS, "an exported output"))) for each in inner.all(12)),
    ]
    sets = [bytes(each) for each in model.all(8) if not Fields(each, ALL_FIELDS, "an operator set").text(1)]
    return _file(message(parts), sets, {f"shoal.{name}": value for name, value in facts.items()})


def _file(graph: bytes, operator_sets: list[bytes], facts: Mapping[str, str]) -> bytes:
    notes = [
        message([(1, name if name.startswith("shoal.") else f"shoal.{name}"), (2, value)])
        for name, value in facts.items()
    ]
    head = message([(1, VERSION), (2, PRODUCER)])
    return b"".join(
        [
            head,
            field(7, graph),
            *(field(8, each) for each in operator_sets),
            *(field(14, each) for each in notes),
        ]
    )


def in_own_units(nodes: list[bytes], scale: Tensors, rank: int) -> tuple[list[bytes], list[bytes]]:
    """The nodes of a graph that takes inputs, and predicts numbers, in their own units; its new constants.

    nodes: of a graph that does so in this scale. rank: axes of a batch of samples.
    """
    renamed = {}
    before: list[bytes] = []
    after: list[bytes] = []
    constants: dict[str, Array] = {}
    if MEAN in scale:
        renamed[SAMPLES] = _inner("samples")
        shape = (1, -1, *(1,) * (rank - 2))
        constants |= {"mean": scale[MEAN].reshape(shape), "deviation": scale[DEVIATION].reshape(shape)}
        numbers = {"linear": LINEAR, "minus": -LINEAR, "one": 1.0}
        constants |= {name: np.array(number, np.float32) for name, number in numbers.items()}
        steps = (
            ("Sub", (SAMPLES, "mean"), "offset"),
            ("Div", ("offset", "deviation"), "distance"),
            ("Clip", ("distance", "minus", "linear"), "near"),
            ("Abs", ("distance",), "length"),
            ("Sub", ("length", "linear"), "excess"),
            ("Relu", ("excess",), "beyond"),
            ("Add", ("beyond", "one"), "factor"),
            ("Log", ("factor",), "logarithm"),
            ("Sign", ("distance",), "sign"),
            ("Mul", ("sign", "logarithm"), "far"),
            ("Add", ("near", "far"), "samples"),
        )
        before = [_step(*step) for step in steps]
    if TARGET in scale:
        renamed[SCORES] = _inner("scores")
        constants |= {"target_mean": scale[TARGET][:1], "target_deviation": scale[TARGET][1:]}
        after = [
            _step("Mul", ("scores", "target_deviation"), "spread"),
            _step("Add", ("spread", "target_mean"), SCORES),
        ]
    own = [_node(Fields(memoryview(each), ALL_FIELDS, "a node"), renamed) for each in nodes]
    return [*before, *own, *after], [
        _constant(_inner(name), np.asarray(each)) for name, each in constants.items()
    ]


def _inner(name: str) -> str:
    """No name of a learner's, which are those of Python."""
    return f"shoal/{name}"


def _step(operator: str, inputs: Sequence[str], output: str) -> bytes:
    outside = (SAMPLES, SCORES)
    names = [(1, each if each == SAMPLES else _inner(each)) for each in inputs]
    return message([*names, (2, output if output in outside else _inner(output)), (4, operator)])


def _node(node: Fields, renamed: Mapping[str, str]) -> bytes:
    """A node with what it computes, and nothing else."""
    names = [
        *((1, renamed.get(name, name)) for name in node.texts(1)),
        *((2, renamed.get(name, name)) for name in node.texts(2)),
    ]
    attributes = ((5, bytes(each)) for each in node.all(5))
    return message([*names, (4, node.text(4)), *attributes, *([(7, node.text(7))] if node.text(7) else [])])


def _value(value: Fields) -> bytes:
    """An input or an output with its name and its type, and nothing else."""
    return message([(1, value.text(1)), (2, bytes(value.bytes(2)))])


def _constant(name: str, array: Array) -> bytes:
    data = np.ascontiguousarray(array).astype(array.dtype.newbyteorder("<"), copy=False).tobytes()
    sizes = [(1, size) for size in array.shape]
    return message([*sizes, (2, NUMBERS[array.dtype.name]), (8, name), (9, data)])


def _declared(spec: TensorSpec) -> bytes:
    """An input of a fixed shape."""
    shape = message((1, message([(1, size)])) for size in spec.shape)
    tensor = message([(1, NUMBERS[spec.dtype]), (2, shape)])
    return message([(1, spec.name), (2, message([(1, tensor)]))])
