"""A device compares its newest samples with those that it had when it got its model: all of it stays there.

Both go through that model, so that the same encoder has seen both, and only what it makes of them is kept:
latents, where the network has some, and what is said of classes. New is what was not there before.
"""

from hashlib import sha256

import numpy as np

from shoal.core.errors import LearnerFault, ShoalError
from shoal.core.exchange.choosing.watching import Watch, Watched
from shoal.core.inference.context import InferenceContext
from shoal.core.inference.drift import LEVEL, MIN_SAMPLES, chance
from shoal.core.inference.network import Network, batches, softmax
from shoal.core.privacy.noise.chance import Entropy
from shoal.core.privacy.noise.response import WATCHING, randomized
from shoal.core.privacy.payment import watching
from shoal.core.types import Array, Tensors

MAX_COMPARED = 500
"""Samples of each side that are compared, the newest: their distances take memory by the square."""
MAX_KNOWN = 1 << 17
"""Samples that are recognized when they are there again."""
KNOWN = "known"
"""The tensor of a reference with the hashes of its samples; the others are views of the newest."""


def watch(question: Watch, context: InferenceContext) -> Watched:
    """Compare, and pay for an answer if one is asked for. Raises ShoalErrors where the data or the model
    cannot be used; that the owner does not pay is no error."""
    parts, order = context.usable, context.views.order
    x = context.inputs(parts)
    rows = np.arange(len(x)) if order is None else np.argsort(order)
    hashes = np.array([_hash(x[row]) for row in rows], np.int64)
    context.network.load(question.model)
    if question.reference is None:
        enough = len(x) >= MIN_SAMPLES
        newest = {**views(context, x[rows[-MAX_COMPARED:]]), KNOWN: hashes[-MAX_KNOWN:]}
        return Watched(1.0, 0, reference=newest if enough else None)
    fresh = x[rows[~np.isin(hashes, question.reference[KNOWN])][-MAX_COMPARED:]]
    found = 1.0
    if len(fresh) >= MIN_SAMPLES:
        present = views(context, fresh)
        # A learner whose owner has changed its latent gives others than those that were kept.
        known = {name: question.reference.get(name, np.empty(0)) for name in present}
        before = {name: view for name, view in known.items() if view.shape[1:] == present[name].shape[1:]}
        if before:
            found = chance(before, {name: present[name] for name in before})
    if not question.answer:
        return Watched(found, len(fresh))

    def noised(moved: bool, entropy: Entropy) -> int:
        return int(randomized(moved, WATCHING, entropy))

    try:
        said = context.pay(watching(question.answer, context.version()), lambda: found <= LEVEL, noised)
    except ShoalError as refused:
        return Watched(found, len(fresh), refused=str(refused))
    return Watched(found, len(fresh), said)


def views(context: InferenceContext, x: Array) -> Tensors:
    """(n, d) float32 each: "said", and "latents" where the network has some."""
    network = context.network
    said = np.concatenate([network.scores(each) for each in batches(network, x)])
    said = said.reshape(len(x), -1).astype(np.float64)
    if network.classifier and not context.regression and said.shape[1] > 1:
        said = softmax(said)
    found = {"said": said.astype(np.float32)}
    if (latents := _latents(network, x)) is not None:
        found["latents"] = latents.astype(np.float32)
    return found


def _latents(network: Network, x: Array) -> Array | None:
    try:
        return np.concatenate([network.latents(each) for each in batches(network, x)])
    except LearnerFault:  # a graph without any
        return None


def _hash(row: Array) -> int:
    return int.from_bytes(sha256(np.ascontiguousarray(row).tobytes()).digest()[:8], "little", signed=True)
