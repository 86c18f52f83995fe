"""Values come back from their stored form bit by bit, and a form that does not fit is refused by name."""

import json
import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, ClassVar

import numpy as np
import pytest

from shoal.core.algorithm import APART
from shoal.core.algorithms.fedavg import Parameters
from shoal.core.algorithms.fedavg.server import State as FedAvgState
from shoal.core.engine.bootstrap import Unstarted
from shoal.core.engine.checkpoint import blobs_of, decode, encode
from shoal.core.errors import DataFault
from shoal.core.exchange.messages import Evaluated
from shoal.core.exchange.parts import Descriptor, LatentBounds, Moments, PrivacySettings
from shoal.core.exchange.payload import BlobRef, Payload, Settings, Weights
from shoal.core.exchange.tensors import digest, manifest_of, nbytes
from shoal.core.types import Array, Tensors


class Shelf:
    """Blobs in memory; counts what is kept and loaded."""

    def __init__(self) -> None:
        self.sets: dict[str, Tensors] = {}
        self.kept = self.loaded = 0

    def keep(self, tensors: Tensors) -> Weights:
        self.kept += 1
        name = digest(tensors)
        self.sets[name] = tensors
        return Weights(manifest_of(tensors), BlobRef(name, nbytes(tensors)))

    def load(self, weights: Weights) -> Tensors:
        self.loaded += 1
        return self.sets[weights.blob.sha256]

    def trip(self, hint: Any, value: Any) -> Any:
        return decode(
            hint, json.loads(json.dumps(encode(hint, value, self.keep), allow_nan=False)), self.load
        )


class Phase(Enum):
    WARM = "warm"
    CLUSTERED = "clustered"


@dataclass(frozen=True)
class Inner:
    table: Array
    pair: tuple[int, str] = (1, "x")


@dataclass(frozen=True)
class Everything:
    phase: Phase
    flag: bool
    count: int
    value: float
    text: str
    models: Mapping[str, Tensors]
    descriptors: Mapping[str, Descriptor]
    metrics: Mapping[str, Evaluated]
    inner: tuple[Inner, ...]
    best: Tensors | None = None
    either: Inner | Phase | float | None = None
    nested: Mapping[str, Mapping[str, tuple[float, ...]]] = field(default_factory=dict)


def everything() -> Everything:
    model: Tensors = {"weight": np.arange(6, dtype=np.float32).reshape(2, 3), "steps": np.array(7, np.int64)}
    descriptor = Descriptor(
        Moments(np.array([[0.1, -0.0]]), np.array([[1e-310, 2.0]]), np.array([3.0])),
        "a" * 64,
        PrivacySettings(),
    )
    return Everything(
        Phase.CLUSTERED,
        True,
        1 << 62,
        math.nan,
        'a "quoted" \u03c3',
        {"c1": model, "c0": model},
        {"zeta": descriptor, "alpha": descriptor},
        {"dev": Evaluated(0.1 + 0.2, math.inf, 5, LatentBounds(np.zeros(1), np.ones(1)))},
        (Inner(np.array([], np.uint16)), Inner(np.full((2, 0), 1.0))),
        best=model,
        either=Inner(np.array([[True, False]]), (2, "y")),
        nested={"row": {"col": (-0.0, -math.inf, 5e-324)}},
    )


def test_everything_comes_back_exactly() -> None:
    value = everything()
    back = Shelf().trip(Everything, value)
    assert (back.phase, back.flag, back.count, back.text) == (value.phase, True, 1 << 62, value.text)
    assert list(back.models) == ["c1", "c0"]
    assert list(back.descriptors) == ["zeta", "alpha"]
    got = back.descriptors["zeta"]
    assert got.statistics.means.tobytes() == value.descriptors["zeta"].statistics.means.tobytes()
    assert got.statistics.deviations.dtype == np.float64
    assert back.metrics["dev"].accuracy == 0.1 + 0.2
    assert back.metrics["dev"].loss == math.inf
    assert [item.table.shape for item in back.inner] == [(0,), (2, 0)]
    assert back.inner[0].table.dtype == np.uint16
    assert back.either.table.tolist() == [[True, False]]
    assert struct.pack(">3d", *back.nested["row"]["col"]) == struct.pack(">3d", -0.0, -math.inf, 5e-324)


