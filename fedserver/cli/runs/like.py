"""What `fedserver run start --like RUN` takes from RUN where the command line says nothing else."""

from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedserver.store.records import RunSpec
from shoal.core.errors import ConfigError, ShoalError
from shoal.core.exchange.tensors import digest
from shoal.core.inference.graph.model import reference_of
from shoal.core.types import Tensors

if TYPE_CHECKING:
    from fedserver.rpc.client import OperatorClient


def settings_of(spec: RunSpec) -> Mapping[str, Any]:
    """What a run was asked for, in the form of a settings file, without its name, learner and graph."""
    return {
        "algorithm": spec.algorithm,
        "preset": spec.preset,
        "parameters": spec.parameters,
        "policy": asdict(spec.policy),
        "seed": spec.seed,
        "labels": spec.labels,
        "evaluate": spec.evaluate,
        "base": spec.release,
    }


def with_learner(asked: RunSpec, spec: RunSpec, weights: Tensors | None) -> RunSpec:
    """`asked` with the learner of `spec`. weights: those that it begins with, of this learner or others."""
    same = weights is not None and digest(weights) == spec.initial
    return replace(
        asked,
        learner=spec.learner,
        learner_options=spec.learner_options,
        learner_seed=spec.learner_seed if same else None,
    )


def graph_of(client: "OperatorClient", spec: RunSpec) -> bytes | None:
    """The network for devices without a learner, from the server. One that a device made is made again."""
    if not spec.lends_graph:
        return None
    return client.fetch(reference_of(spec.graph, spec.graph_bytes))["graph"].tobytes()


def weights_of(run: str, spec: RunSpec) -> Tensors | None:
    """The weights that a run began with, made again of its learner; None if a device made them.

    Raises ConfigError if the learner is not available, or makes other weights now.
    """
    from fedserver.cli.models.weights import initial_weights
    from fedserver.config import LearnerConfig, RunConfig

    if not spec.initial:
        return None
    hint = "give the file that it began with, or another one: --initial-weights FILE"
    if spec.learner_seed is None:
        raise ConfigError(f"run {run} began with weights that this machine does not have", hint)
    file = Path(spec.learner)
    builtin = None if file.suffix else spec.learner
    learner = LearnerConfig(builtin, None if builtin else file, spec.learner_options, spec.learner_seed)
    try:
        found = initial_weights(RunConfig(algorithm=spec.algorithm, learner=learner))
    except ShoalError as error:
        raise ConfigError(
            f"the weights that run {run} began with are not available any more: {error}", hint
        ) from None
    assert found is not None
    if digest(found) != spec.initial:
        raise ConfigError(
            f"the learner of run {run} makes other weights now than those that it began with "
            f"({digest(found)[:12]} and {spec.initial[:12]})",
            hint,
        )
    return found
