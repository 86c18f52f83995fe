"""Models to and from safetensors files, on the operator's side; and the weights that a run starts from."""

import importlib
import json
from collections.abc import Mapping
from pathlib import Path

from fedserver.config import LearnerConfig, RunConfig
from shoal.core.errors import ConfigError
from shoal.core.types import Array, Tensors
from shoal.shell.disk import settle, storing, temporary

ORDER = "shoal_order"
"""The metadata entry that says in which order the tensors stand in the model: safetensors sorts them."""


def initial_weights(config: RunConfig) -> Tensors | None:
    """What a run starts from; None where a device is to be asked. Raises ConfigError.

    A file of another program does not say in which order the model has its tensors; the learner does.
    """
    made = _made(config.learner) if config.learner is not None else None
    if config.initial_weights is None:
        return made
    found = load(config.initial_weights)
    if made is None:
        return found
    if set(made) != set(found):
        raise ConfigError(
            f"{config.initial_weights} does not have the learner's tensors",
            f"they differ in {', '.join(sorted(set(made) ^ set(found))[:5])}",
        )
    return {name: found[name] for name in made}


def _made(config: LearnerConfig) -> Tensors:
    """The weights that a learner makes. PyTorch is not a server's, so the loader is imported by name,
    here."""
    try:
        learners = importlib.import_module("shoal.shell.learners")
    except ImportError as error:
        raise ConfigError(
            f"a learner needs PyTorch, which is not installed here: {error}",
            "leave --learner out: the first device is asked for its weights; or use --initial-weights",
        ) from None
    tensors: Tensors = learners.weights(config.file or config.builtin or "", config.options, config.seed)
    return tensors


def load(path: Path) -> dict[str, Array]:
    """The tensors of a safetensors file, in the model's order where the file says it. Raises ConfigError."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="numpy") as file:
            found = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 -- it is no dict
            order = json.loads((file.metadata() or {}).get(ORDER, "null"))
    except (OSError, SafetensorError, ValueError, TypeError) as error:
        raise ConfigError(f"{path} cannot be read as safetensors: {error}", "give such a file") from None
    return {name: found[name] for name in order} if order and set(order) == set(found) else found


def save(tensors: Tensors, path: Path, facts: Mapping[str, str]) -> None:
    """Write a model as a safetensors file, in one step. facts: what else to say in it."""
    from safetensors.numpy import save_file

    metadata = {**facts, ORDER: json.dumps(list(tensors))}
    with storing(path), temporary(path.absolute().parent) as file:
        save_file(dict(tensors), file.name, metadata)
        settle(file, path.absolute())
