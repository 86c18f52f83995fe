"""Between a network and `Tensors`: its whole state_dict, in its order, batch norm's buffers included."""

import numpy as np
import torch
from torch import Tensor, nn

from shoal.core.device_kit.learner import Learner
from shoal.core.errors import LearnerFault
from shoal.core.exchange.tensors import DTYPES, Manifest, TensorSpec, check_manifest, manifest_of
from shoal.core.types import Array, Tensors


def initial_weights(learner: Learner, seed: int) -> dict[str, Array]:
    """The weights of a new network: the same for the same seed, and torch's own chance is left alone."""
    return tensors_of(learner.module(seed))


def tensors_of(model: nn.Module) -> dict[str, Array]:
    """The weights, one copy of them: the network may go on to train."""
    _manifest(model)
    return {name: tensor.cpu().numpy().copy() for name, tensor in model.state_dict().items()}


def load_weights(model: nn.Module, tensors: Tensors) -> None:
    """Put `tensors` (read-only views will do) into the network, on whatever device it is: one copy.

    Raises BadPayload, naming the first difference, when they are not this network's; then nothing was loaded.
    """
    check_manifest(manifest_of(tensors), _manifest(model))
    for name, tensor in model.state_dict().items():
        # Through numpy, for torch warns of arrays that it may not write to, and views of a file are such.
        host = tensor if tensor.device.type == "cpu" else torch.empty(tensor.shape, dtype=tensor.dtype)
        np.copyto(host.numpy(), tensors[name])
        if host is not tensor:
            tensor.copy_(host)


def _manifest(model: nn.Module) -> Manifest:
    state: dict[str, object] = model.state_dict()
    specs = []
    for name, tensor in state.items():
        if not isinstance(tensor, Tensor):
            raise LearnerFault(
                f"the network's state {name!r} is no tensor", "keep extra state out of state_dict"
            )
        dtype = str(tensor.dtype).removeprefix("torch.")
        if dtype not in DTYPES:
            raise LearnerFault(f"tensor {name!r} of the network is {dtype}", "use float32: model.float()")
        specs.append(TensorSpec(name, dtype, tuple(tensor.shape)))
    return tuple(specs)
