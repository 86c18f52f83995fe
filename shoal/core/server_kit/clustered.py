"""What algorithms with one model per cluster have in common, so that each of them only defines how it groups
devices.

A run is a table of phases. A phase is one exchange with two functions: one asks the devices that are present
for something, and the other takes their answers into the state. The functions below are such halves of
phases, for any state that derives from `Clustered`.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self, TypeVar

import numpy as np

from shoal.core.algorithm import Plan, Report, ends_by_itself, most_rounds
from shoal.core.algorithm.training import private_training
from shoal.core.data.scale import Summary
from shoal.core.errors import BadPayload
from shoal.core.exchange.messages import Evaluate, Evaluated, Message, Score, Scored, Train, TrainingSettings
from shoal.core.exchange.parts import ClusterAssignment, Evidence, Scores
from shoal.core.exchange.tensors import weighted_mean
from shoal.core.server_kit import scaling, summing
from shoal.core.server_kit.aggregation import encoded
from shoal.core.server_kit.aggregation.averaging import next_models
from shoal.core.server_kit.aggregation.guard import Guard
from shoal.core.server_kit.aggregation.noised import rule_of
from shoal.core.server_kit.clustering.assign import nearest_of
from shoal.core.server_kit.ending import Ending
from shoal.core.server_kit.initial import cluster_names
from shoal.core.server_kit.standard import accuracy_cost, metrics_of, trained, training
from shoal.core.server_kit.summing import Summing
from shoal.core.types import DeviceId, ModelKey, Scalar, Tensors

GLOBAL = "global"
LAST_CHOICE, EVALUATE, DONE = "last_choice", "evaluate", "done"
FORMING = 2 / 3
"""The share of the devices that must take part in a round that forms the clusters."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Clustered:
    """The fields of every phased run's state. parameters: with rounds, evaluate, aggregation and those of
    training.

    phase: a key of the algorithm's phases, or "done". progress: the number of completed rounds of training.
    summing: of a round with secure aggregation, how far it is; see `shoal.core.server_kit.summing`.
    scale: of the inputs, which every model carries; empty where they have none, None before the devices have
    been asked. summaries: what they said, until clusters are formed; else None. See
    `shoal.core.server_kit.scaling`.
    ending: how far a run is from its end that is to end by itself.
    """

    GOES_ON_IN: ClassVar[str] = ""
    """The phase in which a run begins that goes on from a release with clusters; "": no run can."""
    CHOOSES_AT_LAST: ClassVar[bool] = False
    """Whether devices choose by loss once training is over: where a word of theirs decides the groups, liars
    can be many of one, and its honest devices do without its model."""

    parameters: Any
    models: Mapping[ModelKey, Tensors]
    phase: str
    progress: int = 0
    assignments: Mapping[DeviceId, ModelKey] = field(default_factory=dict)
    metrics: Mapping[DeviceId, Evaluated] = field(default_factory=dict)
    guard: Guard = field(default_factory=Guard)
    summing: Summing | None = None
    scale: Tensors | None = None
    summaries: Mapping[DeviceId, Summary] | None = None
    ending: Ending = field(default_factory=Ending)

    @property
    def rounds(self) -> int:
        """How many rounds of training the run has in all, or at most has as long as that is open."""
        most = most_rounds(self.parameters)
        return self.ending.rounds(most) if ends_by_itself(self.parameters) else most

    @property
    def facts(self) -> Mapping[str, Scalar]:
        return {"clusters": len(self.models), **self.guard.facts}

    @property
    def remarks(self) -> Sequence[str]:
        raw = scaling.stayed_raw(self)
        return tuple(filter(None, (*self.guard.remarks, *summing.remarks(self), *self._settled, raw)))

    @property
    def _settled(self) -> Sequence[str]:
        if self.rounds == most_rounds(self.parameters):
            return ()  # it ends no earlier than it would have
        return (
            f"held-out accuracy and loss hardly improve any more: after round {self.ending.settled} the "
            f"learning rate falls, and round {self.rounds} is the last",
        )

    @property
    def enough(self) -> int:
        """See `State`."""
        return (self.summing or Summing()).enough

    @property
    def begun_by(self) -> Collection[DeviceId]:
        """See `State`."""
        return (self.summing or Summing()).begun_by

    @property
    def begun_again(self) -> int:
        """See `State`."""
        return (self.summing or Summing()).begun_again

    def with_model_of(self, earlier: Any, key: ModelKey) -> Self:
        """This state with one model of an earlier one; see `shoal.core.engine.rollback`."""
        guard = self.guard.back(key, earlier.guard) if isinstance(earlier, Clustered) else self.guard
        models = {**self.models, key: earlier.models[key]}
        summing = self.summing and self.summing.over  # a sum would be of the later model
        return replace(self, models=models, guard=guard, summing=summing)

    def again(self, parameters: Any) -> Self:
        """The first state of a run that goes on from this one, as a release has it: what it knows of devices
        and models stays, and what it has counted does not. See `shoal.core.server_kit.going_on`."""
        return replace(
            self,
            parameters=parameters,
            phase=self.GOES_ON_IN,
            progress=0,
            metrics={},
            guard=Guard(),
            summing=None,
            ending=Ending(),
        )

    @property
    def lessons(self) -> int:
        """How many times a device trains in the whole run."""
        return int(getattr(self.parameters, "lessons", most_rounds(self.parameters)))


