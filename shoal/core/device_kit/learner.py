"""What an author provides: a network and, if they want, how to read, train and measure it.

A learner is a Python module, such as `learner.py`, with these names, of which only `build` is required:

    build() -> nn.Module                        the network, with its initial weights
    latent = "encoder"                          the submodule whose OUTPUT, made (B, v), is the latent;
    latent(model, x) -> Tensor (B, v)           or a function; else the network's `.latent(x)`, if it has one,
                                                or what goes into the last linear layer
    loss(model, x, y) -> Tensor ()              instead of cross-entropy of model(x) (B, C) and classes y (B,)
    train(model, batches, settings) -> float    instead of SGD; returns the mean loss of the last epoch
    evaluate(model, samples) -> (float, float)  instead of accuracy (0 to 1) and mean loss
    encoder(x) -> Tensor (B, d)                 frozen, never trained here: what a sample shows, whatever
                                                model is trained; for example a torch.nn.Module (FMCL)

Example of a whole learner, for samples of 4 values and 3 classes:

    from torch import nn

    def build():
        return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))

    latent = "0"                                # the output of the first layer, (B, 8)

Each pass over `batches` is one epoch of (x, y), in a new order; `samples` has tensors `x` and `y`: see
`shoal.core.device_kit.samples`. `settings` is a `shoal.core.exchange.messages.TrainingSettings`.
"""

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from functools import partial
from types import MappingProxyType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter

from shoal.core import models
from shoal.core.data.layouts import AS_THEY_ARE
from shoal.core.data.scale import RESERVED, scale_of, without_scale
from shoal.core.device_kit import shapes
from shoal.core.device_kit.samples import Batches, Samples, seeded
from shoal.core.errors import LearnerFault, OtherShape, ShoalError, WrongShape
from shoal.core.exchange.messages import TrainingSettings
from shoal.core.exchange.tensors import DTYPES, Manifest, TensorSpec, check_manifest, manifest_of
from shoal.core.tracebacks import line_of_author, traceback_of_author
from shoal.core.types import Array, Tensors

MAX_DETAILS = 4000
"""Characters of a traceback that are kept: its end, which names the cause."""


class OutOfMemory(LearnerFault):
    """The GPU has too little memory left, which is not the author's fault.

    To do: free memory on the GPU, or set a smaller batch_size.
    """

    code = "out-of-memory"


def gpu_is_full(what: str) -> OutOfMemory:
    """The error. what: needs the memory, such as "a task"."""
    return OutOfMemory(
        f"the GPU has too little memory for {what}", "free memory on it, or set a smaller batch_size"
    )


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
    except torch.cuda.OutOfMemoryError as error:
        raise gpu_is_full(f"the learner's {what}") from error
    except (Exception, SystemExit) as error:
        if model is not None and x is not None and (wrong := _wrong_shape(model, x)) is not None:
            raise wrong from error
        raise LearnerFault(
            f"the learner's {what} failed: {type(error).__name__}: {error}"[:MAX_DETAILS],
            _cure(what, error),
            details=details_of(error),
        ) from error


def _cure(what: str, error: BaseException) -> str:
    if isinstance(error, ModuleNotFoundError) and error.name:
        return f"install {error.name.partition('.')[0]} where the learner runs, or do not import it"
    where = line_of_author(error)
    if what == "build()" and not where and "required positional argument" in str(error):
        return "it is called without arguments: give one that needs none, such as lambda: Net(hidden=32)"
    return f"fix {where}" if where else "look at how the layers of build() fit together"


def _wrong_shape(model: nn.Module, x: Tensor) -> WrongShape | None:
    """What is wrong with the shape of a batch that made the network fail; None where another thing is.

    Only after a failure: a network may well reshape what it gets.
    """
    found = shapes.diagnose(model, model, x[:1].cpu().numpy())
    if found.layout is AS_THEY_ARE or not found.is_about_shape:
        return None
    problem, sizes = f"the network refused a batch of shape {tuple(x.shape)}", x.shape[1:]
    if found.layout is not None:
        return WrongShape(problem, shapes.setting(found.layout, sizes))
    if found.values is not None:
        hint = found.takes if len(sizes) == 1 else f"{found.takes}: set data.shape, or inputs"
        return WrongShape(problem, hint, found.values if len(sizes) == 1 else None)
    said, hint = shapes.refused(found)
    return WrongShape(problem + said, hint, details=details_of(found.telling.error))


