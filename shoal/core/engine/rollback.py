"""Going back: which state a run goes on with when its models are to be those of an earlier round."""

from dataclasses import fields, replace
from typing import Any, cast

from shoal.core.algorithm import State
from shoal.core.errors import NotFound, Refused, near
from shoal.core.types import ModelKey


def rolled_back(state: State, earlier: State, cluster: ModelKey = "") -> State:
    """The state to go on with. earlier: the one that the round gone back to opened with.

    Without a cluster it is `earlier`: models, clusters, phase and progress, so the run does again what came
    after. What is marked as LASTING stays, for devices have the later models. With a cluster, that cluster's
    model is the earlier one, and everything else stays: who is in the cluster, the other models, and how far
    the run has come.

    Raises NotFound when the cluster is not there now, or was not there then, Refused when something that
    lasts has no place in the earlier state.
    """
    if not cluster:
        return _with_what_lasts(state, earlier)
    for models, when in ((state.models, "now"), (earlier.models, "then")):
        if cluster not in models:
            raise NotFound(f"there is no cluster {cluster!r} {when}", near(cluster, list(models)))
    models = {**state.models, cluster: earlier.models[cluster]}
    return cast(State, replace(cast(Any, state), models=models))


def _with_what_lasts(state: Any, earlier: Any) -> State:
    lasting = {each.name: getattr(state, each.name) for each in fields(state) if "lasting" in each.metadata}
    lasting = {name: value for name, value in lasting.items() if value}
    if lost := lasting.keys() - {each.name for each in fields(earlier)}:
        raise Refused(
            f"going back so far would forget {', '.join(sorted(lost))}: what later models told of devices",
            "go back to a later round, or start another run",
        )
    return cast(State, replace(earlier, **lasting) if lasting else earlier)
