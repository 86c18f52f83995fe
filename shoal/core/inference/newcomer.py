"""The tasks that a device can do without PyTorch: choose among models, vote for one, and describe its data.

    def perform(message, context) -> Message

These are what every newcomer may be asked; `fedclient` adds predictions, which no server asks for. Evidence
that needs the author's own code, such as losses or an encoder, needs PyTorch.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from shoal.core.data.arrays import network_input
from shoal.core.data.dataset import Dataset
from shoal.core.data.version import Numbers
from shoal.core.data.views import Views
from shoal.core.errors import BadPayload, DeviceFault, LearnerFault
from shoal.core.exchange.choosing import Choose, Chosen
from shoal.core.exchange.choosing.compact import ChooseCompact
from shoal.core.exchange.choosing.vote import Vote, Voted
from shoal.core.exchange.messages import Describe, Described, Message
from shoal.core.exchange.parts import FloatArray
from shoal.core.exchange.tensors import Manifest, manifest_of
from shoal.core.inference.choosing import HINT, ONE_OUTPUT, NoClassifier, chosen, with_model
from shoal.core.inference.context import DataContext
from shoal.core.inference.moments import check_classes, moments_of, project
from shoal.core.inference.network import Network, batches, class_scores, softmax
from shoal.core.inference.releases import released
from shoal.core.inference.voting import voted
from shoal.core.privacy.accountant import Account
from shoal.core.privacy.release import ExactMoments
from shoal.core.privacy.sums import ExactSums, sums_of
from shoal.core.types import Array, Tensors


class InferenceContext(DataContext):
    """A device's data and a network to use on them. noise, account: see `DataContext`."""

    def __init__(
        self, network: Network, views: Views, noise: np.random.Generator, account: Account | None = None
    ) -> None:
        super().__init__(views, noise, account)
        self.network = network
        self._inputs: dict[str, Array] = {}

    def inputs(self, parts: Sequence[str]) -> Array:
        """(n, ...) float32 or int64: the samples of these parts, as the network takes them."""
        for part in parts:
            if part not in self._inputs:
                self._inputs[part] = network_input(self.part(part).x)
        return (
            np.concatenate([self._inputs[part] for part in parts])
            if len(parts) > 1
            else self._inputs[parts[0]]
        )

    def labels(self, parts: Sequence[str]) -> Array | None:
        """(n,) the classes of these parts; None where some have none, or the labels are numbers."""
        found = [self.part(part).y for part in parts]
        known = [y for y in found if y is not None and y.dtype.kind == "i"]
        return np.concatenate(known) if len(known) == len(found) else None


def perform(message: Message, context: InferenceContext) -> Message:
    """The answer to a question. Raises ShoalErrors only: BadPayload for one of another kind."""
    if isinstance(message, ChooseCompact):
        question = message.opened(carrying(context.network.manifest, message.scale))
        return with_model(choose(question, context), question)
    if isinstance(message, Vote):
        return vote(message, context)
    if isinstance(message, Describe):
        return describe(message, context)
    raise BadPayload(
        f"a device without PyTorch cannot answer {message.kind!r}",
        "install PyTorch and the learner on it, or start the run with a placing that needs neither, such as "
        "own-models",
    )


def carrying(manifest: Manifest, scale: Tensors | None) -> Manifest:
    """Of a model of this network that carries a scale of its inputs (`shoal.core.data.scale`)."""
    return (*manifest, *manifest_of(scale or {}))


def choose(question: Choose, context: InferenceContext) -> Chosen:
    """Which model suits all samples of the device but those of a test part; by labels, if it has them.

    Raises NoClassifier where the predictions are no probabilities of classes: the run can decide then.
    """
    network, parts = context.network, context.usable
    if not network.classifier or any(_regression(context.part(part)) for part in parts):
        raise NoClassifier(f"{network.name} has its own loss() or evaluate(), or predicts numbers", HINT)
    x, labels = context.inputs(parts), context.labels(parts)
    classes = 0 if labels is None else int(labels.max()) + 1
    # The run is asked to decide where this is no classifier, and its graph may have been made so that samples
    # decide about its shape: they must not be looked at for that.
    network.load(question.models[0])
    width = class_scores(network, np.zeros_like(x[:1]), 0).shape[1]
    if width < 2:
        raise NoClassifier(ONE_OUTPUT, HINT)

    def said(model: Tensors) -> FloatArray:
        network.load(model)
        scores = class_scores(network, x, classes)
        if scores.shape[1] != width:
            raise LearnerFault(
                f"the network gives shape {scores.shape} for {len(x)} samples, and {width} scores for zeros",
                "tell the run's operator",
            )
        found = softmax(scores)
        # A model that gives no numbers for a sample says nothing of it.
        return np.nan_to_num(found, nan=1.0 / found.shape[1])

    projected = None
    if (described := question.described) is not None:
        network.load(described.encoder)
        projected = project((network.latents(batch) for batch in batches(x)), described.projector)
    return chosen(question, [said(model) for model in question.models], labels, projected)


def vote(question: Vote, context: InferenceContext) -> Voted:
    """The cluster that a private vote of all samples but those of a test part names. Raises OverBudget."""
    network = context.network
    described = question.opened(carrying(network.manifest, question.scale))
    network.load(described.encoder)
    x = context.inputs(context.usable)

    def projected(rows: Array) -> Iterator[FloatArray]:
        return (points for points, _ in apart(network, x, rows, described.projector, None))

    return voted(question, described, context, projected)


def describe(message: Describe, context: InferenceContext) -> Described:
    """The moments of the data's latents, released as the message asks. Raises what `released` raises, and
    DeviceFault if labels are needed and missing."""
    privacy, network = message.privacy, context.network
    # As on a device that trains: what has a guarantee is of all samples, since the budget is of all of them.
    parts = context.usable if privacy.calibrated or not message.classes else context.usable[:1]
    x, labels = context.inputs(parts), context.labels(parts) if message.classes else None
    if message.classes and labels is None:
        raise DeviceFault("this needs labels, and the device's data have none", "give the data a y")

    def moments(distinct: Numbers | None) -> ExactMoments:
        network.load(message.encoder)
        projected = project((network.latents(batch) for batch in batches(x)), message.projector)
        return moments_of(projected, labels, message.classes, distinct)

    def sums(classes: int, distinct: Numbers) -> ExactSums:
        check_classes(classes)
        network.load(message.encoder)
        first = np.unique(distinct, return_index=True)[1]
        projector = message.projector
        found = apart(network, x, first, projector, labels if classes else None)
        return sums_of(found, float(projector["radius"]), len(projector["components"]), classes)

    descriptor = released(
        context, message.encoder, message.projector, parts, message.classes, privacy, moments, sums
    )
    return Described(descriptor, len(x))


def apart(
    network: Network, x: Array, rows: Array, projector: Tensors, labels: Array | None
) -> Iterator[tuple[FloatArray, Array | None]]:
    """Projected latents (1, l) of each of these samples, with its label, each computed by itself.

    For what has a guarantee: the network came from a server, which can make one in which a sample of a batch
    changes the latents of the others. In a batch of one there are no others. All samples pass through the
    same memory, since the last bits of a result may depend on how its input is aligned.
    """
    single = np.empty_like(x[:1])
    for row in rows.tolist():
        single[...] = x[row]
        yield project([network.latents(single)], projector), None if labels is None else labels[row : row + 1]


def _regression(data: Dataset) -> bool:
    return data.y is not None and data.y.dtype.kind == "f"