S = TypeVar("S", bound=Clustered)
Phases = Mapping[str, tuple[Callable[[S, Sequence[DeviceId]], Plan], Callable[[S, Sequence[Report]], S]]]


def phased(
    phases: Phases[S],
    measure: Callable[[S, ModelKey], Message] | None = None,
    forming: Sequence[str] = (),
) -> tuple[Callable[[S, Sequence[DeviceId]], Plan | None], Callable[[S, Sequence[Report]], S]]:
    """`plan` and `reduce` of a server half whose run is this table of phases.

    If the table has no phase "evaluate", the usual one is added; and the last choice before it, see
    `Clustered`. measure: its task for a cluster, as the `measure` of `shoal.core.algorithm.measurement`.
    forming: the phases that form the clusters once, for which most devices have to be there.

    Example:
        PHASES: Phases[State] = {"train": (ask_train, take_train)}
        plan, reduce = phased(PHASES)
    """

    def evaluate(state: S, present: Sequence[DeviceId]) -> Plan:
        return ask_evaluate(state, present, measure)

    table: Phases[S] = {
        LAST_CHOICE: (ask_scores, _take_last_choice),
        EVALUATE: (evaluate, take_evaluate),
        **phases,
    }

    def plain(state: S, present: Sequence[DeviceId]) -> Plan:
        return table[state.phase][0](state, present)

    def planned(state: S, present: Sequence[DeviceId]) -> Plan:
        found = plain(state, present)
        return encoded.plan(found, state.parameters) if encoded.is_asked(state.parameters) else found

    def plan(state: S, present: Sequence[DeviceId]) -> Plan | None:
        if state.phase == DONE:
            return None
        if scaling.is_due(state):
            return replace(scaling.ask(present), quorum=FORMING)
        secure = getattr(state.parameters, "secure_aggregation", False)
        found = summing.plan(state, present, planned) if secure else planned(state, present)
        return replace(found, quorum=FORMING) if state.phase in forming else found

    def reduce(state: S, reports: Sequence[Report]) -> S:
        due = scaling.is_due(state)
        found = scaling.take(state, reports, bool(forming)) if due else reduced(state, reports)
        return scaling.carried(state, found)

    def reduced(state: S, reports: Sequence[Report]) -> S:
        taken = table[state.phase][1]
        if getattr(state.parameters, "secure_aggregation", False):
            return summing.reduce(state, reports, planned, taken)
        heard = _heard(state, reports)
        if encoded.is_asked(state.parameters):
            reports = encoded.Opened(state, reports, plain, state.parameters)
        after = taken(heard, reports)
        # What the models of other clusters did says nothing about those of new ones.
        return after if after.models.keys() == state.models.keys() else replace(after, ending=Ending())

    return plan, reduce


def _heard(state: S, reports: Sequence[Report]) -> S:
    """The state with what a round of training says about its end, where the run is to end by itself."""
    if not ends_by_itself(state.parameters) or not trained(reports):
        return state
    learns = all(history.knows for history in state.guard.histories.values())
    return replace(state, ending=state.ending.heard(reports, state.progress, learns))


def ask_all(state: Clustered, present: Sequence[DeviceId], task: Message, what: str = "") -> Plan:
    """The same task for every device, in a round of training."""
    return Plan(dict.fromkeys(present, task), title(state, what))


# -- a round of training ------------------------------------------------------------------------------------


