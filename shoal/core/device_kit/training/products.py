"""Convolutions of several devices at once as products of matrices.

With weights of its own for each device a convolution becomes one in groups. Libraries compute those of few
channels slowly: on a GPU, LeNet-5 spends nearly all of a step there. So each window of an image becomes a
column, and the layer a product, which rounds less besides.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

NARROW = 256
"""Values of a window at most: memory for windows grows with them, and wide groups are fast."""


class Products(TorchFunctionMode):
    """Within it, narrow convolutions of images are products."""

    def __torch_function__(
        self, function: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given = kwargs or {}
        return (product if function is torch.conv2d else function)(*args, **given)


def product(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Tensor:
    """`torch.conv2d`, by a product where the windows are narrow."""
    size, plain = weight.shape[1:].numel(), isinstance(stride, tuple) and isinstance(padding, tuple)
    if not plain or dilation != (1, 1) or groups != 1 or x.ndim != 4 or size > NARROW:
        return torch.conv2d(x, weight, bias, stride, padding, dilation, groups)
    x = F.pad(x, (padding[1], padding[1], padding[0], padding[0]))
    (down, across), (high, wide) = stride, weight.shape[2:]
    windows = x.unfold(2, high, down).unfold(3, wide, across).permute(0, 1, 4, 5, 2, 3)  # (B, C, h, w, H, W)
    # One product for each image: sums over all places of all images at once would keep few processors busy.
    found = weight.flatten(1).expand(len(x), -1, -1) @ windows.reshape(len(x), size, -1)
    found = found.view(len(x), len(weight), *windows.shape[4:])
    return found if bias is None else found + bias[:, None, None]
