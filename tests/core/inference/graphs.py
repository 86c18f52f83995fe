"""Small graphs, written field by field: a linear network, and hostile relatives of it."""

import struct
from collections.abc import Sequence

from shoal.core.inference.graph.wire import field, message

Part = tuple[int, bytes | str | int]
FLOAT32, INT64 = 1, 7
NUMBERS = {"zero": 0, "one": 1, "three": 3}


def tensor_type(dtype: int, sizes: Sequence[int | str]) -> bytes:
    """A size that is a word is open."""
    shape = message((1, message([(2, size)] if isinstance(size, str) else [(1, size)])) for size in sizes)
    return message([(1, message([(1, dtype), (2, shape)]))])


def value(name: str, dtype: int = FLOAT32, sizes: Sequence[int | str] = ("batch", 4)) -> bytes:
    return message([(1, name), (2, tensor_type(dtype, sizes))])


def node(kind: str, inputs: Sequence[str], outputs: Sequence[str], *more: Part) -> bytes:
    return message([*((1, name) for name in inputs), *((2, name) for name in outputs), (4, kind), *more])


NODES = (
    node("MatMul", ["x", "weight"], ["product"]),
    node("Add", ["product", "bias"], ["scores"]),
    node("Relu", ["scores"], ["latent"]),
)
INPUTS = (value("x"), value("weight", sizes=(4, 3)), value("bias", sizes=(3,)))
OUTPUTS = (value("scores", sizes=("batch", 3)), value("latent", sizes=("batch", 3)))


def graph(
    nodes: Sequence[bytes] = NODES,
    inputs: Sequence[bytes] = INPUTS,
    outputs: Sequence[bytes] = OUTPUTS,
    more: Sequence[Part] = (),
    file: Sequence[Part] = (),
    sets: Sequence[tuple[str, int]] = (("", 17),),
) -> bytes:
    """An ONNX file. more, file: fields beside those of a graph, and of the file around it."""
    inner = message(
        [
            *((1, each) for each in nodes),
            *more,
            *((11, each) for each in inputs),
            *((12, each) for each in outputs),
        ]
    )
    operators = [(8, message([(1, domain), (2, version)])) for domain, version in sets]
    notes = [
        (14, message([(1, "shoal.learner"), (2, "linear")])),
        (14, message([(1, "shoal.classifier"), (2, "yes")])),
    ]
    return b"".join([message([(1, 8)]), field(7, inner), message([*operators, *notes, *file])])


def attribute(name: str, *parts: Part) -> Part:
    return (5, message([(1, name), *parts]))


def constant(name: str, dtype: int, data: bytes) -> Part:
    """One value, as a constant of a graph."""
    return (5, message([(1, 1), (2, dtype), (8, name), (9, data)]))


NARROW = graph(
    [
        node("MatMul", ["x", "weight"], ["product"]),
        node("Add", ["product", "bias"], ["all"]),
        node("ReduceMax", ["x"], ["largest"], attribute("keepdims", (3, 0), (20, 2))),
        node("Greater", ["largest", "limit"], ["beyond"]),
        node("Where", ["beyond", "one", "three"], ["width"]),
        node("Slice", ["all", "zero", "width", "one"], ["scores"]),
    ],
    outputs=[value("scores", sizes=("batch", "classes"))],
    more=[
        constant("limit", FLOAT32, struct.pack("<f", 5.0)),
        *(constant(name, INT64, struct.pack("<q", number)) for name, number in NUMBERS.items()),
    ],
)
"""It passes every check, and gives one score instead of three where a number of the samples is above 5."""

EXTERNAL = message(
    [(1, 3), (2, FLOAT32), (8, "stolen"), (13, message([(1, "location"), (2, "/etc/passwd")])), (14, 1)]
)
LOOP = node("Loop", ["", "", "x"], ["scores"], attribute("body", (6, message([(1, NODES[0])])), (20, 5)))
NESTED = node("Relu", ["x"], ["scores"], attribute("body", (6, message([(1, NODES[0])])), (20, 5)))

HOSTILE = {
    "no protobuf": (b"\xff" * 64, "cannot be read"),
    "cut off": (graph()[:-3], "cannot be read"),
    "empty": (b"", "operator sets none"),
    "huge": (graph(file=[(2, b"0" * (17 << 20))]), "at most"),
    "many nodes": (graph([node("Relu", [str(i)], [str(i + 1)]) for i in range(5000)]), "5000 nodes"),
    "deep": (graph([NESTED]), "a graph of its own"),
    "loop": (graph([LOOP]), "operator 'Loop'"),
    "custom operator": (
        graph([node("Shell", ["x"], ["scores"], (7, "com.evil"))]),
        "custom operator com.evil.Shell",
    ),
    "custom operator set": (graph(sets=[("", 17), ("com.evil", 1)]), "operator sets"),
    "random": (graph([node("RandomNormalLike", ["x"], ["scores"])]), "operator 'RandomNormalLike'"),
    "old operators": (graph(sets=[("", 7)]), "version 7"),
    "external file": (graph(more=[(5, EXTERNAL)]), "in another file"),
    "external constant": (
        graph([node("Constant", [], ["scores"], attribute("value", (5, EXTERNAL), (20, 4)))]),
        "in another file",
    ),
    "no x": (graph(inputs=INPUTS[1:]), "0 inputs named 'x'"),
    "wrong outputs": (graph(outputs=[value("answer")]), "outputs are 'answer'"),
    "fixed batch": (graph(inputs=[value("x", sizes=(1, 4)), *INPUTS[1:]]), "the batch has to be open"),
    "open weights": (graph(inputs=[INPUTS[0], value("weight", sizes=("n", 3)), INPUTS[2]]), "no fixed shape"),
    "huge samples": (graph(inputs=[value("x", sizes=("batch", 1 << 30)), *INPUTS[1:]]), "samples of shape"),
    "weights twice": (graph(inputs=[*INPUTS, INPUTS[1]]), "two of one name"),
    "text": (graph(inputs=[value("x", 8), *INPUTS[1:]]), "the type 8"),
    "two graphs": (graph(file=[(7, message([(1, LOOP)]))]), "field 7 twice"),
    "functions": (graph(file=[(25, b"")]), "field 25"),
    "training": (graph(file=[(20, b"")]), "field 20"),
    "sparse": (graph(more=[(15, b"")]), "field 15"),
    "no text": (graph([message([(1, b"\xff\xfe"), (4, b"\xff\xfe")])]), "not UTF-8"),
    "number for bytes": (message([(1, 8), (7, 5), (8, message([(2, 17)]))]), "is a number"),
}
"""What a hostile server may send, and words of the reason why it is refused."""