def ask_train(state: S, present: Sequence[DeviceId], late: Message | None = None) -> Plan:
    """Every device trains its cluster's model. A device without a cluster trains the only model, if there is
    only one. Otherwise it is asked `late`: by default its loss under each model, so that it joins the best.
    """
    train = {key: train_task(state, model, key) for key, model in state.models.items()}
    question = late or Score(tuple(state.models.values()))
    tasks: dict[DeviceId, Message] = {}
    for device in present:
        key = home(state, device)
        tasks[device] = question if key is None else train[key]
    return Plan(tasks, title(state))


def train_task(state: Clustered, model: Tensors, key: ModelKey = "", formed: int = 0) -> Train:
    """The task to train a model with the run's parameters. formed: see `settings`."""
    private = private_training(state.parameters, state.lessons)
    return Train(model, settings(state, key, formed), key, private=private)


def settings(state: Clustered, key: ModelKey = "", formed: int = 0) -> TrainingSettings:
    """The run's settings for training a cluster's model. formed: after how many rounds the clusters were."""
    rate, formed = state.guard.rate(key), max(formed, state.ending.settled)
    return training(state.parameters, state.progress, rate, formed, state.rounds)


def take_train(state: S, reports: Sequence[Report]) -> S:
    """The next model of each cluster. If only late devices answered, the round of training is still to
    come."""
    state = choose(state, reports)
    return advanced(averaged(state, reports)) if trained(reports) else state


def averaged(state: S, reports: Sequence[Report]) -> S:
    """The average of each cluster's own devices' updates; a cluster without updates keeps its model."""
    found, rule = homes(state, trained(reports)), rule_of(state.parameters)
    models, guard = next_models(state.models, reports, rule, state.guard, wholly(found))
    return replace(state, models=models, guard=guard, assignments={**state.assignments, **found})


def wholly(homes: Mapping[DeviceId, ModelKey]) -> dict[DeviceId, dict[ModelKey, float]]:
    """The shares of devices that count in one model each; see `next_models`."""
    return {device: {key: 1.0} for device, key in homes.items()}


def regrouped(state: S, reports: Sequence[Report], groups: Mapping[DeviceId, ModelKey]) -> S:
    """The models after a round in which each update counts in the cluster given by `groups`, whatever model
    its device started from.

    A new cluster begins with the model that its first device started from. A cluster without updates keeps
    its model. The single model of all devices is removed once there are clusters.
    """
    origins = started_from(state, groups)
    kept = {key: model for key, model in state.models.items() if key != GLOBAL}
    new = {groups[device]: origins[device] for device in sorted(groups, reverse=True)}
    names = sorted({*new, *kept}, key=lambda key: (len(key), key))
    guard = state.guard.split(GLOBAL, names) if GLOBAL in state.models else state.guard
    models, guard = next_models(
        {key: kept.get(key, new.get(key, {})) for key in names},
        reports,
        state.parameters.aggregation,
        guard,
        wholly(groups),
        origins,
    )
    return replace(state, models=models, guard=guard, assignments={**state.assignments, **groups})


def started_from(state: S, devices: Iterable[DeviceId]) -> dict[DeviceId, Tensors]:
    """The model that each device's training started from."""
    return {device: state.models[key] for device, key in homes(state, devices).items()}


def home(state: S, device: DeviceId) -> ModelKey | None:
    """The cluster of a device; the only model, if there is one; None for a late device otherwise."""
    return state.assignments.get(device, next(iter(state.models)) if len(state.models) == 1 else None)


def homes(state: S, devices: Iterable[DeviceId]) -> dict[DeviceId, ModelKey]:
    """The clusters of these devices, without those that have none; see `home`."""
    return {device: key for device in devices if (key := home(state, device)) is not None}


def advanced(state: S, phase: str = "") -> S:
    """The state after a round of training: in `phase` ("": the same one), or at the end of the run."""
    progress = state.progress + 1
    over = progress >= state.rounds
    return replace(state, progress=progress, phase=end(state) if over else phase or state.phase)


def end(state: S) -> str:
    """The phase after the last round of training. Under "mean", which bounds no device, devices stay in the
    groups that they have, as published; with DP-SGD, too, as losses have no guarantee."""
    parameters = state.parameters
    may_choose = parameters.aggregation != "mean" and not getattr(parameters, "private", False)
    return (
        LAST_CHOICE
        if state.CHOOSES_AT_LAST and len(state.models) > 1 and may_choose
        else _after_choice(state)
    )


