"""Which model a newcomer gets: one way for all algorithms that keep several models, beside each one's own.

A newcomer that can try models itself is given those of all clusters, the common one, and what the run knows
of where each cluster's data lie, and chooses by its own samples (`shoal.core.inference.newcomer`): nothing
about its data leaves it, and it needs no labels. Where there is one cluster, it gets that one's model and is
asked for nothing. The algorithm's own way, `place` of its server half, answers newcomers that cannot choose,
runs whose parameter `placing` asks for it, and runs with more models than a newcomer may have. In between is
a vote (`shoal.core.exchange.choosing.vote`), for runs that know where their clusters' data lie: the newcomer
names one cluster, with a privacy guarantee, and gets that one's model.

A device that took part in the run is no newcomer: it gets its cluster's model, to fine-tune it by itself.
"""

from collections import ChainMap, Counter
from dataclasses import replace
from typing import Any, cast

from shoal.core.algorithm import OWN_MODELS, VOTE, ServerHalf, densities
from shoal.core.errors import BadPayload, Refused
from shoal.core.exchange.choosing import Choose, Wish
from shoal.core.exchange.choosing.tuning import EPOCHS, Tune
from shoal.core.exchange.choosing.vote import Vote, vote_on
from shoal.core.exchange.messages import Message
from shoal.core.exchange.parts import Ballot, ClusterAssignment, Evidence
from shoal.core.exchange.tensors import Mixture
from shoal.core.server_kit.aggregation.guard import Guard
from shoal.core.server_kit.clustered import GLOBAL
from shoal.core.server_kit.standard import training
from shoal.core.types import DeviceId, ModelKey, Tensors

NO_GUARD = Guard()
"""Of an algorithm whose state has none."""


def place(
    half: ServerHalf, state: Any, evidence: Evidence | Wish | None, most_models: int
) -> ClusterAssignment | Message:
    """The answer to a newcomer: its cluster, or the message that it must answer first.

    most_models: how many clusters' models a newcomer may have. Raises what `ServerHalf.place` raises.
    """
    if isinstance(evidence, Ballot):
        return elected(half, state, evidence)
    if not isinstance(evidence, Wish | None):
        return half.place(state, evidence)
    answer = half.place(state, None)
    way, count = _way(state), len(clusters(state))
    if isinstance(answer, ClusterAssignment) or way not in (OWN_MODELS, VOTE):
        return answer
    if count < 2:  # there is nothing to choose, so a newcomer that can choose is asked for nothing
        only = ClusterAssignment(next(iter(clusters(state))), reason="the run has one cluster")
        return only if isinstance(evidence, Wish) else answer
    if way == VOTE or isinstance(evidence, Wish):
        if way == OWN_MODELS and isinstance(evidence, Wish) and count <= min(most_models, evidence.models):
            return offer(half, state)
        return ballot_paper(half, state) or answer
    return answer


def own(half: ServerHalf, state: Any, device: DeviceId) -> Tune | None:
    """What a device is asked that took part in the run: to fine-tune its cluster's model on its own data.

    None where the run has put it in no cluster, or where its devices do not predict with a cluster's model
    only but in a way of the algorithm's own; they are placed like newcomers then.
    """
    key = state.assignments.get(device)
    if key is None or key not in state.models or hasattr(half, "measure"):
        return None
    guard: Guard = getattr(state, "guard", NO_GUARD)
    # At the rate of the run's first rounds: the last one, which has fallen, hardly changes a model any more.
    settings = training(state.parameters, rate=guard.rate(key))
    return Tune(state.models[key], replace(settings, epochs=EPOCHS), key)


def _way(state: Any) -> str:
    found: str = getattr(getattr(state, "parameters", None), "placing", "")
    return found


def _epsilon(state: Any) -> float:
    """Of a vote; 0 where the algorithm has none."""
    found: float = getattr(getattr(state, "parameters", None), "vote_epsilon", 0.0)
    return found


def ballot_paper(half: ServerHalf, state: Any) -> Vote | None:
    """The question of a vote on the clusters; None where the run does not know where their data lie, or its
    algorithm has no votes."""
    found = densities(half, state) if _epsilon(state) else None
    if found is None:
        if state.parameters.placing == VOTE:
            raise Refused(
                "the run does not know where its clusters' data lie, so there is nothing to vote by",
                "use placing=own_models, or another privacy mode than paper",
            )
        return None
    return vote_on(tuple(clusters(state)), found, _epsilon(state))


def elected(half: ServerHalf, state: Any, ballot: Ballot) -> ClusterAssignment:
    """The cluster for which a newcomer has voted. How sure that is, only the newcomer could know."""
    way, epsilon = _way(state), _epsilon(state)
    if way not in (OWN_MODELS, VOTE) or not epsilon or densities(half, state) is None:
        raise BadPayload("this run takes no votes of newcomers", "ask it without evidence first")
    if ballot.cluster not in clusters(state) or ballot.epsilon != epsilon:
        raise BadPayload(f"{ballot} is no answer to what this run asks now", "ask again")
    reason = f"by a private vote of the device's samples, of epsilon {ballot.epsilon:g}"
    return ClusterAssignment(
        ballot.cluster, confidence=0.0, reason=f"{reason}, which does not say how sure it is"
    )


def offer(half: ServerHalf, state: Any) -> Choose:
    """The models of all clusters, in the order of their names, and the common one last; and where the
    clusters' data lie, if the algorithm knows."""
    models, devices, found = clusters(state), shares(state), densities(half, state)
    kin = tuple(map(float, found.kin)) if found and found.kin else None
    described = (found.encoder, found.projector, found.clusters, kin) if found else ()
    return Choose(
        (*models.values(), common_model(state)),
        " ".join((*models, GLOBAL)),
        tuple(devices.values()),
        *described,
    )


def clusters(state: Any) -> dict[ModelKey, Tensors]:
    """The models that clusters of devices have: all but the common one, if there are others."""
    others = {key: model for key, model in state.models.items() if key != GLOBAL}
    return others or dict(state.models)


def shares(state: Any) -> dict[ModelKey, float]:
    """How many devices each cluster has; 1 for one that has none, since its model may suit a newcomer."""
    devices = Counter(state.assignments.values())
    return {key: float(max(devices[key], 1)) for key in clusters(state)}


def common_model(state: Any) -> Tensors:
    """The model for devices of which it is not known where they belong: the one that the run keeps for all,
    or else the mean of the clusters' models, weighted by their devices, which is computed when it is used.

    It has the scale of all inputs: where clusters have scales of their own, their mean is that of no data.
    """
    if GLOBAL in state.models:
        found: Tensors = state.models[GLOBAL]
        return found
    models, devices, scale = clusters(state), shares(state), getattr(state, "scale", None) or {}
    return Mixture([(_in_scale(model, scale), devices[key]) for key, model in models.items()])


def _in_scale(model: Tensors, scale: Tensors) -> Tensors:
    """The same model with this scale in place of its own; its tensors are read when they are used."""
    own = {name: array for name, array in scale.items() if name in model}
    return cast(Tensors, ChainMap(own, cast(Any, model))) if own else model
