"""What an author provides: a network and, if they want, how to read, train and measure it.

A learner is a Python module, such as `learner.py`, with these names, of which only `build` is required:

    build() -> nn.Module                        the network, with its initial weights
    latent = "encoder"                          the submodule whose OUTPUT, made (B, v), is the latent;
    latent(model, x) -> Tensor (B, v)           or a function; or neither, and the network has `.latent(x)`
    loss(model, x, y) -> Tensor ()              instead of cross-entropy of model(x) (B, C) and classes y (B,)
    train(model, batches, settings) -> float    instead of SGD; returns the mean loss of the last epoch
    evaluate(model, samples) -> (float, float)  instead of accuracy (0 to 1) and mean loss
    encoder(x) -> Tensor (B, d)                 frozen, never trained here: what a sample shows, whatever
    model
                                                is trained; for example a torch.nn.Module (FMCL)

Example of a whole learner, for samples of 4 values and 3 classes:

    from torch import nn

    def build():
        return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))

    latent = "0"                                # the output of the first layer, (B, 8)

Each pass over `batches` is one epoch of (x, y), in a new order; `samples` has tensors `x` and `y`: see
`shoal.core.device_kit.samples`. `settings` is a `shoal.core.exchange.messages.TrainingSettings`.
"""

import importlib
import math
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from types import MappingProxyType, ModuleType, TracebackType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from shoal.core import models
from shoal.core.device_kit.samples import Batches, Samples, seeded
from shoal.core.errors import LearnerFault, ShoalError
from shoal.core.exchange.messages import TrainingSettings
from shoal.core.exchange.tensors import DTYPES, Manifest, TensorSpec, check_manifest, manifest_of
from shoal.core.types import Array, Tensors

MAX_DETAILS = 4000
"""Characters of a traceback that are kept: its end, which names the cause."""

_OURS = (str(Path(__file__).parents[2]), str(Path(importlib.__file__).parent), "<frozen importlib")
_TORCH = str(Path(torch.__file__).parent)


class WrongShape(LearnerFault):
    """The network refused samples of this shape.

    values: of a flat sample, and what the network takes; None where samples are not flat.
    """

    def __init__(self, message: str, hint: str, values: tuple[int, int] | None = None) -> None:
        super().__init__(message, hint)
        self.values = values


@contextmanager
def authors(what: str, model: nn.Module | None = None, x: Tensor | None = None) -> Iterator[None]:
    """Around a call of the author's code `what`, such as "train()": whatever it raises becomes a
    LearnerFault.

    model, x: the network and the batch of the call, so that a wrong shape of the data can be named.

    A ShoalError passes unchanged. SystemExit does not: `sys.exit()` in a learner must not end the device.
    """
    try:
        yield
    except ShoalError:
        raise
    except (Exception, SystemExit) as error:
        if model is not None and x is not None and (wrong := _wrong_shape(model, x, str(error))) is not None:
            raise wrong from error
        raise LearnerFault(
            f"the learner's {what} failed: {type(error).__name__}: {error}"[:MAX_DETAILS],
            "fix the line that the traceback points to",
            details=_details(error),
        ) from error


def _wrong_shape(model: nn.Module, x: Tensor, error: str) -> WrongShape | None:
    """What is wrong with the shape of a batch that made the network fail; None where that is not known.

    Only the first layer is looked at, and only after a failure: a network may well reshape what it gets.
    """
    first = next((layer for layer in model.modules() if isinstance(layer, nn.Linear | nn.Conv2d)), None)
    problem, sizes = f"the network refused a batch of shape {tuple(x.shape)}", list(x.shape[1:])
    if isinstance(first, nn.Conv2d) and len(sizes) == 2 and "channels" in error:
        if first.in_channels == 1:
            return WrongShape(problem, f"Images need a channel: set data.shape: {[1, *sizes]}")
        return WrongShape(problem, f"Images need {first.in_channels} channels: {[first.in_channels, *sizes]}")
    if not isinstance(first, nn.Linear):
        return None
    wanted, values = first.in_features, math.prod(sizes)
    if len(sizes) == 1 and wanted != values:
        return WrongShape(problem, f"its first layer takes {wanted} values", (values, wanted))
    flattened = any(isinstance(layer, nn.Flatten) for layer in model.modules())
    if flattened and wanted != values and "shapes cannot be multiplied" in error:
        hint = f"its first layer takes {wanted} values, and a sample has {values}: set data.shape or inputs"
        return WrongShape(problem, hint)
    return None


