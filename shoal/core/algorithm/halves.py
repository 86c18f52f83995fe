"""The two halves of an algorithm, the functions that each must have, and the values that pass between them
and the engine."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

from shoal.core.exchange.choosing import ClusterDensities
from shoal.core.exchange.messages import Evaluate, Evaluated, Message
from shoal.core.exchange.parts import ClusterAssignment, Evidence
from shoal.core.types import DeviceId, ModelKey, Scalar, Tensors

if TYPE_CHECKING:
    from shoal.core.device_kit.context import DeviceContext

LASTING: Mapping[str, bool] = {"lasting": True}
"""Metadata of a state's field that keeps its value when a run goes back to an earlier state."""
APART: Mapping[str, bool] = {"apart": True}
"""Metadata of a state's field that is large and seldom changes: a checkpoint stores it as a blob of its own,
which is written only when it has changed."""


class State(Protocol):
    """What every algorithm's state has. It is a frozen dataclass, and contains everything that a run resumes
    from.

    models: the models of the run by key. assignments: the model that each device is trained with.
    metrics: what each device measured last, for reports. progress: the number of completed rounds of
    training.
    facts: other values for people, such as the round in which the clusters were formed.
    remarks: what an operator should know about how the models were made. The run's log gets each remark when
    it is new, so a remark that stays is written once.

    A state that a part of the devices of the last rounds can complete, although they are fewer than the
    operator's minimum, has a property `enough`: how many of them suffice; 0 where the minimum holds. If only
    devices of the last round can go on with it, a property `begun_by` names these; otherwise it is empty.
    One that has to begin again, because too few devices took part, has a property `begun_again`: how often in
    a row. The next round then waits as after this many abandoned ones.

    A state that can begin with the groups of an earlier run, which a parameter `of` names, has a method
    `begun_for`, from the cluster of each device to that state.

    A state whose devices have released descriptors may have a property `descriptors`, by device. The run's
    history shows where they lie. If they may do so by the `Basis` of an earlier run, or those of a later run
    by theirs, it has a field `basis`, None by default, and its server half heeds what is there at the start.
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
    """One round: a task for each device that is to take part, and a title for people.

    quorum: the share of the devices that this round needs, from 0 to 1. A round that decides about all
    devices, for example because it forms the clusters, asks for more than the operator's minimum: it opens
    with this share of the devices that took part before, as long as the deadline allows to wait for them,
    and its result counts if this share of its tasks was answered.

    others: where the operator lets a round ask only some of the devices that are here, what the others are
    asked; None: nothing. It is for a round that decides about all devices, and should cost them little.
    """

    tasks: Mapping[DeviceId, Message]
    title: str
    quorum: float = 0.0
    others: Message | None = None


@dataclass(frozen=True, eq=False)
class Report:
    """What a device answered. Tensors in it may be views of a spooled file: never write to them. A tensor as
    it is may become part of the next state, and the file is then kept; a view of such a tensor may not."""

    device: DeviceId
    message: Message


class ServerHalf(Protocol):
    """The server half: pure functions over one frozen value, whose type is called `State`.

    A server half whose devices use more than one model of the run has a fifth function, `measure`; see
    `measurement`.
    """

    def start(self, model: Tensors, parameters: Any, *others: Tensors) -> Any:
        """The first state of a run.

        others: the further initial models, if the card asks for several; there are none if an operator gave
        the initial weights. A half whose card asks for one model need not accept them.
        """
        ...

    def plan(self, state: Any, present: Sequence[DeviceId]) -> Plan | None:
        """The next round for these devices, which are sorted; None when the run is done. It must be cheap."""
        ...

    def reduce(self, state: Any, reports: Sequence[Report]) -> Any:
        """The next state, from at least one report, in the order of device ids. It may be slow, and may read
        the reports twice.

        The reports were admitted (`shoal.core.exchange.admit`): each answers its task, and its numbers are
        finite and of the right shapes.
        """
        ...

    def place(self, state: Any, evidence: Evidence | None) -> ClusterAssignment | Message:
        """The model that suits a device that never took part: the answer, or the message that the device must
        answer first.

        Such a message is a standard one whose answer is evidence: Describe, Score or Represent. The evidence
        was admitted: it answers what this state asked.

        Raises Refused when the run cannot place a device yet, or cannot do it without labels; the error says
        what would work.
        """
        ...


def measurement(server_half: ServerHalf, state: Any, cluster: ModelKey) -> Message:
    """The task by which a device of a cluster measures, on its test part, the model that it uses. Evaluated
    answers it.

    It is to evaluate the cluster's model, unless the server half has a function `measure(state, cluster)`,
    for example because devices have personal models. On a device without a memory, the same task measures
    what a newcomer would use.
    """
    own = getattr(server_half, "measure", None)
    task: Message = own(state, cluster) if own else Evaluate(state.models[cluster], "test", cluster)
    return task


def densities(server_half: ServerHalf, state: Any) -> ClusterDensities | None:
    """Where the data of the run's clusters lie, for newcomers that choose among the clusters' models.

    A server half whose devices describe their data has a sixth function, `densities(state)`. It gives a
    density for each of `shoal.core.server_kit.placing.clusters(state)`, in that order, or None where it has
    none to give.
    """
    own = getattr(server_half, "densities", None)
    found: ClusterDensities | None = own(state) if own else None
    return found


def independent(server_half: ServerHalf, parameters: Any) -> bool:
    """Whether the model of a cluster depends on no device outside of the cluster, from when clusters have
    formed until they form again or another device joins.

    A server half in which that can be has a function `independent(parameters)`. Withdrawal of a device
    relies on it: one that cannot be sure has none.
    """
    own = getattr(server_half, "independent", None)
    return bool(own(parameters)) if own else False


def without(server_half: ServerHalf, state: Any, device: DeviceId) -> Any:
    """The state without what it knows only of one device, such as what that has measured. Models stay.

    The state itself, if there is nothing of that. A server half that keeps more of a device, such as its
    description, has a function `without(state, device)`.
    """
    if device in state.metrics:
        state = replace(state, metrics={each: it for each, it in state.metrics.items() if each != device})
    own = getattr(server_half, "without", None)
    return own(state, device) if own else state


class DeviceHalf(Protocol):
    """The device half: one function."""

    def perform(self, message: Message, context: "DeviceContext") -> Message:
        """Do what a message asks, with the data and the learner of the device context."""
        ...
