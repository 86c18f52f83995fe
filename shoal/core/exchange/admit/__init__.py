"""Check a report before it may touch a model: it answers its task, has the right shape, and is finite.

`admit_payload` looks only at the references, so that a wrong report costs no byte of tensors;
`admit_message` looks at the values.
"""

from typing import Any

import numpy as np

from shoal.core.errors import BadPayload
from shoal.core.exchange.admit.plausible import check_sums
from shoal.core.exchange.encoding.messages import TrainEncoded
from shoal.core.exchange.messages import (
    MAX_EXAMPLES,
    SAME_ENCODER,
    Build,
    Built,
    Describe,
    Described,
    Evaluate,
    Evaluated,
    Message,
    PrivateTraining,
    Represent,
    Represented,
    Score,
    Scored,
    Train,
    Trained,
)
from shoal.core.exchange.parts import (
    MAX_LATENTS,
    Descriptor,
    Evidence,
    FloatArray,
    Moments,
    NoisySums,
    PrivacySettings,
    Prototypes,
    Scores,
)
from shoal.core.exchange.payload import Payload, decode, fields_of, tensors_of
from shoal.core.exchange.summing import Masked, TrainMasked
from shoal.core.exchange.tensors import Manifest, check_finite, check_manifest, digest, layout, manifest_of
from shoal.core.privacy.cost import Cost, epsilon_of, group, rho_of
from shoal.core.privacy.sums import counts
from shoal.core.types import Tensors

MAX_CLASSES = 1 << 24
GRAPHS = frozenset({"graph", "encoder"})
"""What may come with initial weights."""
MAX_VALUE = 1e40
"""Above every float32, which latents are; squares of such values and sums of them still fit."""


def largest_upload(task: Message, initial: int) -> int:
    """Bytes of the largest blob that an answer to `task` can need; nothing larger is accepted. initial: the
    most that initial weights may have, where a device is asked for them."""
    if task.reply is Built:
        return initial
    if not any({Tensors, tuple[Tensors, ...]} & set(types) for types, _ in fields_of(task.reply).values()):
        return 0
    return max((layout(manifest)[1] for manifest in _manifests(task)), default=0)


def most_models(task: Message) -> int:
    """How many models an answer to `task` can have. A graph that comes with the first ones counts as one."""
    return (task.models or 1) + len(GRAPHS) if isinstance(task, Build) else max(len(_manifests(task)), 1)


def admit_payload(task: Message, payload: Payload) -> None:
    """Check the shape of an answer before its tensors are opened. Raises BadPayload."""
    if payload.kind != task.reply.kind:
        raise BadPayload(
            f"a {payload.kind!r} report answers a {task.kind!r} task", f"expected: {task.reply.kind}"
        )
    decode(payload, {payload.kind: task.reply}, lambda weights: {})
    expected = _manifests(task)
    found = payload.weights()
    most = most_models(task) - (len(GRAPHS - {*payload.parts}) if isinstance(task, Build) else 0)
    if len(found) > most:
        raise BadPayload(f"{len(found)} models answer where {most} can", "answer for each model once")
    for weights in found:
        if task.reply is not Built:
            check_manifest(weights.manifest, expected[0])