def _details(error: BaseException) -> str:
    """The traceback from the author's first frame on, without those of Shoal and torch above it."""
    frames = error.__traceback__
    # A network made only of torch's own layers may have no frame of the author's at all.
    start = _first_frame(frames, (*_OURS, _TORCH)) or _first_frame(frames, _OURS)
    return "".join(traceback.format_exception(type(error), error, start))[-MAX_DETAILS:]


def _first_frame(frames: TracebackType | None, skipped: tuple[str, ...]) -> TracebackType | None:
    while frames is not None and frames.tb_frame.f_code.co_filename.startswith(skipped):
        frames = frames.tb_next
    return frames


Latent = Callable[[nn.Module, Tensor], Tensor]
Loss = Callable[[nn.Module, Tensor, Tensor], Tensor]
NO_OPTIONS: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True)
class Learner:
    """The author's functions. name: for people. Raises LearnerFault if one is not a function.

    Example:
        Learner("mine", build=lambda: nn.Linear(4, 3), latent=lambda model, x: x)
    """

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
        """A new network, the same for the same seed: what `torch.manual_seed(seed); build()` would return.

        Torch's global generator is left unchanged. Raises LearnerFault.
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
    learner.module(seed=0)  # a wrong option shows here and not in the first task
    return learner


def of_module(name: str, module: ModuleType) -> Learner:
    """The learner that an author's module defines. Raises ConfigError or LearnerFault."""
    parts: dict[str, Any] = {part: getattr(module, part, None) for part in PARTS}
    return Learner(name, **parts)


def initial_weights(learner: Learner, seed: int) -> dict[str, Array]:
    """The weights of a new network: the same for the same seed. Torch's global generator stays unchanged."""
    return tensors_of(learner.module(seed))


def tensors_of(model: nn.Module) -> dict[str, Array]:
    """A copy of the network's whole state_dict, buffers included: the network may train on."""
    manifest_of_network(model)
    return {name: tensor.cpu().numpy().copy() for name, tensor in model.state_dict().items()}


def load_weights(model: nn.Module, tensors: Tensors) -> None:
    """Copy `tensors`, which may be read-only views, into the network, on any device.

    Raises BadPayload, naming the first difference, if they are not this network's; then nothing was loaded.
    """
    check_manifest(manifest_of(tensors), manifest_of_network(model))
    for name, tensor in model.state_dict().items():
        # Through numpy: torch warns about read-only arrays, such as views of a file.
        host = tensor if tensor.device.type == "cpu" else torch.empty(tensor.shape, dtype=tensor.dtype)
        np.copyto(host.numpy(), tensors[name])
        if host is not tensor:
            tensor.copy_(host)


def manifest_of_network(model: nn.Module) -> Manifest:
    state: dict[str, object] = model.state_dict()
    specs = []
    for name, tensor in state.items():
        if not isinstance(tensor, Tensor):
            raise LearnerFault(
                f"the network's state {name!r} is not a tensor", "keep extra state out of state_dict"
            )
        dtype = str(tensor.dtype).removeprefix("torch.")
        if dtype not in DTYPES:
            raise LearnerFault(f"tensor {name!r} of the network is {dtype}", "use float32: model.float()")
        specs.append(TensorSpec(name, dtype, tuple(tensor.shape)))
    return tuple(specs)