@dataclass(frozen=True)
class Large:
    model: Tensors
    table: Array


@dataclass(frozen=True)
class Divided:
    round: int
    large: Large | None = field(default=None, metadata=APART)


def test_a_field_that_is_set_apart_is_a_blob_and_written_again_only_when_it_changes() -> None:
    shelf, large = Shelf(), Large({"w": np.arange(3.0)}, np.full(1000, 0.1))
    first, second = (encode(Divided, Divided(number, large), shelf.keep) for number in (1, 2))
    assert len(json.dumps(second)) < 1500
    assert set(shelf.sets) == blobs_of(first) == blobs_of(second)
    assert len(shelf.sets) == 2, "the structure, and the tensors that it refers to"
    back = shelf.trip(Divided, Divided(2, large))
    assert back.round == 2
    np.testing.assert_array_equal(back.large.table, large.table)
    np.testing.assert_array_equal(back.large.model["w"], np.arange(3.0))
    assert shelf.trip(Divided, Divided(3)) == Divided(3)


def test_a_field_that_is_not_set_apart_or_whose_blob_holds_no_structure_is_refused_by_name() -> None:
    shelf = Shelf()
    stored = json.loads(json.dumps(encode(Divided, Divided(1, Large({}, np.ones(2))), shelf.keep)))
    shelf.sets[stored["value"]["large"]["apart"]["blob"]["sha256"]] = {"json": np.zeros(4, np.uint8)}
    with pytest.raises(DataFault, match=r"value\.large: its blob does not hold a structure"):
        decode(Divided, stored, shelf.load)
    stored["value"]["large"] = None
    with pytest.raises(DataFault, match=r"value\.large: it is no blob"):
        decode(Divided, stored, shelf.load)


def test_the_bits_of_a_nan_come_back() -> None:
    (odd,) = struct.unpack(">d", bytes.fromhex("7ff8000000000123"))
    back = Shelf().trip(tuple[float, ...], (odd,))
    assert struct.pack(">d", back[0]).hex() == "7ff8000000000123"


def test_a_model_that_appears_twice_is_one_blob_and_is_loaded_once() -> None:
    shelf = Shelf()
    structure = encode(Everything, everything(), shelf.keep)
    assert len(blobs_of(structure)) == 1
    back = decode(Everything, structure, shelf.load)
    assert shelf.loaded == 1
    assert back.models["c0"] is back.models["c1"] is back.best


@pytest.mark.parametrize(
    "state", [Unstarted(), FedAvgState(parameters=Parameters(rounds=3), models={"global": {}})]
)
def test_the_states_of_a_run_are_told_apart(state: object) -> None:
    back = Shelf().trip(Unstarted | FedAvgState, state)
    assert vars(back) == vars(state)
    assert type(back) is type(state)


def test_a_payload_comes_back_with_the_types_of_its_parts() -> None:
    weights = Shelf().keep({"w": np.ones(2, np.float32)})
    parts: dict[str, Any] = {
        "text": "1",
        "flag": True,
        "whole": 1,
        "number": 1.0,
        "nan": math.inf,
        "weights": weights,
        "several": (weights, weights),
        "numbers": (1.0, math.nan),
        "none": (),
        "settings": Settings({"epochs": 2, "rate": 0.5}),
    }
    back = Shelf().trip(Payload, Payload("odd", parts))
    assert {name: type(part) for name, part in back.parts.items()} == {
        name: type(part) for name, part in parts.items()
    }
    assert back.parts["several"] == (weights, weights)
    assert back.parts["settings"] == parts["settings"]
    assert math.isnan(back.parts["numbers"][1])
    assert back.weights() == (weights, weights, weights)


