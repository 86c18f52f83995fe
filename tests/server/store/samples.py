"""A run, its states and its reports, for the tests of the store."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedserver.store.records import (
    ReportRecord,
    RunRecord,
    RunSpec,
    Standing,
)
from fedserver.store.store import Store
from shoal.core.algorithms.fedavg import Parameters
from shoal.core.algorithms.fedavg.server import State
from shoal.core.engine.checkpoint import Structure, encode
from shoal.core.engine.rounds import RoundPolicy
from shoal.core.exchange.payload import Payload, Weights
from shoal.core.server_kit.history.records import Digest, RoundHistory
from shoal.core.types import Tensors

if TYPE_CHECKING:  # which takes what it needs from here
    from tests.server.store.conftest import Engine

SPEC = RunSpec("mnist", "fedavg", "paper", {"rounds": 3, "learning_rate": 0.5}, RoundPolicy(2, 2), 1 << 62)
RECORD = RunRecord("mnist", SPEC, 1.5, Standing.ACTIVE, "", 1, (), "", 0)


def model(value: float) -> Tensors:
    return {"w": np.full((3, 2), value, np.float32)}


def checkpoint(store: Store, value: float, run: str = "mnist") -> Structure:
    state = State(parameters=Parameters(), models={"global": model(value)})
    return encode(State, state, lambda t: store.runs.keep(run, t))


def closed(round: int, **changes: Any) -> RoundHistory:
    found = RoundHistory(round, "training", seconds=0.5, asked=2, reported=2, digest=Digest())
    return replace(found, **changes)


def arrive(store: Store, device: str, tensors: Tensors) -> Weights:
    """An upload that is whole."""
    weights = store.blobs.keep(tensors)
    data = store.blobs.path(weights.blob.sha256).read_bytes()
    store.blobs.remove([weights.blob.sha256])
    upload = store.blobs.receive(device, weights.blob, 0, 1 << 20)
    upload.append(data)
    assert upload.finish() == weights.blob.size
    upload.close()
    return weights


def report(store: Store, device: str, value: float, round: int = 1) -> ReportRecord:
    weights = arrive(store, device, model(value))
    return ReportRecord.of("mnist", round, device, 1, Payload("trained", {"model": weights, "examples": 3}))


def blobs_in(engine: "Engine", state: Path) -> set[str]:
    return {path.name for path in engine.blobs(state)}


def started(store: Store) -> Store:
    store.runs.add(RECORD, checkpoint(store, 1.0))
    store.runs.open_round("mnist", ("a", "b"), "training")
    return store
