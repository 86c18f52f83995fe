"""Mean embeddings of a device's data by the learner's own frozen encoder, and what tells encoders apart."""

import hashlib
import inspect
from collections.abc import Callable, Mapping
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from shoal.core.device_kit.context import DeviceContext
from shoal.core.device_kit.learner import authors, shape_of
from shoal.core.errors import LearnerFault
from shoal.core.exchange.messages import Represent, Represented
from shoal.core.inference.representing import represent as by_given
from shoal.core.inference.representing import represented
from shoal.core.types import Array


def represent(message: Represent, context: DeviceContext) -> Represented:
    """The answer to `Represent`: by the encoder that came with it, or the learner's, or the inputs.

    Raises as `shoal.core.inference.representing.represent`.
    """
    encoder = context.learner.encoder
    if message.encoder is not None or encoder is None:
        return by_given(message, context)
    if isinstance(encoder, nn.Module):
        encoder = encoder.to(context.device).eval()

    def embed(x: Array) -> Array:
        samples = torch.tensor(x, device=context.device)  # a copy: authors may compute in place
        with torch.no_grad(), authors("encoder()"):
            value: object = encoder(samples)
        if not isinstance(value, Tensor) or value.ndim != 2 or len(value) != len(x):
            raise LearnerFault(
                f"the encoder gives {shape_of(value)} for {len(x)} samples, not ({len(x)}, d)",
                "end encoder() with .flatten(1)",
            )
        found: Array = value.cpu().numpy()
        return found

    return represented(message, context, embed, digest_of(encoder))


def digest_of(encoder: Callable[[Tensor], Tensor]) -> str:
    """SHA-256, 64 hex digits, of an author's encoder: of its source, or of a module's layers, and of the
    weights in it. Two that compute the same may have different ones, as where a comment differs.

    Code of other packages counts by its name only: their versions differ from device to device.
    """
    sha = hashlib.sha256()
    # What was added, by its identity; kept, as another could get the identity of what is gone.
    seen = dict[int, Any]()
    inner = encoder.func if isinstance(encoder, partial) else encoder
    home = getattr(inner, "__module__", type(inner).__module__).partition(".")[0]

    def add(value: Any) -> None:
        if id(value) in seen or inspect.ismodule(value) or inspect.isclass(value):
            return
        seen[id(value)] = value
        if isinstance(value, nn.Module):
            sha.update(repr(value).encode())
            for each in dict.fromkeys(type(module) for module in value.modules()):
                code(each)
            add(value.state_dict())
        if isinstance(value, partial):
            value = [value.func, value.args, value.keywords]
        if isinstance(value, Tensor):
            value = value.detach().cpu().numpy()
        if isinstance(value, np.ndarray):
            sha.update(f"{value.dtype} {value.shape}".encode() + np.ascontiguousarray(value).tobytes())
        elif isinstance(value, bool | int | float | str | bytes | None):
            sha.update(repr(value).encode())
        elif isinstance(value, Mapping | list | tuple):
            for each in chain.from_iterable(value.items()) if isinstance(value, Mapping) else value:
                add(each)
        elif inspect.isfunction(value) or inspect.ismethod(value):
            if code(value):
                used = inspect.getclosurevars(value)
                add({**used.nonlocals, **used.globals})
                add(getattr(value, "__self__", None))
        elif code(type(value)) and not isinstance(value, nn.Module):
            add(getattr(value, "__dict__", None))

    def code(value: Any) -> bool:
        """Add what a function or a class is; whether it is the author's own."""
        own = str(value.__module__).partition(".")[0] == home
        try:
            sha.update(inspect.getsource(value).encode() if own else value.__qualname__.encode())
        except (OSError, TypeError):  # it was typed, and is in no file
            sha.update(getattr(getattr(value, "__code__", None), "co_code", value.__qualname__.encode()))
        return own

    add(encoder)
    return sha.hexdigest()
