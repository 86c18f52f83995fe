"""In which shape a network takes samples, found by trying: one answer for Python, the simulator and devices.

    found = diagnose(network, model, x)      # one sample, in each layout that people use
    found.layout                             # the first that the network takes, or None

A simulation uses the layout and says so (`applied`). A device does not rearrange what its owner gave: the
error says what to write (`setting`). Where nothing works, `refused` says what was tried, what the network
said, and in which line.
"""

import math
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from shoal.core.data import layouts
from shoal.core.data.arrays import network_input
from shoal.core.data.layouts import AS_THEY_ARE, Layout, layouts_of
from shoal.core.device_kit.samples import seeded
from shoal.core.tracebacks import line_of_author
from shoal.core.types import Array

TRIED = 5
"""Copies of a sample in a batch. Layers for images also take one sample without a batch axis, so with one
copy an image without a channel could be taken for a batch of rows."""
MAX_SAID = 500
"""Characters of what a network said."""

WORDS = (nn.Embedding, nn.EmbeddingBag)
"""Layers that take whole numbers."""

Call = Callable[[Tensor], object]
"""What is tried: a batch in, scores or a loss out. It raises what it does not take."""


@dataclass(frozen=True)
class Refusal:
    """One layout that was tried, and the error that came of it."""

    layout: Layout
    error: BaseException

    @property
    def said(self) -> str:
        return f"{type(self.error).__name__}: {self.error}"


@dataclass(frozen=True)
class Diagnosis:
    """layout: the first that works; None: none of them. refusals: of the others, in the order of trial.
    shape: of a sample as it was given. first: the network's first layer, where it is of a common kind."""

    layout: Layout | None
    refusals: tuple[Refusal, ...]
    shape: tuple[int, ...]
    first: nn.Module | None

    @property
    def is_about_shape(self) -> bool:
        """Whether the shape is at fault: code that fails in the same way in all layouts has another fault."""
        return (
            self.layout is not None
            or self.values is not None
            or len({each.said for each in self.refusals}) > 1
        )

    @property
    def values(self) -> tuple[int, int] | None:
        """How many values a sample has, and how many the first layer takes, where that is what failed."""
        has = math.prod(self.shape)
        if not isinstance(self.first, nn.Linear) or self.first.in_features == has or not self.refusals:
            return None
        as_given = "shapes cannot be multiplied" in self.refusals[0].said
        return (has, self.first.in_features) if as_given else None

    @property
    def telling(self) -> Refusal:
        """The refusal that says most. A layer for images takes samples without a channel for one image, so
        what it says of them misleads."""
        images, rows = isinstance(self.first, nn.Conv2d), isinstance(self.first, nn.Conv1d)
        axes = 3 if images else 2 if rows else len(self.shape)
        if isinstance(self.first, nn.Embedding) and self.refusals[-1].layout is layouts.WHOLE:
            return self.refusals[-1]  # it takes no other numbers, so it says of those what is wrong
        fitting = [each for each in self.refusals if len(each.layout.shape(self.shape)) == axes]
        return (fitting or self.refusals)[0]

    @property
    def takes(self) -> str:
        """What the first layer takes, as far as that is known; else ""."""
        if isinstance(self.first, nn.Linear):
            has = "" if self.values is None else f", and a sample has {self.values[0]}"
            return f"its first layer takes {self.first.in_features} values{has}"
        if isinstance(self.first, nn.Embedding):
            return f"its first layer takes whole numbers from 0 to {self.first.num_embeddings - 1}"
        if isinstance(self.first, nn.Conv1d | nn.Conv2d):
            return (
                f"its first layer takes {self.first.in_channels} channel{'s' * (self.first.in_channels > 1)}"
            )
        return ""


