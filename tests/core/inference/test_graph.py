"""Graphs from a server: which are taken, why others are not, and what becomes of one with weights."""

from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.core.errors import BadPayload
from shoal.core.exchange.tensors import TensorSpec
from shoal.core.inference.graph.binding import bound, without_weights
from shoal.core.inference.graph.model import GRAPH, MODEL, SAMPLES, read_graph, reference_of
from shoal.core.inference.graph.wire import Fields, field, fields, message, signed, varint
from shoal.core.types import Tensors
from tests.core.inference.graphs import HOSTILE, INPUTS, NODES, graph

WEIGHTS: Tensors = {"weight": np.ones((4, 3), np.float32), "bias": np.zeros(3, np.float32)}


def test_a_graph_of_ours() -> None:
    found = read_graph(graph())
    assert found.sample == TensorSpec("x", "float32", (4,))
    assert found.weights == (TensorSpec("weight", "float32", (4, 3)), TensorSpec("bias", "float32", (3,)))
    assert (found.outputs, found.classifier) == (("scores", "latent"), True)
    assert found.facts == {"learner": "linear", "classifier": "yes"}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_graph_is_refused_with_the_reason(name: str) -> None:
    data, reason = HOSTILE[name]
    with pytest.raises(BadPayload, match=reason):
        read_graph(data)


@given(place=st.integers(0, len(graph()) - 1), byte=st.integers(0, 255), cut=st.integers(0, 40))
def test_any_damage_is_a_graph_or_a_refusal(place: int, byte: int, cut: int) -> None:
    data = bytearray(graph())
    data[place] = byte
    with suppress(BadPayload):
        assert read_graph(bytes(data[: len(data) - cut])).outputs


def test_weights_become_constants() -> None:
    """The samples are the only input that is left, and the weights' bytes are in the file."""
    made = bound(read_graph(graph()), {"bias": WEIGHTS["bias"], "weight": WEIGHTS["weight"]}, {"run": "r"})
    inner = Fields(Fields(memoryview(made), MODEL, "file").bytes(7), GRAPH, "graph")
    assert [Fields(each, {1: False, 2: False}, "input").text(1) for each in inner.all(11)] == [SAMPLES]
    constants = [Fields(each, {1: True, 2: False, 8: False, 9: False}, "constant") for each in inner.all(5)]
    assert [(each.text(8), each.numbers(1)) for each in constants] == [("weight", [4, 3]), ("bias", [3])]
    assert bytes(constants[0].bytes(9)) == WEIGHTS["weight"].tobytes()
    assert b"shoal.run" in made


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"bias": np.zeros(4, np.float32)}, "tensor 'bias'"),
        ({"more": np.zeros(1, np.float32)}, "unknown tensor 'more'"),
        ({"bias": np.array([0.0, np.nan, 0.0], np.float32)}, "NaN"),
    ],
)
def test_weights_of_another_network_are_refused(change: Tensors, reason: str) -> None:
    with pytest.raises(BadPayload, match=reason):
        bound(read_graph(graph()), {**WEIGHTS, **change})
    with pytest.raises(BadPayload, match="lacks tensor"):
        bound(read_graph(graph()), {"bias": WEIGHTS["bias"]})


def test_an_exporters_file_loses_its_weights_and_its_traces() -> None:
    """The exporter's file has weights under longer names, comments, and the author's paths."""
    specs = (TensorSpec("weight", "float32", (4, 3)), TensorSpec("bias", "float32", (3,)))
    named = {"weight": "model.weight", "bias": "model.bias"}
    nodes = []
    for each in NODES:
        known = Fields(memoryview(each), {1: True, 2: True, 4: False}, "node")
        inputs = [(1, named.get(name, name)) for name in known.texts(1)]
        outputs = [(2, name) for name in known.texts(2)]
        nodes.append(
            message([*inputs, *outputs, (3, "/home/author"), (4, known.text(4)), (6, "/home/author")])
        )
    initializers = [
        (5, message([*((1, size) for size in spec.shape), (2, 1), (8, named[spec.name]), (9, bytes(48))]))
        for spec in specs
    ]
    exported = graph(nodes, INPUTS[:1], more=initializers, file=[(6, "made in /home/author")])
    made = without_weights(exported, specs, "model.", {"learner": "linear"})
    found = read_graph(made)
    assert found.weights == specs
    assert b"/home/author" not in made
    assert b"model." not in made


def test_a_graph_is_stored_under_the_hash_of_its_file() -> None:
    weights = reference_of("a" * 64, 123)
    assert (weights.blob.sha256, weights.blob.size) == ("a" * 64, 123)


@given(st.integers(-(1 << 63), (1 << 63) - 1))
def test_numbers_come_back(number: int) -> None:
    ((found, value),) = fields(memoryview(field(3, number)), "a message")
    assert found == 3
    assert isinstance(value, int)
    assert signed(value) == number
    assert len(varint(number)) <= 10
