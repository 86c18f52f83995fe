"""A run that only measures: devices measure models that are there already, and nothing is trained.

In the first round, each device that was in a cluster measures that cluster's model on its test part, or,
without one, on its held-out part. Another device measures its loss under every model, and in a second round
the model of the lowest. Where accuracies leave with a guarantee, losses have none, so such a device is not
asked.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from shoal.core.algorithm import Plan, Report
from shoal.core.errors import Refused
from shoal.core.exchange.messages import Evaluate, Evaluated, Message, Score
from shoal.core.exchange.parts import ClusterAssignment, Evidence
from shoal.core.server_kit.clustered import GLOBAL, scores_of
from shoal.core.server_kit.standard import metrics_of
from shoal.core.types import DeviceId, ModelKey, Scalar, Tensors


@dataclass(frozen=True, eq=False, kw_only=True)
class Measuring:
    """The state of such a run. subject: whose models these are, for people. rho: what each accuracy costs;
    None: they leave without a guarantee. placed: the devices that have found their model in the round before,
    and have not measured it. asked_all: whether the first round is over."""

    models: Mapping[ModelKey, Tensors]
    assignments: Mapping[DeviceId, ModelKey] = field(default_factory=dict)
    metrics: Mapping[DeviceId, Evaluated] = field(default_factory=dict)
    subject: str = ""
    rho: float | None = None
    placed: tuple[DeviceId, ...] = ()
    asked_all: bool = False
    progress: int = 0

    @property
    def facts(self) -> Mapping[str, Scalar]:
        return {}

    @property
    def remarks(self) -> Sequence[str]:
        return ()

    @property
    def enough(self) -> int:
        """The second round is complete with fewer devices than an operator wants in the first."""
        return len(self.placed)

    @property
    def only(self) -> ModelKey | None:
        """The only model, if there is one."""
        return next(iter(self.models)) if len(self.models) == 1 else None


def start(model: Tensors, parameters: object) -> Measuring:
    """Of one model from elsewhere."""
    return Measuring(models={GLOBAL: model})


def plan(state: Measuring, present: Sequence[DeviceId]) -> Plan | None:
    measure = {key: Evaluate(model, "test", key, rho=state.rho) for key, model in state.models.items()}
    score, tasks = Score(tuple(state.models.values())), dict[DeviceId, Message]()
    for device in state.placed if state.asked_all else present:
        key = state.assignments.get(device, state.only)
        if device not in present:
            continue
        if key in measure:
            tasks[device] = measure[key]
        elif state.rho is None:
            tasks[device] = score
    return Plan(tasks, f"measuring {state.subject}") if tasks or not state.asked_all else None


def reduce(state: Measuring, reports: Sequence[Report]) -> Measuring:
    measured, names = metrics_of(reports), list(state.models)
    found = {device: names[int(np.argmin(one.losses))] for device, one in scores_of(reports).items()}
    only = {} if state.only is None else dict.fromkeys(measured, state.only)
    return replace(
        state,
        assignments={**state.assignments, **only, **found},
        metrics={**state.metrics, **measured},
        placed=tuple(found),
        asked_all=True,
    )


def place(state: Measuring, evidence: Evidence | None) -> ClusterAssignment | Message:
    raise Refused("the run only measures models", f"ask for what it measures: {state.subject}")
