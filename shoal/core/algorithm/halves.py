"""The two halves of an algorithm, what each must have, and what passes between them and the engine."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from shoal.core.exchange.messages import Evaluate, Evaluated, Message
from shoal.core.exchange.parts import ClusterAssignment, Evidence
from shoal.core.types import DeviceId, ModelKey, Scalar, Tensors

if TYPE_CHECKING:
    from shoal.core.device_kit.context import DeviceContext

LASTING: Mapping[str, bool] = {"lasting": True}
"""Metadata of a field of a state that stays as it is when a run goes back to an earlier one."""


class State(Protocol):
    """What every algorithm's state shows. A frozen dataclass, and all there is to resume from.

    models: the models of the run by key. assignments: which of them each device is trained with.
    metrics: what each device measured last, for reports. progress: rounds of training done.
    facts: what else people may want to know, such as the round that formed the clusters.
    remarks: what an operator should be told of how the models came to be; the run's log gets each when it is
        new, so one that holds on is written once.
    """

    @property
    def models(self) -> Mapping[ModelKey, Tensors]: ...
    @property
    def assignments(self) -> Mapping[DeviceId, ModelKey]: ...
    @property
    def metrics(self) -> Mapping[DeviceId, Evaluated]: ...
    @property
    def progress(self) -> int: ...
    @property
    def facts(self) -> Mapping[str, Scalar]: ...
    @property
    def remarks(self) -> Sequence[str]: ...


@dataclass(frozen=True)
class Plan:
    """One round: a task for each device that is to take part, and a title for people."""

    tasks: Mapping[DeviceId, Message]
    title: str


@dataclass(frozen=True, eq=False)
class Report:
    """What a device answered. Tensors in it may be views of a spooled file: never write to them. As they are
    they may become part of the next state, and the file then stays; a view of them may not."""

    device: DeviceId
    message: Message


class ServerHalf(Protocol):
    """The server half, a module: pure functions over one frozen value, whose type it names `State`.

    One whose devices use more than a model of the run has a fifth function, `measure`: see `measurement`.
    """

    def start(self, model: Tensors, parameters: Any, *others: Tensors) -> Any:
        """The first state of a run. others: the further initial models, where the card asks for several; none
        where an operator gave the weights to start from. Who asks for one need not take them."""
        ...

    def plan(self, state: Any, present: Sequence[DeviceId]) -> Plan | None:
        """The next round for these devices (sorted), or None when the run is done. Cheap."""
        ...

    def reduce(self, state: Any, reports: Sequence[Report]) -> Any:
        """The next state, from at least one report, in device-id order. May be slow; may read twice.

        The reports were admitted (`shoal.core.exchange.admit`): each answers its task, is finite and of the
        right shape.
        """
        ...

    def place(self, state: Any, evidence: Evidence | None) -> ClusterAssignment | Message:
        """Which model fits a device that was never seen: the answer, or what it must compute first.

        That is a standard message whose answer is evidence: Describe, Score or Represent. The evidence was
        admitted: it answers what was asked of this state.

        Raises Refused when the run cannot place yet, or cannot without labels; says what would work.
        """
        ...


def measurement(server_half: ServerHalf, state: Any, cluster: ModelKey) -> Message:
    """The task by which a device of a cluster measures, on its test part, what it uses; Evaluated answers.

    That is the cluster's model, unless the server half says otherwise by `measure(state, cluster)`: where
    devices have personal models, say. Without a memory the same task measures what a newcomer would use.
    """
    own = getattr(server_half, "measure", None)
    task: Message = own(state, cluster) if own else Evaluate(state.models[cluster], "test", cluster)
    return task


class DeviceHalf(Protocol):
    """The device half, a module."""

    def perform(self, message: Message, context: "DeviceContext") -> Message:
        """Do what a message asks, with what the bench holds."""
        ...
