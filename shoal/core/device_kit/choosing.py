"""A newcomer chooses among the clusters' models, or votes for one, with PyTorch.

`shoal.core.inference.choosing` and `voting` decide.
"""

from collections.abc import Iterator

import numpy as np
import torch

from shoal.core.device_kit.context import DeviceContext
from shoal.core.device_kit.describe import project, projected_apart
from shoal.core.device_kit.latents import latents
from shoal.core.device_kit.learner import manifest_of_network
from shoal.core.device_kit.mixture import probabilities
from shoal.core.device_kit.samples import Samples
from shoal.core.errors import BadPayload
from shoal.core.exchange.choosing import Choose, Chosen
from shoal.core.exchange.choosing.compact import ChooseCompact
from shoal.core.exchange.choosing.vote import Vote, Voted
from shoal.core.exchange.messages import Message
from shoal.core.exchange.parts import FloatArray
from shoal.core.inference.choosing import HINT, NoClassifier, chosen, with_model
from shoal.core.inference.voting import voted
from shoal.core.types import Array, Tensors


def perform(message: Message, context: DeviceContext) -> Message:
    """The device half of `ChooseCompact` and `Vote`. Raises what `choose` and `vote` raise."""
    if isinstance(message, ChooseCompact):
        question = message.opened(manifest_of_network(context.model))
        return with_model(choose(question, context), question)
    if isinstance(message, Vote):
        return vote(message, context)
    raise BadPayload(f"a newcomer does not answer {message.kind!r}")


def choose(question: Choose, context: DeviceContext) -> Chosen:
    """Which model suits all samples of the device but those of a test part; by labels, if it has them.

    Raises NoClassifier where the predictions are no probabilities of classes: the run can decide then.
    """
    if context.learner.loss or context.learner.evaluate:
        raise NoClassifier(f"{context.learner.name} has its own loss() or evaluate()", HINT)
    parts = [context.samples(part) for part in context.usable]
    predictions = [_predictions(context, model, parts) for model in question.models]
    labels = [part.y.cpu().numpy() for part in parts if part.y is not None]
    known = np.concatenate(labels) if len(labels) == len(parts) else None
    projected = None
    if (described := question.described) is not None:
        context.use_scale_of(described.encoder)  # which may be of an earlier run
        parts = [context.samples(part) for part in context.usable]
        encoder = context.load(described.encoder)
        batches = (batch for part in parts for batch in latents(context.learner, encoder, part))
        projected = project(batches, described.projector)
    return chosen(question, predictions, known, projected)


def vote(question: Vote, context: DeviceContext) -> Voted:
    """The cluster that a private vote of all samples but those of a test part names. Raises OverBudget."""
    described = question.opened(manifest_of_network(context.model))
    encoder = context.load(described.encoder)
    every = Samples(torch.cat([context.samples(part).x for part in context.usable]), None, 0)

    def projected(rows: Array) -> Iterator[FloatArray]:
        found = projected_apart(context.learner, encoder, every, described.projector, rows)
        return (points for points, _ in found)

    return voted(question, described, context, projected)


def _predictions(context: DeviceContext, model: Tensors, parts: list[Samples]) -> FloatArray:
    """p(class | sample), (n, C). A model that gives no numbers for a sample says nothing of it."""
    said = torch.cat([probabilities(context, model, part) for part in parts]).exp()
    found: FloatArray = said.nan_to_num(nan=1.0 / said.shape[1]).cpu().numpy()
    return found
