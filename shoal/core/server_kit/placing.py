"""Which model a newcomer gets: one way for all algorithms that keep several models, beside each one's own.

A newcomer that can try models itself is given those of all clusters, the common one, and what the run knows
of where each cluster's data lie, and chooses by its own samples (`shoal.core.inference.choosing`): nothing
about its data leaves it, and it needs no labels. The algorithm's own way, `place` of its server half, answers
those that cannot, runs whose parameter `placing` asks for it, and runs with more models than a newcomer may
have.
"""

from collections import Counter
from typing import Any

from shoal.core.algorithm import OWN_MODELS, ServerHalf, densities
from shoal.core.exchange.choosing import Choose, Wish
from shoal.core.exchange.messages import Message
from shoal.core.exchange.parts import ClusterAssignment, Evidence
from shoal.core.exchange.tensors import Mixture
from shoal.core.server_kit.clustered import GLOBAL
from shoal.core.types import ModelKey, Tensors


def place(
    half: ServerHalf, state: Any, evidence: Evidence | Wish | None, most_models: int
) -> ClusterAssignment | Message:
    """The answer to a newcomer: its cluster, or the message that it must answer first.

    most_models: how many clusters' models a newcomer may have. Raises what `ServerHalf.place` raises.
    """
    if not isinstance(evidence, Wish):
        return half.place(state, evidence)
    answer = half.place(state, None)
    if isinstance(answer, ClusterAssignment) or not chosen_on_devices(state):
        return answer
    return offer(half, state) if len(clusters(state)) <= min(most_models, evidence.models) else answer


def chosen_on_devices(state: Any) -> bool:
    """Whether newcomers of this run choose by the clusters' own models, and there is a choice."""
    placing = getattr(getattr(state, "parameters", None), "placing", "")
    return placing == OWN_MODELS and len(clusters(state)) > 1


def offer(half: ServerHalf, state: Any) -> Choose:
    """The models of all clusters, in the order of their names, and the common one last; and where the
    clusters' data lie, if the algorithm knows."""
    models, devices, found = clusters(state), shares(state), densities(half, state)
    described = (found.encoder, found.projector, found.clusters) if found else ()
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
    or else the mean of the clusters' models, weighted by their devices, which is computed when it is used."""
    if GLOBAL in state.models:
        found: Tensors = state.models[GLOBAL]
        return found
    models, devices = clusters(state), shares(state)
    return Mixture([(model, devices[key]) for key, model in models.items()])