def details_of(error: BaseException) -> str:
    """The traceback through the author's own lines."""
    return traceback_of_author(error)[-MAX_DETAILS:]


def shape_of(value: object) -> str:
    """What an author's function returned, for an error."""
    return f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else f"a {type(value).__name__}"


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
        with _BUILDING, seeded(seed, torch.device("cpu")), authors("build()"):
            built = self.build()
        if not isinstance(built, nn.Module):
            raise LearnerFault(
                f"{self.name}: build() returned a {type(built).__name__}, not a torch.nn.Module",
                "end it with `return model`",
            )
        if any(isinstance(each, UninitializedParameter) for each in built.parameters()):
            raise LearnerFault(
                f"{self.name}: build() returned lazy layers, which have no weights yet",
                "give the sizes, or let build() run the network once: model(torch.zeros(1, ...))",
            )
        return built


_BUILDING = threading.RLock()
"""Networks that are built at the same time, in threads of one process, would share one generator of torch."""
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
    """The weights of a new network: the same for the same seed. Torch's global generator stays unchanged.

    Raises LearnerFault where they are not finite, as in a buffer that is a mask: training checks that all of
    the state stays finite, and means of infinity are NaN.
    """
    found = tensors_of(learner.module(seed))
    for name, array in found.items():
        if not np.isfinite(array).all():
            raise LearnerFault(
                f"{learner.name}: tensor {name!r} of a new network has NaN or infinity",
                f"of a constant, such as a mask: register_buffer({name.rpartition('.')[2]!r}, ..., "
                "persistent=False)",
            )
    return found


def tensors_of(model: nn.Module) -> dict[str, Array]:
    """A copy of the network's whole state_dict, buffers included: the network may train on."""
    state = _state_of(model)
    _manifest_of_state(state)
    return {name: tensor.cpu().numpy().copy() for name, tensor in state.items()}


def load_weights(model: nn.Module, tensors: Tensors) -> None:
    """Copy `tensors`, which may be read-only views, into the network, on any device.

    A scale among them is kept in the network, as buffers. Raises BadPayload, naming the first difference, if
    they are not this network's, and OtherShape if that is a shape; then nothing was loaded.
    """
    carry(model, scale_of(tensors))
    state = _state_of(model)
    found, own = manifest_of(tensors), _manifest_of_state(state)
    if [each.name for each in found] == [each.name for each in own]:
        for given, wanted in zip(found, own, strict=True):
            if given.shape != wanted.shape:
                raise OtherShape(given.name, given.shape, wanted.shape)
    check_manifest(found, own)
    for name, tensor in state.items():
        # Through numpy: torch warns about read-only arrays, such as views of a file.
        host = tensor if tensor.device.type == "cpu" else torch.empty(tensor.shape, dtype=tensor.dtype)
        np.copyto(host.numpy(), tensors[name])
        if host is not tensor:
            tensor.copy_(host)


def carry(model: nn.Module, scale: Tensors) -> None:
    """Let the network carry this scale of its inputs, and no other, as buffers. It does not use it."""
    for name in RESERVED:
        if name in model._buffers:
            delattr(model, name)
    if not scale:
        return
    where = next((tensor.device for tensor in model.state_dict().values()), torch.device("cpu"))
    for name, array in scale.items():
        model.register_buffer(name, torch.from_numpy(np.array(array)).to(where))


def _state_of(model: nn.Module) -> dict[str, Any]:
    """The state_dict, with the scale that it carries at the end: its place must not depend on the network."""
    state = model.state_dict()
    return {**without_scale(state), **{name: state[name] for name in RESERVED if name in state}}


def manifest_of_network(model: nn.Module) -> Manifest:
    return _manifest_of_state(_state_of(model))


def _manifest_of_state(state: Mapping[str, Any]) -> Manifest:
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