def admit_message(task: Message, reply: Message) -> None:
    """Check the values of an answer. Raises BadPayload, naming what is wrong."""
    for name, tensors in tensors_of(reply):
        check_finite(tensors, f"{reply.kind}.{name}")
    for name in fields_of(type(reply)):
        value = getattr(reply, name)
        if isinstance(value, Scores):
            _check_range("a loss", value.losses)
        for number in value if isinstance(value, tuple) else (value,):
            if isinstance(number, float) and not abs(number) <= MAX_VALUE:  # `not <=` also catches NaN
                raise BadPayload(
                    f"{reply.kind}.{name} is {number}",
                    "if training diverged, lower learning_rate or set it to auto; or look at the data",
                )
    examples = getattr(reply, "examples", 1)
    if not 1 <= examples <= MAX_EXAMPLES:
        raise BadPayload(f"{reply.kind}.examples is {examples}", "a device needs at least one sample")
    task.admit(reply)
    if isinstance(reply, Evaluated) and not 0.0 <= reply.accuracy <= 1.0:
        raise BadPayload(f"{reply.kind}.accuracy is {reply.accuracy}, not between 0 and 1")
    if isinstance(reply, Evaluated) and not all(
        0.0 <= (each or 0.0) <= 1.0 for each in (reply.f1, reply.auc)
    ):
        raise BadPayload(f"{reply.kind} has f1 {reply.f1} and auc {reply.auc}, not between 0 and 1")
    if isinstance(reply, Evaluated):
        _admit_baseline(reply)
        _admit_bounds(task.bounds if isinstance(task, Evaluate) else "", reply)
    if isinstance(task, Train | TrainMasked) and isinstance(reply, Trained | Masked):
        _admit_descriptor(task.projector, task.classes, task.privacy, reply.descriptor)
    elif isinstance(reply, Trained) and reply.descriptor is not None:  # of a task of the algorithm's own
        raise BadPayload("a descriptor was not asked for")
    if isinstance(reply, Trained):
        _admit_private(getattr(task, "private", None), reply)
        if reply.private is not None and reply.held_out is not None:
            raise BadPayload("a figure of held-out samples came without the guarantee that the weights have")
    if isinstance(task, Describe) and isinstance(reply, Described):
        _admit_descriptor(task.projector, task.classes, task.privacy, reply.descriptor)
    if isinstance(task, Score) and isinstance(reply, Scored):
        _admit_scores(task, reply.scores)
    if isinstance(task, Represent) and isinstance(reply, Represented):
        _admit_prototypes(task, reply.prototypes)


def admit_evidence(question: Message, evidence: Evidence) -> None:
    """Check the evidence of a newcomer: it has to answer the question. Raises BadPayload."""
    fields = fields_of(question.reply)
    expected = [name for name, (types, _) in fields.items() if type(evidence) in types]
    if not expected:
        what = type(evidence).__name__
        raise BadPayload(
            f"got {what}, expected a {question.reply.kind!r} answer", "ask again which evidence is needed"
        )
    reply: Any = question.reply
    examples = {"examples": 1} if "examples" in fields else {}  # a newcomer does not report how many
    admit_message(question, reply(**{expected[0]: evidence}, **examples))


def _admit_private(asked: PrivateTraining | None, reply: Trained) -> None:
    """Check a claimed privacy cost. It protects only the device, which harms itself with a wrong claim."""
    done = reply.private
    if (asked is None) != (done is None) or (done is None) != (reply.curve is None):
        raise BadPayload(f"DP-SGD was {'not ' if asked is None else ''}asked for, and its cost goes with it")
    if asked is None or done is None or reply.curve is None:
        return
    if done.clip != asked.clip or (asked.noise and done.noise < asked.noise):
        raise BadPayload(f"trained with {done}, but {asked} was asked for")
    try:
        cost = Cost(curve=reply.curve)
    except ValueError as error:
        raise BadPayload(f"the cost of DP-SGD: {error}") from None
    if not any(cost.curve):
        raise BadPayload("the DP-SGD report has zero privacy cost")


def _admit_baseline(reply: Evaluated) -> None:
    """One of C classes is the commonest of n samples with a share of 1 / C or more, and 1 / n or more."""
    share, classes = reply.baseline, reply.classes
    if share is not None and reply.rho is not None:
        raise BadPayload("an accuracy with a guarantee comes with the exact share of a class")
    if not 0 <= classes <= MAX_CLASSES:
        raise BadPayload(f"{reply.kind} tells {classes} classes apart", f"0 to {MAX_CLASSES} are taken")
    least = 1.0 / min(classes, reply.examples) if classes else 0.0
    if share is not None and not least - 1e-9 <= share <= (1.0 if classes else 0.0):
        raise BadPayload(f"{reply.kind} has a commonest of {classes} classes with a share of {share}")


def _admit_bounds(asked: str, reply: Evaluated) -> None:
    if bool(asked) != (reply.bounds is not None):
        raise BadPayload(f"latent bounds were {'' if asked else 'not '}asked for")
    if reply.bounds is None:
        return
    if not 1 <= reply.latents <= MAX_LATENTS:
        raise BadPayload(f"{reply.latents} latents", f"1 to {MAX_LATENTS} are taken")
    if reply.bounds.low.size != 1:
        raise BadPayload(f"expected 1 pair of latent bounds, got {reply.bounds.low.size}")
    if reply.bounds.epoch != 0:
        raise BadPayload(f"latent bounds of encoder {reply.bounds.epoch}, expected 0")
    _check_range("latent bounds", reply.bounds.low, reply.bounds.high)


