"""Mean embeddings of a device's data by a frozen encoder (FMCL section 3.2, eq. 1).

The encoder comes with the question, as an ONNX graph with its weights, or it is the learner's own
(`shoal.core.device_kit.prototypes`). Where there is neither, **the inputs are their own embedding**: images
in at most 32 x 32 pixels, and whatever is wider than `WIDEST` averaged to that. That is no foundation model:
it needs nothing that was trained, is the same on all devices, and sees what distances of raw inputs do.
"""

from collections.abc import Callable, Iterator

import numpy as np

from shoal.core.errors import DeviceFault, LearnerFault
from shoal.core.exchange.messages import INPUTS, SAME_ENCODER, Represent, Represented
from shoal.core.exchange.parts import FloatArray, Prototypes
from shoal.core.exchange.tensors import digest
from shoal.core.inference.context import InferenceContext
from shoal.core.privacy.report import OPEN
from shoal.core.types import Array

SIDE, WIDEST = 32, 4096
"""Of inputs that are their own embedding: pixels of a side, and numbers in all."""
PASS = 256
"""Samples at a time. It changes speed and memory, not results."""
NO_RUNTIME = "this device has nothing that runs the encoder that the run gives"

Embed = Callable[[Array], Array]
"""(B, ...) samples -> (B, d) embeddings."""


def represent(message: Represent, context: InferenceContext) -> Represented:
    """The answer to `Represent` by the encoder that came with it, or else by the inputs themselves.

    Raises LearnerFault where the encoder gives no embeddings or is not that of the other devices, DeviceFault
    where it cannot be run, or where labels are needed and missing.
    """
    if message.encoder is None:
        return represented(message, context, itself, INPUTS)
    if context.open_encoder is None:
        raise DeviceFault(NO_RUNTIME, "install onnxruntime on it")
    return represented(
        message, context, context.open_encoder(message.encoder["graph"].tobytes()), digest(message.encoder)
    )


def represented(message: Represent, context: InferenceContext, embed: Embed, encoder: str) -> Represented:
    """The answer by this encoder. encoder: its SHA-256."""
    if unlike := message.unlike(encoder):
        raise LearnerFault(unlike, SAME_ENCODER)
    context.unprotected(OPEN["prototypes"])
    x = context.inputs(["train"])
    labels = context.labels(["train"]) if message.by_class else np.zeros(len(x), np.int64)
    if labels is None:
        raise DeviceFault(
            "the mean embedding of each class needs labels, and the data have none",
            "label some samples, or ask a run that places devices without labels, such as one with flux",
        )
    return Represented(Prototypes(*means(x, labels, embed), encoder), len(x))


def means(x: Array, labels: Array, embed: Embed) -> tuple[FloatArray, FloatArray, FloatArray]:
    """The classes that are there, ascending, the mean embedding of each, (c, d), and its samples, (c,)."""
    classes, rows = np.unique(labels, return_inverse=True)
    counts = np.bincount(rows).astype(np.float64)
    sums: FloatArray | None = None
    for part in _passes(len(x)):
        values = np.asarray(embed(x[part]))
        if values.ndim != 2 or len(values) != len(x[part]):
            raise LearnerFault(
                f"the encoder gives shape {values.shape} for {len(x[part])} samples, not ({len(x[part])}, d)",
                "end encoder() with .flatten(1)",
            )
        sums = np.zeros((len(classes), values.shape[1])) if sums is None else sums
        np.add.at(sums, rows[part], values.astype(np.float64))
    assert sums is not None
    if not np.isfinite(sums).all():
        raise LearnerFault("some embeddings are NaN or infinite", "look at the learner's encoder")
    return classes.astype(np.float64), sums / counts[:, None], counts


def itself(x: Array) -> Array:
    """(B, d) of inputs (B, ...), where no encoder says what they show. Raises LearnerFault for tokens."""
    if x.dtype.kind != "f":
        raise LearnerFault(
            "the learner has no encoder, by which this algorithm groups devices, and the inputs are tokens",
            "add def encoder(x), which gives (B, d) and is the same on all devices, or a frozen module",
        )
    for axis in (2, 3) if x.ndim == 4 else ():
        x = _averaged(x, axis, SIDE)
    return _averaged(x.reshape(len(x), -1), 1, WIDEST)


def _averaged(x: Array, axis: int, most: int) -> Array:
    """At most this many values along an axis: each the mean of those that it stands for."""
    size = x.shape[axis]
    if size <= most:
        return x
    starts = np.arange(most) * size // most
    ends = -(-np.arange(1, most + 1) * size // most)
    before = np.insert(np.cumsum(x, axis=axis, dtype=np.float64), 0, 0.0, axis=axis)
    total = before.take(ends, axis=axis) - before.take(starts, axis=axis)
    shape = [-1 if each == axis else 1 for each in range(x.ndim)]
    found: Array = (total / (ends - starts).reshape(shape)).astype(x.dtype)
    return found


def _passes(count: int) -> Iterator[slice]:
    for start in range(0, count, PASS):
        yield slice(start, start + PASS)
