"""What `model=` may be: a torch module class, a learner, a learner file, or a network of the library."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

from shoal.core.device_kit.learner import Latent, Learner, builtin
from shoal.core.errors import ConfigError
from shoal.shell.learners import from_file
from shoal.simulation.fleet import Fleet


def learner_of(
    model: Any,
    latent: Latent | str | None = None,
    options: Mapping[str, Any] | None = None,
    fleet: Fleet | None = None,
) -> Learner:
    """A learner from what a user brings.

    model: a class or function that builds a torch module, a `Learner`, the path of a learner.py, the name of
    a network in `shoal.core.models` with its `options`, or None for a network that fits the fleet. latent:
    the submodule whose output describes a sample, or a function (model, x) -> (B, v).

    Raises ConfigError and LearnerFault.
    """
    if options and not isinstance(model, str):
        raise ConfigError("options are of a built-in network, and none is named", "name one, such as mlp")
    if isinstance(model, Learner):
        learner = model
    elif isinstance(model, nn.Module):
        name = type(model).__name__
        raise ConfigError(
            f"model is a {name}, already built: every run starts from weights of its own seed",
            f"give the class or a function: model={name}, or model=lambda: {name}(...)",
        )
    elif isinstance(model, Path) or (isinstance(model, str) and model.endswith(".py")):
        learner = from_file(model)
    elif isinstance(model, str) or model is None:
        learner = _builtin(model or "", options or {}, fleet)
    elif callable(model):
        learner = Learner(getattr(model, "__name__", "model"), model)
    else:
        raise ConfigError(
            f"model is a {type(model).__name__}",
            "give a torch module class, a function that builds one, a Learner, or the path of a learner.py",
        )
    return learner if latent is None else replace(learner, latent=latent)


def _builtin(name: str, options: Mapping[str, Any], fleet: Fleet | None) -> Learner:
    """LeNet-5 as in the papers; small networks for small images, for windows of readings and for rows; or
    the one that is named."""
    if fleet is None:
        return builtin(name, options)
    shape, classes = fleet.shape, {"classes": fleet.classes}
    if len(shape) == 1:
        return builtin(name or "mlp", {"inputs": shape[0], "hidden": (32, 16), **classes, **options})
    if len(shape) == 2:
        return builtin(name or "cnn1d", {"channels": shape[0], "length": shape[1], **classes, **options})
    if len(shape) != 3:
        raise ConfigError(f"no network of the library takes samples of shape {shape}", "give a model")
    image = {"channels": shape[0], "size": shape[1]}
    flat = {"inputs": shape[0] * shape[1] * shape[2]}
    if name:
        return builtin(name, {**(flat if name == "mlp" else image), **classes, **options})
    if shape[1] < 28:
        return builtin("mlp", {**flat, "hidden": (64,), **classes})
    return builtin("lenet5", {**image, **classes})
