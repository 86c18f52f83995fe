"""What `model=` may be: a torch module class, a learner, a learner file, or a network of the library; and in
which layout a fleet's samples go into it."""

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from shoal.core import models
from shoal.core.data.layouts import AS_THEY_ARE, WHOLE, Layout, channel_is_last
from shoal.core.data.scale import without_scale
from shoal.core.device_kit.evaluation.evaluate import are_probabilities, class_scores, loss_of
from shoal.core.device_kit.evaluation.regression import predictions
from shoal.core.device_kit.learner import Latent, Learner, builtin, details_of, load_weights
from shoal.core.device_kit.network import latent_of
from shoal.core.device_kit.samples import convert
from shoal.core.device_kit.shapes import TRIED, diagnose, refused
from shoal.core.errors import ConfigError, DataFault, LearnerFault
from shoal.core.types import Tensors
from shoal.shell.learners import from_file
from shoal.simulation.fleet import Fleet

SHORTEST = 16
"""Readings in a window that the convolutions of cnn1d need."""


def learner_of(
    model: Any,
    latent: Latent | str | None = None,
    options: Mapping[str, Any] | None = None,
    fleet: Fleet | None = None,
) -> Learner:
    """A learner from what a user brings.

    model: a class or function that builds a torch module, a module, whose weights are then the initial ones,
    a `Learner`, the path of a learner.py, the name of a network in `shoal.core.models` with its `options`, or
    None for a network that fits the fleet. latent: the submodule whose output describes a sample, or a
    function (model, x) -> (B, v).

    Raises ConfigError and LearnerFault.
    """
    if options and not isinstance(model, str):
        raise ConfigError("options are of a built-in network, and none is named", "name one, such as mlp")
    if isinstance(model, Learner):
        learner = model
    elif isinstance(model, nn.Module):
        learner = Learner(type(model).__name__, partial(copy.deepcopy, copy.deepcopy(model).cpu()))
    elif isinstance(model, Path) or (isinstance(model, str) and model.endswith(".py")):
        learner = from_file(model)
    elif isinstance(model, str) or model is None:
        learner = _builtin(model or "", options or {}, fleet)
    elif callable(model):
        learner = Learner(getattr(model, "__name__", "model"), model)
    else:
        raise ConfigError(
            f"model is a {type(model).__name__}",
            "give a torch module class, a function that builds one, a Learner, or the path of a learner.py",
        )
    return learner if latent is None else replace(learner, latent=latent)


def beginning_with(learner: Learner, weights: Tensors) -> Learner:
    """The same network, which begins with these weights, whatever the seed is. A scale among them is left
    out: a run has its own."""
    module = learner.module(seed=0)
    load_weights(module, without_scale(weights))
    return replace(learner, build=partial(copy.deepcopy, module))


def _builtin(name: str, options: Mapping[str, Any], fleet: Fleet | None) -> Learner:
    """LeNet-5 as in the papers; small networks for small images, for windows of readings and for rows; or
    the one that is named."""
    if fleet is None:
        return builtin(name, options)
    known = models.options_of(name) if name else []
    given, classes = _sizes(known, fleet), {"classes": fleet.classes}
    flat = {"inputs": math.prod(given)}
    if "inputs" in known:
        hidden = {"hidden": (32, 16)} if len(given) == 1 else {}
        return builtin(name, {**flat, **hidden, **classes, **options})
    if len(given) > 3:
        raise ConfigError(f"no network of the library takes samples of shape {given}", "give a model")
    if "length" in known or (not name and len(given) == 2 and given[1] >= SHORTEST):
        return builtin(name or "cnn1d", {"channels": given[0], "length": given[-1], **classes, **options})
    if name:
        return builtin(name, {"channels": given[0], "size": given[-1], **classes, **options})
    if len(given) < 3:
        return builtin("mlp", {**flat, "hidden": (32, 16), **classes})
    if given[1] < 28 or given[1] != given[2]:
        return builtin("mlp", {**flat, "hidden": (64,), **classes})
    return builtin("lenet5", {"channels": given[0], "size": given[1], **classes})


