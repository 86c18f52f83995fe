"""A network as numpy sees it: what PyTorch or ONNX Runtime compute, and what is made of that here."""

from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np

from shoal.core.data.arrays import network_input
from shoal.core.data.dataset import Dataset
from shoal.core.errors import DataFault, LearnerFault
from shoal.core.exchange.parts import FloatArray
from shoal.core.exchange.tensors import Manifest
from shoal.core.types import Array, Tensors

TINIEST = 1e-300
"""A probability below this counts as this: its logarithm must be finite."""


class Scorer(Protocol):
    """What gives scores of samples, as a `Network` does. batch: samples that it takes at a time; that changes
    speed and memory, not results."""

    @property
    def batch(self) -> int: ...

    def scores(self, x: Array) -> Array:
        """(B, ...) samples -> (B, C) class scores, or (B,) or (B, 1) numbers. Raises LearnerFault."""
        ...


class Network(Scorer, Protocol):
    """One network, into which the weights of several models are loaded in turn.

    name: for people. classifier: whether its scores are of classes, by cross-entropy: false where the learner
    has its own loss() or evaluate(). manifest: of its weights, without a scale of inputs that they carry.
    """

    @property
    def name(self) -> str: ...

    @property
    def classifier(self) -> bool: ...

    @property
    def manifest(self) -> Manifest: ...

    def load(self, weights: Tensors) -> None:
        """Use these weights from now on, on inputs as they are: a scale that the weights carry is applied.
        Raises BadPayload if the weights do not fit."""
        ...

    def latents(self, x: Array) -> Array:
        """(B, ...) samples -> (B, v). Raises LearnerFault, also where the network has no latent."""
        ...


class Mixed:
    """Several classifiers as one: its probabilities are the weighted mean of theirs, and its scores are their
    logarithms. parts: each with its share; the shares sum to 1. One by itself keeps its own scores."""

    def __init__(self, parts: Sequence[tuple[float, Scorer]]) -> None:
        self._parts = parts
        self.batch = min(part.batch for _, part in parts)

    def scores(self, x: Array) -> Array:
        if len(self._parts) == 1:
            return weighted([(1.0, self._parts[0][1].scores(x))])
        said = [(share, softmax(class_scores(each, x, 0))) for share, each in self._parts]
        found: Array = np.log(np.maximum(weighted(said), TINIEST))
        return found


def predicted(
    network: Network, models: Sequence[tuple[float, Tensors]], data: Dataset, regression: bool
) -> tuple[Array, float | None]:
    """What models say of these data, weighted by their shares, which sum to 1. Probabilities (n, C), or of
    regression numbers (n,), as float32; and, where there are labels, the share of samples that are
    classified rightly, or of the labels' variance that is explained (R^2, at least 0).

    Raises LearnerFault, and BadPayload for weights of another network.
    """
    x = network_input(data.x)

    def said(model: Tensors) -> FloatArray:
        network.load(model)
        return numbers(network, x) if regression else softmax(class_scores(network, x, 0))

    found = weighted([(share, said(model)) for share, model in models]).astype(np.float32)
    if data.y is None:
        return found, None
    if not regression:
        return found, float((found.argmax(axis=1) == data.y).mean())
    error, spread = float(np.square(found - data.y).mean()), float(np.var(data.y.astype(np.float64)))
    return found, float(error == 0.0) if spread == 0.0 else max(0.0, 1.0 - error / spread)


def weighted(said: Sequence[tuple[float, Array]]) -> Array:
    """The mean of what models say of n samples, (n, ...), each with its share; the shares sum to 1.

    A model whose values for a sample are no finite numbers is left out there: one that diverged must not
    spoil the answers of the others. Raises LearnerFault if no model is left for some sample.
    """
    sound = [np.isfinite(values).reshape(len(values), -1).all(axis=1) for _, values in said]
    if all(rows.all() for rows in sound):
        found: Array = np.sum([share * values for share, values in said], axis=0)
        return found
    left = np.sum([share * rows for (share, _), rows in zip(said, sound, strict=True)], axis=0)
    if lost := int((left <= 0.0).sum()):
        raise LearnerFault(
            f"the model gives values that are no numbers for {lost} of {len(left)} samples",
            "its training has diverged: use an earlier model, or place the device again",
        )
    wide = (-1,) + (1,) * (said[0][1].ndim - 1)
    parts = [
        np.where((share * rows).reshape(wide) > 0.0, share * values, 0.0)
        for (share, values), rows in zip(said, sound, strict=True)
    ]
    mean: Array = np.sum(parts, axis=0) / left.reshape(wide)
    return mean.astype(said[0][1].dtype)


def class_scores(network: Scorer, x: Array, classes: int) -> FloatArray:
    """(n, C) float64, for all samples, some at a time. classes: highest label + 1, 0 without labels.

    Raises LearnerFault for another shape, DataFault where `classes` is more than C.
    """
    found = np.concatenate([network.scores(batch) for batch in batches(network, x)])
    if found.ndim != 2 or len(found) != len(x):
        raise LearnerFault(
            f"the network gives shape {found.shape} for {len(x)} samples, not class scores ({len(x)}, C)",
            "classification needs a network with one score for each class",
        )
    if classes > found.shape[1]:
        raise DataFault(
            f"the data have the label {classes - 1}, and the network knows {found.shape[1]} classes",
            f"number the classes from 0 to {found.shape[1] - 1}",
        )
    return found.astype(np.float64)


def numbers(network: Scorer, x: Array) -> FloatArray:
    """(n,) float64 predicted numbers, for all samples. Raises LearnerFault for another shape."""
    found = np.concatenate([network.scores(batch) for batch in batches(network, x)])
    if found.shape not in ((len(x),), (len(x), 1)):
        raise LearnerFault(
            f"the network gives shape {found.shape} for {len(x)} samples, not one number for each",
            "regression needs a network with one output",
        )
    return found.reshape(len(x)).astype(np.float64)


def softmax(scores: FloatArray) -> FloatArray:
    """(n, C) scores -> probabilities, rows that sum to 1.

    Example:
        >>> softmax(np.array([[0.0, 0.0]])).tolist()
        [[0.5, 0.5]]
    """
    with np.errstate(invalid="ignore", over="ignore"):
        shifted = scores - scores.max(axis=1, keepdims=True)
        found: FloatArray = np.exp(shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True)))
    return found


def batches(network: Scorer, x: Array) -> Iterator[Array]:
    """Slices of at most `network.batch` samples, in order."""
    for start in range(0, len(x), network.batch):
        yield x[start : start + network.batch]