def diagnose(call: Call, model: nn.Module, x: Array) -> Diagnosis:
    """Try a sample in each layout, in evaluation mode and without gradients.

    model: the network that `call` uses; afterwards its weights, its mode and torch's random numbers are as
    they were. x: (n, ...) samples, of which the first is tried. Raises DataFault for samples that are not
    numbers.
    """
    device = next((each.device for each in model.parameters()), torch.device("cpu"))
    refusals: list[Refusal] = []
    handled = sys.exception()
    with _untouched(model), seeded(0, device):
        for layout in layouts_of(x):
            if layout is layouts.WHOLE and not any(isinstance(each, WORDS) for each in model.modules()):
                continue
            batch = network_input(np.repeat(layout.apply(x[:1]), TRIED, axis=0))
            try:
                answer = call(torch.from_numpy(batch).to(device))
            except (Exception, SystemExit) as error:
                if error.__context__ is handled:  # which did not lead to it: it is why the sample is tried
                    error.__context__ = None
                refusals.append(Refusal(layout, error))
                continue
            if not isinstance(answer, Tensor) or not answer.ndim or len(answer) == TRIED:
                return Diagnosis(layout, tuple(refusals), x.shape[1:], _first_of(model))
            text = f"it gives shape {tuple(answer.shape)} for {TRIED} samples"
            refusals.append(Refusal(layout, ValueError(text)))
    return Diagnosis(None, tuple(refusals), x.shape[1:], _first_of(model))


@contextmanager
def _untouched(model: nn.Module) -> Iterator[None]:
    state: dict[str, object] = model.state_dict()  # other things than tensors may be in it
    was = {name: value.detach().clone() for name, value in state.items() if isinstance(value, Tensor)}
    modes = [(each, each.training) for each in model.modules()]
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        with torch.no_grad():
            for name, value in model.state_dict().items():
                if name in was:
                    value.copy_(was[name])
        for each, training in modes:
            each.training = training


def applied(layout: Layout, shape: Sequence[int]) -> str:
    """What a simulation did to samples of this shape, in one sentence; "" where nothing was done."""
    if layout is AS_THEY_ARE:
        return ""
    now = layout.shape(shape)
    turned = f", {now}" if now != tuple(shape) else ""
    return f"samples of shape {tuple(shape)} are given to the network {layout.name}{turned}"


def setting(layout: Layout, shape: Sequence[int]) -> str:
    """What the owner of a device writes, so that its samples have this layout."""
    now = list(layout.shape(shape))
    if layout is layouts.CHANNEL and len(shape) == 2:
        return f"Images need a channel: set data.shape: {now}"
    if layout in (layouts.CHANNEL, layouts.FLAT, layouts.SQUARE):
        return f"the network takes them {layout.name}: set data.shape: {now}"
    if layout is layouts.LAST_FIRST:
        axes = ", ".join(map(str, (0, len(shape), *range(1, len(shape)))))
        return f"the network takes them {layout.name}, {now}: save x.transpose({axes})"
    kind = "int64" if layout is layouts.WHOLE else "float32"
    return f"the network takes them {layout.name}: give them as {kind}, by a function of yours (data.module)"


def refused(found: Diagnosis) -> tuple[str, str]:
    """Where no layout works: what was tried and what the network said, and what to do."""
    tried = [each.layout.name for each in found.refusals[1:]]
    besides = f", also {', '.join(tried[:-1])}{' or ' if tried[1:] else ''}{tried[-1]}" if tried else ""
    said = found.telling.said[:MAX_SAID]
    where = line_of_author(found.telling.error)
    said = f"{besides}: {said}{f' ({where})' if where else ''}"
    return said, found.takes or "bring the samples into the shape that its first layer takes"


def _first_of(model: nn.Module) -> nn.Module | None:
    """The first layer with weights that is of a common kind. Networks may well have it later in their way."""
    kinds = nn.Linear | nn.Conv1d | nn.Conv2d | nn.Embedding
    return next((layer for layer in model.modules() if isinstance(layer, kinds)), None)
