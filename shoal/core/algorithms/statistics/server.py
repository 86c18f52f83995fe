"""The server half of statistics. Read `PHASES` first."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from shoal.core.algorithm import Plan, Report
from shoal.core.algorithm.training import private_training
from shoal.core.algorithms.statistics import Parameters
from shoal.core.data import histogram
from shoal.core.errors import Refused
from shoal.core.exchange.messages import CountLatents, Evaluate, LatentsCounted, Message, Train
from shoal.core.exchange.parts import ClusterAssignment, Evidence
from shoal.core.server_kit import clustered
from shoal.core.server_kit.clustered import DONE, GLOBAL, Clustered
from shoal.core.server_kit.standard import trained, training
from shoal.core.texts import listed
from shoal.core.types import DeviceId, ModelKey, Scalar, Tensors


@dataclass(frozen=True, eq=False, kw_only=True)
class State(Clustered):
    """phase: features, count or done. models: a histogram for each group; its bins are those of the next
    question as long as the run goes on. counted: of each group, the latest one that is filled; at the end
    only of those whose devices were all away in the last exchange."""

    parameters: Parameters
    phase: str = "features"
    counted: Mapping[ModelKey, Tensors] = field(default_factory=dict)

    def begun_for(self, groups: Mapping[DeviceId, ModelKey]) -> "State":
        """This first state, for the groups of an earlier run."""
        names = sorted({*groups.values()}, key=lambda key: (len(key), key))
        return replace(self, models=dict.fromkeys(names, self.models[GLOBAL]), assignments=dict(groups))

    @property
    def remarks(self) -> Sequence[str]:
        early = listed(sorted(self.counted)) if self.phase == DONE else ""
        what = (
            f"{early}: no device answered in the last exchange, so the counts are of an earlier, rougher one"
        )
        return (*([what] if early else []), *super().remarks)

    @property
    def facts(self) -> Mapping[str, Scalar]:
        return {}


def start(model: Tensors, parameters: Parameters) -> State:
    """model: is not looked at."""
    return State(parameters=parameters, models={GLOBAL: histogram.unknown(0)})


def place(state: State, evidence: Evidence | None) -> ClusterAssignment | Message:
    raise Refused("statistics have no model to give", "ask another run, by its name")


def measure(state: State, cluster: ModelKey) -> Message:
    """What a device's data have in common with those of its group."""
    return Evaluate(state.models[cluster], "test", cluster)


def _ask_features(state: State, present: Sequence[DeviceId]) -> Plan:
    task = CountLatents(histogram.unknown(0))
    return Plan(dict.fromkeys(present, task), "how many features samples have")


def _take_features(state: State, reports: Sequence[Report]) -> State:
    found = Counter(each.message.number for each in reports if isinstance(each.message, LatentsCounted))
    features, _ = found.most_common(1)[0]
    if features > histogram.FEATURES:
        raise Refused(
            f"samples have {features} features, and at most {histogram.FEATURES} are counted",
            "give images their shape (data.shape), so that a channel is a feature",
        )
    return replace(state, models=dict.fromkeys(state.models, histogram.unknown(features)), phase="count")


def _ask_count(state: State, present: Sequence[DeviceId]) -> Plan:
    settings, private = training(state.parameters), private_training(state.parameters)
    tasks = {key: Train(model, settings, key, private=private) for key, model in state.models.items()}
    homes = clustered.homes(state, present)
    return Plan(
        {device: tasks[key] for device, key in homes.items()},
        f"counting {state.progress + 1} of {state.rounds}",
    )


def _take_count(state: State, reports: Sequence[Report]) -> State:
    answers = trained(reports)
    homes = clustered.homes(state, answers)
    last, now = state.progress + 1 >= state.rounds, dict[ModelKey, Tensors]()
    for key in {*homes.values()}:
        found = [answers[each].model for each in homes if homes[each] == key]
        now[key] = histogram.pooled(state.models[key], found)
    early = {key: found for key, found in state.counted.items() if key not in now}
    asked = {key: histogram.refined(found) for key, found in now.items()}
    return replace(
        state,
        models={**state.models, **({**early, **now} if last else asked)},
        counted=early if last else {**early, **now},
        progress=state.progress + 1,
        assignments={**state.assignments, **homes},
        phase=DONE if last else state.phase,
    )


PHASES: clustered.Phases[State] = {
    "features": (_ask_features, _take_features),
    "count": (_ask_count, _take_count),
}
plan, reduce = clustered.phased(PHASES, forming=("features",))