def _sizes(known: Sequence[str], fleet: Fleet) -> tuple[int, ...]:
    """The shape of a sample as a network of the library sees it: (values,), (channels, length) or (channels,
    h, w). known: the options of the network that is named. Raises ConfigError for a row of values that is no
    image for a network of images."""
    shape = fleet.shape
    if channel_is_last(shape):
        return shape[2], *shape[:2]
    if len(shape) == 1 and "size" in known:
        side = math.isqrt(shape[0])
        if side * side != shape[0]:
            raise ConfigError(f"the network takes images, and a sample has {shape[0]} values", "name mlp")
        return 1, side, side
    if len(shape) == 1 and "length" in known:
        return 1, *shape
    if len(shape) == 2 and ("size" in known or (not known and fleet.are_images)):
        return 1, *shape
    return shape


def guess(fleet: Fleet) -> str:
    """What samples without a channel are taken for where no network says it, in one sentence; else ""."""
    if len(fleet.shape) != 2:
        return ""
    if fleet.are_images:
        return f"samples of shape {fleet.shape} are taken for gray images; for readings, name model cnn1d"
    channels, length = fleet.shape
    return (
        f"samples of shape {fleet.shape} are taken for windows of {length} readings of {channels} sensors; "
        "for images, give them a channel axis: x[:, None]"
    )


def probabilities(learner: Learner, fleet: Fleet, layout: Layout) -> str:
    """That the network gives probabilities where scores are expected, in one sentence; else ""."""
    test = next(iter(fleet.values())).arranged(layout).test
    samples = convert(test.subset(slice(0, TRIED)), torch.device("cpu"))
    try:
        found = are_probabilities(learner, learner.module(seed=0), samples)
    except LearnerFault:  # the run meets it, and says on which device
        return ""
    return "the network ends with a softmax, and training has one of its own: leave it out" if found else ""


def layout_for(learner: Learner, fleet: Fleet) -> Layout:
    """In which layout the learner's network takes the fleet's samples.

    Raises LearnerFault where it takes none that people use, with the network's own words and the author's
    line, or where `latent` names no submodule, and DataFault where it has fewer outputs than the fleet has
    classes.
    """
    model = learner.module(seed=0)
    latent_of(learner, model)  # a wrong name shows here, and not in the round that describes the data
    if learner.train is not None and learner.loss is None and learner.evaluate is not None:
        return AS_THEY_ARE  # only its own functions know how the network is called
    test = next(iter(fleet.values())).test
    sample = convert(test.subset(slice(0, 1)), torch.device("cpu"))
    goals = None if sample.y is None else sample.goals.repeat(TRIED)
    seen: list[int] = []

    def call(x: Tensor) -> Tensor:
        if learner.loss is not None and goals is not None:
            return loss_of(learner, sample)(model, x, goals)
        if sample.targets is not None:
            return predictions(model, x)
        scores = class_scores(model, x, 0)
        seen.append(scores.shape[1])
        return scores

    found = diagnose(call, model, test.x)
    if found.layout is None:
        if not found.is_about_shape:  # whatever else it is, the run meets it, and says on which device
            return AS_THEY_ARE
        said, hint = refused(found)
        details = details_of(found.telling.error)
        raise LearnerFault(f"the network refused samples of shape {found.shape}{said}", hint, details)
    if seen and seen[-1] < fleet.classes:
        raise DataFault(
            f"the network gives {seen[-1]} scores, and the fleet has {fleet.classes} classes",
            f"end the network with {fleet.classes} outputs",
        )
    if found.layout is WHOLE and not fleet.has_whole_numbers:
        raise DataFault(
            "the network takes whole numbers, and some samples have fractions", "give it integers"
        )
    return found.layout
