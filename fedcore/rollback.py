"""Going back: which state a run goes on with when its models are to be those of an earlier round."""

from dataclasses import replace
from typing import Any, cast

from fedcore.algorithm import State
from fedcore.errors import NotFound, near
from fedcore.types import ModelKey


def rolled_back(state: State, earlier: State, cluster: ModelKey = "") -> State:
    """The state to go on with. earlier: the one that the round gone back to opened with.

    Without a cluster it is `earlier` itself: models, clusters, phase and progress, so the run does again what
    came after. With one, that cluster's model is the earlier one, and everything else stays: who is in the
    cluster, the other models, and how far the run has come.

    Raises NotFound when the cluster is not there now, or was not there then.
    """
    if not cluster:
        return earlier
    for models, when in ((state.models, "now"), (earlier.models, "then")):
        if cluster not in models:
            raise NotFound(f"there is no cluster {cluster!r} {when}", near(cluster, list(models)))
    models = {**state.models, cluster: earlier.models[cluster]}
    return cast(State, replace(cast(Any, state), models=models))
