"""What a run is made of: the algorithm that its specification names, with its parameters."""

import typing
from dataclasses import dataclass
from typing import Any

from fedserver.store.records import RunSpec
from shoal.core.algorithm import State, find
from shoal.core.engine.bootstrap import Bootstrap, Unstarted
from shoal.core.exchange.tensors import check_finite
from shoal.core.types import Tensors


@dataclass(frozen=True)
class Recipe:
    """server_half: the algorithm's server half. state: the type of its states, to store and read them by."""

    server_half: Bootstrap
    state: Any

    def start(self, model: Tensors | None) -> State:
        """The first state; without a model one device is asked for it first."""
        if model is None:
            return Unstarted()
        check_finite(model, "the initial model")
        started: State = self.server_half.start(model, self.server_half.parameters)
        return started


def recipe_of(spec: RunSpec) -> Recipe:
    """Raises ConfigError for an algorithm, preset or parameter that is not known."""
    algorithm, variant = find(spec.algorithm)
    parameters = algorithm.configure(spec.preset, {**variant, **spec.parameters})
    server_half = algorithm.server()
    state = algorithm.state_type()
    bootstrap = Bootstrap(server_half, parameters, algorithm.initial(parameters))
    return Recipe(bootstrap, typing.Union[state, Unstarted])  # noqa: UP007
