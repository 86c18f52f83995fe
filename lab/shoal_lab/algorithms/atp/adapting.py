"""A network that adapts to samples without labels: which of its tensors move, in which direction, and how
far."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from shoal.core.data.scale import RESERVED
from shoal.core.device_kit.evaluation.evaluate import class_scores

MEAN, VARIANCE = "running_mean", "running_var"


class Adapting:
    """A network in evaluation mode, and its tensors that adapt: `places` are their positions in its
    state_dict, without a scale of inputs.

    Tensors of the state_dict that do not adapt have no direction. Their rates have no meaning, and stay 0.
    """

    def __init__(self, model: nn.Module, batch_statistics: dict[str, Tensor]) -> None:
        state = model.state_dict(keep_vars=True)
        tensors = {name: tensor for name, tensor in state.items() if name not in RESERVED}
        adapts = {name for name, weight in model.named_parameters() if weight.requires_grad}
        adapts |= set(_running_statistics(model))
        self.places = [place for place, name in enumerate(tensors) if name in adapts]
        self.names = [name for name in tensors if name in adapts]
        self._model, self._seen = model, batch_statistics
        self._tensors: list[Tensor] = [tensors[name] for name in self.names]
        self._start = [tensor.detach().clone() for tensor in self._tensors]

    def directions(self, x: Tensor) -> list[Tensor]:
        """h for a batch (B, ...), computed from the original network, to which the network is reset."""
        self._reset()
        scores = class_scores(self._model, x, 0)
        entropy = -(scores.softmax(1) * scores.log_softmax(1)).sum(1).mean()
        found = self.gradients(entropy)
        return [
            tensor.detach() - self._seen[name] if name in self._seen else gradient
            for name, tensor, gradient in zip(self.names, self._tensors, found, strict=True)
        ]

    def move(self, rates: Sequence[float], directions: Sequence[Tensor]) -> None:
        """Set the network to the original one minus rate times direction, tensor by tensor."""
        self._reset()
        with torch.no_grad():
            for name, tensor, place, h in zip(
                self.names, self._tensors, self.places, directions, strict=True
            ):
                tensor.sub_(h, alpha=rates[place])
                if name.endswith(VARIANCE):
                    tensor.clamp_(min=0.0)

    def gradients(self, loss: Tensor) -> list[Tensor]:
        """Gradients of a loss for all tensors that adapt; 0 if the loss does not depend on one."""
        return list(torch.autograd.grad(loss, self._tensors, allow_unused=True, materialize_grads=True))

    def _reset(self) -> None:
        with torch.no_grad():
            for tensor, start in zip(self._tensors, self._start, strict=True):
                tensor.copy_(start)


@contextmanager
def adapting(model: nn.Module) -> Iterator[Adapting]:
    """Inside, the network is in evaluation mode, gradients reach the running statistics of its batch norms,
    and each batch norm records the statistics of the batch that it sees. Afterward it is an ordinary network
    again, with its tensors as they were moved."""
    seen: dict[str, Tensor] = {}
    norms = {name: norm for name, norm in model.named_modules() if _tracks(norm)}
    statistics = _running_statistics(model).values()
    model.eval()
    try:
        for name, norm in norms.items():
            norm.forward = partial(_normalised, norm, name, seen)
        for tensor in statistics:
            tensor.requires_grad_()
        yield Adapting(model, seen)
    finally:
        for norm in norms.values():
            del norm.forward
        for tensor in statistics:
            tensor.requires_grad_(False)


def _tracks(module: nn.Module) -> bool:
    return isinstance(module, _BatchNorm) and module.running_mean is not None


def _running_statistics(model: nn.Module) -> dict[str, Tensor]:
    return {
        _inner(name, statistic): getattr(module, statistic)
        for name, module in model.named_modules()
        if _tracks(module)
        for statistic in (MEAN, VARIANCE)
    }


def _inner(module: str, name: str) -> str:
    return f"{module}.{name}" if module else name


def _normalised(norm: _BatchNorm, name: str, seen: dict[str, Tensor], x: Tensor) -> Tensor:
    """What a batch norm computes in evaluation mode, from plain operations: torch's own function has no
    gradient for the statistics. The variance of a single value per channel is not defined: the running one is
    used instead."""
    assert norm.running_mean is not None
    assert norm.running_var is not None
    others, channels = [0, *range(2, x.ndim)], [1, -1] + [1] * (x.ndim - 2)
    with torch.no_grad():
        many = x.numel() > x.shape[1]
        seen[_inner(name, MEAN)] = x.mean(others)
        seen[_inner(name, VARIANCE)] = x.var(others) if many else norm.running_var.detach().clone()
    centered = x - norm.running_mean.view(channels)
    found = centered / (norm.running_var.view(channels) + norm.eps).sqrt()
    if norm.affine:
        found = found * norm.weight.view(channels) + norm.bias.view(channels)
    return found
