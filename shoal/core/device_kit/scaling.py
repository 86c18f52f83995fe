"""The scale of a run's inputs (`shoal.core.data.scale`), with PyTorch."""

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from shoal.core.data.scale import DEVIATION, LARGEST, LINEAR, MEAN, RESERVED, TARGET, of_features
from shoal.core.device_kit.learner import Learner, authors
from shoal.core.device_kit.samples import Samples
from shoal.core.errors import LearnerFault
from shoal.core.types import Tensors

ROWS = 64
"""Samples by which a network is tried."""
MAX_CONCENTRATION, MIN_DECIDING = 4.0, 1.5
"""A network weighs features evenly if at least one in `MAX_CONCENTRATION` of them decide, and more than one
does."""


def may_need_scale(x: Tensor) -> bool:
    """Whether inputs of this shape and type can need a scale: neither tokens nor images of one channel do."""
    return x.is_floating_point() and x.ndim > 1 and (x.ndim == 2 or x.shape[1] > 1)


def weighs_evenly(learner: Learner, x: Tensor) -> bool:
    """Whether the learner's network, with its first weights, weighs the features of samples about evenly.

    Then it needs no scale: features have one already, as pixels do, or the network brings its own, as its
    author may have built it, and would be misled by another. How much a feature weighs is how much it varies
    times how much the output follows it; of columns in different units, very few decide.
    """
    rows = x[:: -(-len(x) // ROWS)].detach().clone().requires_grad_()
    try:
        with torch.enable_grad(), authors("network"):
            found = learner.module(seed=0).to(x.device).eval()(rows)
            along = torch.randn(found.shape, generator=torch.Generator().manual_seed(0)).to(found)
            (slopes,) = torch.autograd.grad((found * along).sum(), rows)
    except LearnerFault:  # it cannot be tried so, and if it cannot be used at all, its training will say so
        return True
    features = (0, *range(2, rows.ndim))
    varies = rows.detach().double().var(features, correction=0)
    weights = (varies * slopes.double().square().mean(features)).cpu().numpy()
    weights = weights[np.isfinite(weights) & (weights > 0.0)]
    if len(weights) < 2:  # the one channel of images is one of pixels, and a column may be anything
        return x.ndim > 2 or not len(weights)
    shares = weights / weights.max()
    deciding = float(shares.sum() ** 2 / np.square(shares).sum())
    return bool(deciding >= max(len(weights) / MAX_CONCENTRATION, MIN_DECIDING))


def in_scale(samples: Samples, scale: Tensors) -> Samples:
    """The samples in this scale, and the numbers to predict in theirs. Raises BadPayload where the samples
    have other features."""
    if not scale:
        return samples
    targets = samples.targets
    if TARGET in scale and targets is not None:
        mean, deviation = scale[TARGET].tolist()
        targets = (targets - mean) / deviation
    return replace(samples, x=inputs(samples.x, scale), targets=targets)


def inputs(x: Tensor, scale: Tensors) -> Tensor:
    """Samples (n, ...) in this scale. Raises BadPayload where they have other features."""
    if MEAN not in scale:
        return x
    kind = "f" if x.is_floating_point() else "i"
    mean, deviation = (
        torch.from_numpy(of_features(tuple(x.shape), kind, np.array(scale[name]))).to(x.device)
        for name in (MEAN, DEVIATION)
    )
    distance = ((x - mean) / deviation).clamp(-LARGEST, LARGEST)
    beyond = (distance.abs() - LINEAR).clamp_min(0.0).log1p()
    found: Tensor = distance.clamp(-LINEAR, LINEAR) + distance.sign() * beyond
    return found


def outputs(values: Tensor, scale: Tensors) -> Tensor:
    """What a network predicts, in the units of the numbers to predict; scores of classes as they are."""
    if TARGET not in scale:
        return values
    mean, deviation = scale[TARGET].tolist()
    found: Tensor = values * deviation + mean
    return found


def in_own_units(model: nn.Module) -> nn.Module:
    """The same network, which from now on takes inputs in their own units, and predicts in such, by the scale
    that it carries."""
    carried = {name: model._buffers.get(name) for name in RESERVED}
    scale = {name: tensor.cpu().numpy() for name, tensor in carried.items() if tensor is not None}
    if scale:
        model.register_forward_pre_hook(partial(_before, scale))
        model.register_forward_hook(partial(_after, scale))
    return model


def _before(scale: Tensors, model: nn.Module, given: tuple[Any, ...]) -> tuple[Any, ...]:
    first, *rest = given
    return (inputs(first, scale), *rest)


def _after(scale: Tensors, model: nn.Module, given: tuple[Any, ...], found: Tensor) -> Tensor:
    return outputs(found, scale)