def _admit_descriptor(
    projector: Tensors | None, classes: int, privacy: PrivacySettings, descriptor: Descriptor | None
) -> None:
    if projector is None or descriptor is None:
        # A device may have too few samples for a descriptor with a guarantee.
        if (projector is None) != (descriptor is None) and not (projector and privacy.calibrated):
            raise BadPayload(f"a descriptor was {'not ' if projector is None else ''}asked for")
        return
    if descriptor.projector != digest(projector):
        raise BadPayload("the descriptor was made with another projector", "fetch the task's own projector")
    dims = projector["components"].shape[0]
    fits = descriptor.classes == classes
    if privacy.calibrated:
        # A device whose classes would drown in noise sends only the row of all samples. One that has already
        # released its classes sends that release again where only the row of all samples is asked for.
        fits = fits or descriptor.classes == 0 or classes == 0
    if not fits or descriptor.dims != dims:
        raise BadPayload(
            f"the descriptor has {descriptor.classes} classes and {descriptor.dims} dimensions, "
            f"expected {classes} and {dims}"
        )
    if descriptor.privacy != privacy:
        raise BadPayload(f"the descriptor was released with {descriptor.privacy}, {privacy} was asked for")
    found = descriptor.statistics
    if isinstance(found, NoisySums):
        _admit_sums(projector, privacy, found)
    else:
        _admit_moments(privacy, found)


def _admit_scores(task: Score, scores: Scores) -> None:
    if len(scores.losses) != len(task.models):
        raise BadPayload(f"expected the losses of {len(task.models)} models, got {len(scores.losses)}")
    if not 1 <= scores.examples <= MAX_EXAMPLES:
        raise BadPayload(f"losses over {scores.examples} samples", "a device needs at least one sample")


def _admit_prototypes(task: Represent, prototypes: Prototypes) -> None:
    if not task.by_class and prototypes.classes.tolist() != [0.0]:
        raise BadPayload("expected one mean embedding of all samples, under class 0")
    if (prototypes.counts < 1.0).any() or prototypes.counts.sum() > MAX_EXAMPLES:
        raise BadPayload("prototypes: a class has no samples, or too many")
    if unlike := task.unlike(prototypes.encoder):
        raise BadPayload(f"prototypes: {unlike}", SAME_ENCODER)
    _check_range("a mean embedding", prototypes.means)


def _admit_moments(privacy: PrivacySettings, moments: Moments) -> None:
    _check_range("the descriptor", moments.means, moments.deviations)
    _admit_counts(moments.counts)
    # Counts have no noise in any mode. Noise may take a small deviation below zero.
    if (moments.counts < 0).any() or (privacy.rules.exact and (moments.deviations < 0).any()):
        raise BadPayload("the descriptor has negative counts or deviations")


def _admit_counts(found: FloatArray) -> None:
    if (found > MAX_EXAMPLES).any():
        raise BadPayload("the descriptor counts more samples than a device can have")


def _admit_sums(projector: Tensors, privacy: PrivacySettings, sums: NoisySums) -> None:
    _admit_counts(counts(sums))
    if "radius" not in projector or sums.radius != float(projector["radius"]):
        raise BadPayload(f"latents were shortened to {sums.radius}, which is not the projector's radius")
    holds = epsilon_of(group(rho_of(sums.sigma), privacy.group_size), privacy.delta)
    if holds > privacy.epsilon * (1.0 + 1e-9):
        raise BadPayload(f"noise of {sums.sigma:g} gives epsilon {holds:g}, not {privacy.epsilon:g}")
    check_sums(sums)


def _check_range(what: str, *arrays: FloatArray) -> None:
    for array in arrays:
        if (np.abs(array) > MAX_VALUE).any():
            raise BadPayload(f"{what} has values above {MAX_VALUE:g}", "look at the device's data")


def _manifests(task: Message) -> list[Manifest]:
    """The manifests of the models in a task, the one to train first; or of what answers it, if that is no
    model."""
    if isinstance(task, TrainMasked | TrainEncoded):
        return [task.answer]
    return [manifest_of(tensors) for name, tensors in tensors_of(task) if name != "projector"]
