"""Roll back: the state that a run goes on with when it takes up the models of an earlier round."""

from dataclasses import fields, replace
from typing import Any, cast

from shoal.core.algorithm import State
from shoal.core.errors import NotFound, Refused, near
from shoal.core.types import ModelKey


def rolled_back(state: State, earlier: State, cluster: ModelKey = "") -> State:
    """The state to go on with. earlier: the state that the chosen round opened with.

    Without a cluster the result is `earlier` (models, clusters, phase and progress), so the run repeats what
    came after. Fields marked LASTING keep their present value: they describe what devices already have, and
    devices keep the later models. With a cluster, only that cluster's model is the earlier one, with what the
    state's `with_model_of` puts back with it, if there is one; its members, the other models and the progress
    of the run stay.

    Raises NotFound when the cluster does not exist now or did not exist then, and Refused when a lasting
    value has no field in the earlier state.
    """
    if not cluster:
        return _with_what_lasts(state, earlier)
    for models, when in ((state.models, "now"), (earlier.models, "then")):
        if cluster not in models:
            raise NotFound(f"there is no cluster {cluster!r} {when}", near(cluster, list(models)))
    if hasattr(state, "with_model_of"):  # the state knows what else belongs to a model
        return cast(State, state.with_model_of(earlier, cluster))
    models = {**state.models, cluster: earlier.models[cluster]}
    return cast(State, replace(cast(Any, state), models=models))


def _with_what_lasts(state: Any, earlier: Any) -> State:
    lasting = {each.name: getattr(state, each.name) for each in fields(state) if "lasting" in each.metadata}
    lasting = {name: value for name, value in lasting.items() if value}
    if lost := lasting.keys() - {each.name for each in fields(earlier)}:
        raise Refused(
            f"rolling back that far would lose {', '.join(sorted(lost))}, which devices still depend on",
            "roll back to a later round, or start another run",
        )
    return cast(State, replace(earlier, **lasting) if lasting else earlier)
