"""Round 1 asks one device for the initial weights where the server has none; then the algorithm starts.

`Bootstrap` wraps an algorithm's server half and is one itself, so the engine needs no special case for it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from shoal.core.algorithm import Basis, Plan, Report, ServerHalf, begun_with, densities, independent, without
from shoal.core.errors import Refused
from shoal.core.exchange.choosing import ClusterDensities
from shoal.core.exchange.messages import Build, Built, Evaluated, Message
from shoal.core.exchange.parts import ClusterAssignment, Evidence
from shoal.core.types import DeviceId, ModelKey, Scalar, Tensors


@dataclass(frozen=True)
class Unstarted:
    """The state of a run that has no model yet. bases: of earlier runs, each of another network."""

    models: Mapping[ModelKey, Tensors] = field(default_factory=dict)
    assignments: Mapping[DeviceId, ModelKey] = field(default_factory=dict)
    metrics: Mapping[DeviceId, Evaluated] = field(default_factory=dict)
    progress: int = 0
    bases: tuple[Basis, ...] = ()

    @property
    def basis(self) -> Basis | None:
        """The likeliest of them."""
        return self.bases[0] if self.bases else None

    @property
    def facts(self) -> Mapping[str, Scalar]:
        return {}

    @property
    def remarks(self) -> Sequence[str]:
        return ()


@dataclass(frozen=True)
class Bootstrap:
    """The server half `inner` with its parameters, for runs that begin as `Unstarted`.

    models: the number of initial models that it starts from, which `Algorithm.initial` gives.
    """

    inner: ServerHalf
    parameters: Any
    models: int = 1

    def start(self, model: Tensors, parameters: Any, *others: Tensors) -> Any:
        return self.inner.start(model, parameters, *others)

    def plan(self, state: Any, present: Sequence[DeviceId]) -> Plan | None:
        if isinstance(state, Unstarted):
            task = Build(self.models) if self.models > 1 else Build()
            return Plan({present[0]: task}, "initial weights from the first device")
        return self.inner.plan(state, present)

    def reduce(self, state: Any, reports: Sequence[Report]) -> Any:
        if not isinstance(state, Unstarted):
            return self.inner.reduce(state, reports)
        message = reports[0].message
        assert isinstance(message, Built)
        # Copies, since the arrays of a report are views of a spooled file that is deleted after the round.
        first, *others = (
            {name: array.copy() for name, array in model.items()}
            for model in (message.model, *(message.others or ()))
        )
        return begun_with(self.inner.start(first, self.parameters, *others), *state.bases)

    def densities(self, state: Any) -> ClusterDensities | None:
        return None if isinstance(state, Unstarted) else densities(self.inner, state)

    def without(self, state: Any, device: DeviceId) -> Any:
        return without(self.inner, state, device)

    @property
    def independent(self) -> bool:
        return independent(self.inner, self.parameters)

    def place(self, state: Any, evidence: Evidence | None) -> ClusterAssignment | Message:
        if isinstance(state, Unstarted):
            raise Refused("the run has no model yet", "try again after its first round")
        return self.inner.place(state, evidence)
