"""A toy algorithm for tests of the engine: its model counts, and a device answers with its own number."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from shoal.core.algorithm import Plan, Report
from shoal.core.exchange.messages import Describe, Evaluated, Message, Train, Trained, TrainingSettings
from shoal.core.exchange.parts import ClusterAssignment, Descriptor
from shoal.core.exchange.tensors import weighted_mean
from shoal.core.types import DeviceId, ModelKey, Scalar, Tensors


@dataclass(frozen=True)
class State:
    rounds: int
    models: Mapping[ModelKey, Tensors]
    progress: int = 0
    history: tuple[tuple[DeviceId, ...], ...] = ()
    assignments: Mapping[DeviceId, ModelKey] = field(default_factory=dict)
    metrics: Mapping[DeviceId, Evaluated] = field(default_factory=dict)

    @property
    def facts(self) -> Mapping[str, Scalar]:
        return {}

    @property
    def remarks(self) -> Sequence[str]:
        return ()


def start(model: Tensors, parameters: int) -> State:
    return State(parameters, {"global": model})


def plan(state: State, present: Sequence[DeviceId]) -> Plan | None:
    if state.progress == state.rounds:
        return None
    task = Train(state.models["global"], TrainingSettings())
    return Plan(dict.fromkeys(present, task), f"round {state.progress + 1}")


def reduce(state: State, reports: Sequence[Report]) -> State:
    updates = [
        (r.message.model, float(r.message.examples)) for r in reports if isinstance(r.message, Trained)
    ]
    return replace(
        state,
        models={"global": weighted_mean(updates)},
        progress=state.progress + 1,
        history=(*state.history, tuple(report.device for report in reports)),
    )


def place(state: State, descriptor: Descriptor | None) -> ClusterAssignment | Describe:
    return ClusterAssignment("global")


def model(value: float = 0.0) -> Tensors:
    return {"w": np.full(3, value, np.float32)}


def answer(device: DeviceId, message: Message, seed: int) -> Message:
    """Adds a number of the device's own, and a little of the seed, so that a wrong seed shows."""
    assert isinstance(message, Train)
    step = np.float32(int(device[1:]) + (seed % 1000) / 1000)
    return Trained({"w": message.model["w"] + step}, examples=int(device[1:]) + 1, loss=0.5)
