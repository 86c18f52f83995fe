"""The weights that a run starts from."""

import importlib
from pathlib import Path

from fedserver.config import LearnerConfig, RunConfig
from shoal.core.errors import ConfigError
from shoal.core.inference.graph.model import Graph, read_graph
from shoal.core.types import Tensors
from shoal.shell.weights import load

OF_PYTORCH = (".pt", ".pth", ".bin")
"""Names of files that PyTorch writes, which are neither read nor written: they can run code."""


def initial_weights(config: RunConfig) -> Tensors | None:
    """The weights that a run starts from; None if a device is to be asked. Raises ConfigError.

    A file of another program does not say in which order the model has its tensors, so the learner decides.
    """
    made = _made(config.learner) if config.learner is not None else None
    if config.initial_weights is None:
        return made
    found = load(config.initial_weights)
    if made is None:
        return found
    if set(made) != set(found):
        raise ConfigError(
            f"{config.initial_weights} does not have the tensors of the learner",
            f"they differ in {', '.join(sorted(set(made) ^ set(found))[:5])}",
        )
    return {name: found[name] for name in made}


def graph_of(config: RunConfig) -> bytes | None:
    """The checked graph for a run, if one is given. Raises ConfigError; BadPayload for one that no device
    would take."""
    return None if config.graph is None else read_graph_file(config.graph).data


def read_graph_file(path: Path) -> Graph:
    """The graph in a file. Raises ConfigError, BadPayload."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}", "make it with `fedclient export`") from None
    return read_graph(data)


def _made(config: LearnerConfig) -> Tensors:
    """The weights that a learner creates. A server never imports PyTorch, so the loader is imported by name
    here, in the operator's shell."""
    try:
        learners = importlib.import_module("shoal.shell.learners")
    except ImportError as error:
        raise ConfigError(
            f"a learner needs PyTorch, which is not installed here: {error}",
            "omit --learner, so that devices are asked for the weights, or give --initial-weights",
        ) from None
    tensors: Tensors = learners.weights(config.file or config.builtin or "", config.options, config.seed)
    return tensors
