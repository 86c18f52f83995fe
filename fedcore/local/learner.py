"""What an author brings: a network, and where they want, how to read, train and measure it.

A learner is a Python module, `learner.py` say, with these names, of which only `build` must be there:

    build() -> nn.Module                        the network, with its initial weights
    latent = "encoder"                          the submodule whose OUTPUT, made (B, v), is the latent;
    latent(model, x) -> Tensor (B, v)           or a function; or neither, and the network has `.latent(x)`
    loss(model, x, y) -> Tensor ()              instead of cross-entropy of model(x) (B, C) and classes y (B,)
    train(model, batches, settings) -> float    instead of SGD; returns the mean loss of the last epoch
    evaluate(model, samples) -> (float, float)  instead of accuracy (0 to 1) and mean loss
    encoder(x) -> Tensor (B, d)                 frozen, and never trained here: what a sample shows, whatever
                                                model is trained; a torch.nn.Module, say (FMCL)

Each pass over `batches` is one epoch of (x, y), in a new order; `samples` has tensors `x` and `y`: see
`fedcore.local.samples`. `settings` is a `fedcore.messages.TrainingSettings`.
"""

import importlib
import importlib.util
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from fedcore import models
from fedcore.errors import ConfigError, LearnerFault
from fedcore.local.chance import seeded
from fedcore.local.faults import authors
from fedcore.local.samples import Batches, Samples
from fedcore.messages import TrainingSettings

Latent = Callable[[nn.Module, Tensor], Tensor]
Loss = Callable[[nn.Module, Tensor, Tensor], Tensor]
NO_OPTIONS: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True)
class Learner:
    """The author's functions; `name` is for people. Raises LearnerFault for what is not a function."""

    name: str
    build: Callable[[], nn.Module]
    latent: Latent | str | None = None
    loss: Loss | None = None
    train: Callable[[nn.Module, Batches, TrainingSettings], float] | None = None
    evaluate: Callable[[nn.Module, Samples], tuple[float, float]] | None = None
    encoder: Callable[[Tensor], Tensor] | None = None

    def __post_init__(self) -> None:
        if self.build is None:
            raise LearnerFault(f"{self.name} has no build()", "def build(): return a torch.nn.Module")
        for part in PARTS:
            value = getattr(self, part)
            if (
                value is not None
                and not callable(value)
                and not (part == "latent" and isinstance(value, str))
            ):
                raise LearnerFault(f"{self.name}: {part} is a {type(value).__name__}", "make it a function")

    def module(self, seed: int) -> nn.Module:
        """A new network, the same for the same seed: what `torch.manual_seed(seed); build()` would give.

        Torch's global generator is left as it was. Raises LearnerFault.
        """
        with seeded(seed, torch.device("cpu")), authors("build()"):
            built = self.build()
        if not isinstance(built, nn.Module):
            raise LearnerFault(
                f"{self.name}: build() returned a {type(built).__name__}, not a torch.nn.Module",
                "end it with `return model`",
            )
        return built


PARTS = tuple(item.name for item in fields(Learner) if item.name != "name")


def builtin(name: str, options: Mapping[str, Any] = NO_OPTIONS) -> Learner:
    """One of the networks of `fedcore.models`. Raises ConfigError for a wrong name or option."""
    learner = Learner(name, partial(models.build, name, **options))
    learner.module(seed=0)  # a wrong option is met here and not in the first task
    return learner


def from_module(name: str) -> Learner:
    """The learner in an installed module. Raises ConfigError if it is not there, LearnerFault if it fails."""
    with authors(f"module {name}"):
        try:
            module = importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{name}.".startswith(f"{error.name}."):
                raise  # it is there, and something that it imports is not
            raise ConfigError(f"there is no module {name!r}", "install the learner on this device") from error
    return _from(name, module)


def from_file(path: Path | str) -> Learner:
    """The learner in a file. It may import its neighbours, at its top.

    Raises ConfigError if there is no such file, LearnerFault if it fails.
    """
    path = Path(path).resolve()
    if not path.is_file():
        raise ConfigError(f"there is no learner file {path}", "give the path of a learner.py")
    name = "shoal_learner" + re.sub(r"\W", "_", str(path))  # two devices of one process may differ
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ConfigError(f"{path} is not a Python file", "give the path of a learner.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # as an import would: dataclasses in the file look it up
    sys.path.insert(0, str(path.parent))
    try:
        with authors(f"file {path.name}"):
            spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(path.parent))
    return _from(path.name, module)


def _from(name: str, module: ModuleType) -> Learner:
    parts: dict[str, Any] = {part: getattr(module, part, None) for part in PARTS}
    return Learner(name, **parts)
