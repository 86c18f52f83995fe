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
`shoal.core.device_kit.samples`. `settings` is a `shoal.core.exchange.messages.TrainingSettings`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import partial
from types import MappingProxyType, ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from shoal.core import models
from shoal.core.device_kit.chance import seeded
from shoal.core.device_kit.failures import authors
from shoal.core.device_kit.samples import Batches, Samples
from shoal.core.errors import LearnerFault
from shoal.core.exchange.messages import TrainingSettings

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
    """One of the networks of `shoal.core.models`. Raises ConfigError for a wrong name or option."""
    learner = Learner(name, partial(models.build, name, **options))
    learner.module(seed=0)  # a wrong option is met here and not in the first task
    return learner


def of_module(name: str, module: ModuleType) -> Learner:
    """The learner that a module of an author's defines. Raises ConfigError or LearnerFault."""
    parts: dict[str, Any] = {part: getattr(module, part, None) for part in PARTS}
    return Learner(name, **parts)
