"""The first state of a run that goes on from a release: the release's models, one for each cluster, its
assignments and its scale, with all counters at zero.

    release's state --first_state--> the new run's state --> the algorithm's own rounds

A device that the release knows keeps its cluster until the algorithm asks what its data are like now: FLUX
and FEROMA have it describe them, IFCA, CORNFLQS and FedRC have it compare the models. So nothing is explored
again, and what a device has described before costs nothing.
"""

from dataclasses import replace
from typing import Any

from shoal.core.algorithm import ServerHalf, basis_of, begun_with
from shoal.core.errors import Refused
from shoal.core.server_kit import scaling
from shoal.core.server_kit.aggregation import encoded
from shoal.core.server_kit.clustered import GLOBAL, Clustered


def first_state(server_half: ServerHalf, state: Any, parameters: Any) -> Any:
    """The first state of a run of this algorithm with these parameters, from the state of a release.

    Where the release has only the model of all and the algorithm forms clusters, its run had none yet: then
    the algorithm begins with that model. Raises Refused if the algorithm does not say how it goes on, and
    ConfigError for parameters with which it cannot.
    """
    if not isinstance(state, Clustered) or not state.GOES_ON_IN:
        raise Refused(
            "a run of this algorithm cannot go on from a release",
            "start a run with a model of the release as its initial weights",
        )
    for model in state.models.values():
        encoded.check(model, parameters)
    if state.scale is None and state.progress:
        state = replace(state, scale=scaling.given(state))  # none, where models were trained without
    if state.models.keys() == {GLOBAL}:
        basis = basis_of(state)
        started = server_half.start(state.models[GLOBAL], parameters)
        if started.phase != state.GOES_ON_IN:
            suits = basis is not None and basis.suits(parameters)
            return begun_with(replace(started, scale=state.scale), *([basis] if basis and suits else []))
    return state.again(parameters)