def _after_choice(state: S) -> str:
    return EVALUATE if state.parameters.evaluate else DONE


def title(state: Clustered, what: str = "") -> str:
    what = what or ("one model for all" if len(state.models) == 1 else "one model for each cluster")
    may_end = ends_by_itself(state.parameters) and not state.ending.settled
    return f"training round {state.progress + 1} of {'at most ' * may_end}{state.rounds}: {what}"


# -- clusters that form and merge ----------------------------------------------------------------------------


def formed(state: S, groups: Mapping[DeviceId, int], phase: str) -> S:
    """The state with clusters that are formed before any training. groups: 0, 1, ... by device; each cluster
    begins with the model of all."""
    names = cluster_names(1 + max(groups.values()))
    return replace(
        state,
        models=dict.fromkeys(names, state.models[GLOBAL]),
        guard=state.guard.split(GLOBAL, names),
        assignments={device: names[group] for device, group in groups.items()},
        phase=phase,
    )


def merged(state: S, into: Mapping[ModelKey, ModelKey]) -> S:
    """The state with some clusters merged. into: for each cluster, the name under which it continues.

    A merged model is the mean of its parts, weighted by their numbers of devices (equally, if no part has
    any). A cluster that is not merged keeps its model.
    """
    devices = Counter(state.assignments.values())
    models: dict[ModelKey, Tensors] = {}
    for key in dict.fromkeys(into.values()):
        parts = [name for name in into if into[name] == key]
        counted = [name for name in parts if devices[name]]
        whole = {name: float(max(devices[name], 1)) for name in counted or parts}
        models[key] = (
            state.models[key]
            if len(parts) == 1
            else weighted_mean((state.models[name], n) for name, n in whole.items())
        )
    assignments = {device: into[key] for device, key in state.assignments.items()}
    return replace(state, models=models, guard=state.guard.only(models), assignments=assignments)


# -- choice by loss -----------------------------------------------------------------------------------------


def ask_scores(state: S, present: Sequence[DeviceId]) -> Plan:
    """Every device measures its loss under every model, on its training part."""
    score = Score(tuple(state.models.values()))
    return Plan(dict.fromkeys(present, score), f"loss of each of {len(state.models)} models")


def choose(state: S, reports: Sequence[Report]) -> S:
    """Each device that reported losses belongs to the cluster with its lowest loss; the first one of equal
    losses."""
    names = list(state.models)
    found = {device: names[int(np.argmin(one.losses))] for device, one in scores_of(reports).items()}
    return replace(state, assignments={**state.assignments, **found})


def _take_last_choice(state: S, reports: Sequence[Report]) -> S:
    return replace(choose(state, reports), phase=_after_choice(state))


def scores_of(reports: Sequence[Report]) -> dict[DeviceId, Scores]:
    """The losses, by device."""
    return {report.device: report.message.scores for report in reports if isinstance(report.message, Scored)}


def place_by_loss(state: Clustered, evidence: Evidence | None) -> ClusterAssignment | Message:
    """A newcomer belongs to the cluster with its lowest loss, which it can measure only with labels."""
    names = list(state.models)
    if len(names) == 1:
        return ClusterAssignment(names[0], reason="the run has one model")
    if evidence is None:
        return Score(tuple(state.models.values()))
    if not isinstance(evidence, Scores) or len(evidence.losses) != len(names):
        raise BadPayload(
            f"expected the losses under {len(names)} models", "request the placement task again and answer it"
        )
    return nearest_of(names, evidence.losses.tolist())


# -- the end ------------------------------------------------------------------------------------------------


def ask_evaluate(
    state: S, present: Sequence[DeviceId], measure: Callable[[S, ModelKey], Message] | None = None
) -> Plan:
    """Every device measures its cluster's model on its test part.

    measure: another task for a cluster, as the `measure` of `shoal.core.algorithm.measurement`.
    """
    tasks: dict[ModelKey, Message] = {
        key: measure(state, key)
        if measure
        else Evaluate(model, "test", key, rho=accuracy_cost(state.parameters))
        for key, model in state.models.items()
    }
    return Plan({device: tasks[key] for device, key in homes(state, present).items()}, "final evaluation")


def take_evaluate(state: S, reports: Sequence[Report]) -> S:
    return replace(state, metrics={**state.metrics, **metrics_of(reports)}, phase=DONE)
