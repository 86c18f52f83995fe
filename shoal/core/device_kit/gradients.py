"""The gradient of each sample alone, and what is summed of them.

The network runs on one sample at a time (`torch.func`, which does them side by side), so no gradient can
depend on another sample, whatever an author's network or loss does with a batch.
"""

from collections.abc import Callable, Iterator, Mapping

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from shoal.core.device_kit.learner import Loss
from shoal.core.device_kit.samples import Samples

WITHIN = 1.0 - 1e-3
"""Of the norm, what gradients are shortened to: in float32 the last bits of one differ with how many others
there are, and all of that together stays within the norm that is paid for."""
AT_ONCE = 1 << 27
"""Bytes of the gradients of single samples that are there at a time."""

Gradients = dict[str, Tensor]


def of_each(model: nn.Module, loss: Loss) -> Callable[[Tensor, Tensor], Gradients]:
    """Gradients of the loss of each of (B, ...) samples and (B,) labels: (B, ...) for each parameter."""

    class Alone(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return loss(self.model, x[None], y[None])

    alone = Alone()

    def one(parameters: Mapping[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        found: Tensor = functional_call(alone, dict(parameters), (x, y))
        return found

    def of_all(x: Tensor, y: Tensor) -> Gradients:
        trained = {name: value.detach() for name, value in alone.named_parameters() if value.requires_grad}
        found = vmap(grad(one), in_dims=(None, 0, 0), randomness="different")(trained, x, y)
        return {name.removeprefix("model."): value for name, value in found.items()}

    return of_all


def clipped_sums(
    gradients: Callable[[Tensor, Tensor], Gradients],
    like: Mapping[str, Tensor],
    samples: Samples,
    rows: Tensor,
    clip: float,
) -> Gradients:
    """Sums over some samples of their gradients, each shortened to the norm `clip`: float64, as `like`.

    A sample whose gradient is NaN or infinite counts as 0.
    """
    sums = {name: torch.zeros_like(value, dtype=torch.float64) for name, value in like.items()}
    for some in _pieces(rows, like):
        found = gradients(samples.x[some], samples.labels[some])
        flat = {name: value.reshape(len(value), -1).double() for name, value in found.items()}
        norms = torch.stack([value.norm(dim=1) for value in flat.values()]).norm(dim=0)
        factors = (WITHIN * clip / norms).clamp(max=1.0).nan_to_num(nan=0.0, posinf=1.0)
        factors = torch.where(torch.isfinite(norms), factors, 0.0)
        for name, value in flat.items():
            sums[name] += (factors @ value.nan_to_num(0.0, 0.0, 0.0)).view_as(sums[name])
    return sums


def _pieces(rows: Tensor, like: Mapping[str, Tensor]) -> Iterator[Tensor]:
    size = max(1, AT_ONCE // (4 * sum(value.numel() for value in like.values())))
    return (rows[start : start + size] for start in range(0, len(rows), size))