@pytest.mark.parametrize(
    ("hint", "value", "place"),
    [
        (int, 1.5, "value"),
        (int, True, "value"),
        (int, np.int64(3), "value"),
        (float, "1.0", "value"),
        (Mapping[str, int], {1: 2}, "value"),
        (Mapping[str, tuple[int, ...]], {"a": (1, "b")}, r"value\['a'\]\[1\]"),
        (tuple[int, int], (1, 2, 3), "value"),
        (Array, np.array([object()]), "value"),
        (Inner, Inner(np.zeros(1), (1, 2)), r"value.pair\[1\]"),  # type: ignore[arg-type]
        (int | Inner, Inner(np.zeros(1), (1, 2)), r"value.pair\[1\]"),  # type: ignore[arg-type]
        (Any, 1, "value"),
        (set[int], {1}, "value"),
    ],
)
def test_what_cannot_be_stored_is_named(hint: Any, value: Any, place: str) -> None:
    with pytest.raises(TypeError, match=f"^{place}: .* cannot be stored as"):
        encode(hint, value, Shelf().keep)


ARRAY = {"array": "<f8", "shape": [1], "data": "AAAAAAAAAAA="}


@pytest.mark.parametrize(
    ("hint", "stored", "reason"),
    [
        (int, "1", "value: it does not hold a int"),
        (int, True, "value: it does not hold a int"),
        (float, {"float": "zz"}, "16 hex digits"),
        (float, {"float": "00"}, "16 hex digits"),
        (Inner, {"is": "Other"}, "value: it does not hold a Inner"),
        (Inner, {"is": "Inner"}, "lacks its field 'table'"),
        (Inner, {"is": "Inner", "table": ARRAY, "extra": 1}, "no field 'extra'"),
        (Inner, {"is": "Inner", "table": ARRAY, "pair": [1]}, "value.pair: it does not hold"),
        (Array, ARRAY | {"shape": [2]}, "value: it does not hold an array"),
        (Array, ARRAY | {"array": "<f9"}, "value: it does not hold an array"),
        (Array, ARRAY | {"array": "|O"}, "value: it does not hold an array"),
        (Array, ARRAY | {"data": "!"}, "value: it does not hold an array"),
        (Phase, "COLD", "value: it does not hold a Phase"),
        (Phase, ["WARM"], "value: it does not hold a Phase"),
        (BlobRef, {"is": "BlobRef", "sha256": "../x", "size": 1}, "64 hex digits"),
        (tuple[int, ...], {"0": 1}, "value: it does not hold"),
        (Mapping[str, int], {"a": None}, r"value\['a'\]"),
    ],
)
def test_a_form_that_does_not_fit_is_refused(hint: Any, stored: Any, reason: str) -> None:
    with pytest.raises(DataFault, match=reason):
        decode(hint, {"format": 1, "value": stored}, Shelf().load)


def test_a_field_with_a_default_may_be_absent_so_that_parameters_can_grow() -> None:
    back = decode(Inner, {"format": 1, "value": {"is": "Inner", "table": ARRAY}}, Shelf().load)
    assert back.pair == (1, "x")


@pytest.mark.parametrize("structure", [{}, {"format": 2, "value": 1}])
def test_another_format_is_refused(structure: dict[str, Any]) -> None:
    with pytest.raises(DataFault, match="stored format"):
        decode(int, structure, Shelf().load)


@dataclass(frozen=True)
class Shrunk:
    REMOVED: ClassVar[Mapping[str, float]] = {"noise": 0.0}
    count: int = 1


def test_a_field_that_is_gone_may_only_have_said_nothing() -> None:
    def stored(noise: float) -> dict[str, Any]:
        return {"format": 1, "value": {"is": "Shrunk", "count": 2, "noise": noise}}

    assert decode(Shrunk, stored(0.0), Shelf().load) == Shrunk(2)
    with pytest.raises(DataFault, match="no field 'noise'"):
        decode(Shrunk, stored(1.0), Shelf().load)
