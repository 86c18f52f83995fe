"""What a report must be before it may touch a model: the answer to its task, of the right shape, and finite.

`admit_payload` looks at the references alone, so that a wrong report costs no byte of tensors;
`admit_message` looks at the values.
"""

import math
from dataclasses import dataclass

import numpy as np

from fedcore.errors import BadPayload
from fedcore.messages import WIDTH, Built, Describe, Described, Evaluate, Evaluated, Message, Train, Trained
from fedcore.parts import MAX_LATENTS, Descriptor, NoisySums, PrivacySettings, Vector
from fedcore.payload import Payload, decode, fields_of, tensors_of
from fedcore.privacy.accounting import epsilon_of, group, rho_of
from fedcore.tensors import Manifest, check_finite, check_manifest, digest, layout, manifest_of
from fedcore.types import Tensors

MAX_EXAMPLES = 1 << 40
MAX_VALUE = 1e40
"""Above every float32, which latents are; squares of such values and sums of them still fit."""


@dataclass(frozen=True)
class Limits:
    """What a report may weigh. model: bytes of initial weights, where a device is asked for them."""

    model: int = 1 << 30


def largest_upload(task: Message, limits: Limits = Limits()) -> int:
    """Bytes of the largest blob that an answer to `task` can need: nothing bigger is to be taken."""
    if task.reply is Built:
        return limits.model
    if not any(Tensors in types for types, _ in fields_of(task.reply).values()):
        return 0
    return max((layout(manifest)[1] for manifest in _manifests(task)), default=0)


def admit_payload(task: Message, payload: Payload) -> None:
    """Check the shape of an answer before its tensors are opened. Raises BadPayload."""
    if payload.kind != task.reply.kind:
        raise BadPayload(f"a {payload.kind!r} report answers a {task.kind!r} task", f"due: {task.reply.kind}")
    decode(payload, {payload.kind: task.reply}, lambda weights: {})
    expected = _manifests(task)
    for weights in payload.weights():
        if task.reply is not Built:
            check_manifest(weights.manifest, expected[0])


def admit_message(task: Message, reply: Message) -> None:
    """Check the values of an answer. Raises BadPayload, naming what is wrong."""
    for name, tensors in tensors_of(reply):
        check_finite(tensors, f"{reply.kind}.{name}")
    for name in fields_of(type(reply)):
        value = getattr(reply, name)
        if isinstance(value, float) and not math.isfinite(value):
            raise BadPayload(f"{reply.kind}.{name} is {value}", "lower the learning rate or look at the data")
    examples = getattr(reply, "examples", 1)
    if not 1 <= examples <= MAX_EXAMPLES:
        raise BadPayload(f"{reply.kind}.examples is {examples}", "a device needs at least one sample")
    if isinstance(reply, Evaluated) and not 0.0 <= reply.accuracy <= 1.0:
        raise BadPayload(f"{reply.kind}.accuracy is {reply.accuracy}, not between 0 and 1")
    if isinstance(task, Evaluate) and isinstance(reply, Evaluated):
        _admit_bounds(task, reply)
    if isinstance(task, Train) and isinstance(reply, Trained):
        _admit_descriptor(task.projector, task.classes, task.privacy, reply.descriptor)
    if isinstance(task, Describe) and isinstance(reply, Described):
        _admit_descriptor(task.projector, task.classes, task.privacy, reply.descriptor)


def _admit_bounds(task: Evaluate, reply: Evaluated) -> None:
    due = task.bounds not in ("", WIDTH)
    if due != (reply.bounds is not None):
        raise BadPayload(f"latent bounds were {'' if due else 'not '}asked for")
    if not task.bounds:
        return
    if not 1 <= reply.latents <= MAX_LATENTS:
        raise BadPayload(f"{reply.latents} latents", f"1 to {MAX_LATENTS} are taken")
    if reply.bounds is None:
        return
    pairs = 1 if task.bounds == "scalar" else reply.latents
    if reply.bounds.low.size != pairs:
        raise BadPayload(f"{pairs} pairs of latent bounds are due, {reply.bounds.low.size} came")
    if reply.bounds.epoch != 0:
        raise BadPayload(f"latent bounds of encoder {reply.bounds.epoch}, where 0 is due")
    _check_range("latent bounds", reply.bounds.low, reply.bounds.high)


def _admit_descriptor(
    projector: Tensors | None, classes: int, privacy: PrivacySettings, descriptor: Descriptor | None
) -> None:
    if projector is None or descriptor is None:
        if (projector is None) != (descriptor is None):
            raise BadPayload(f"a descriptor was {'not ' if projector is None else ''}asked for")
        return
    if descriptor.projector != digest(projector):
        raise BadPayload("the descriptor was made with another projector", "fetch the task's own projector")
    dims = projector["components"].shape[0]
    fits = descriptor.classes == classes
    if privacy.calibrated:
        # A device whose classes would drown in noise sends the row of all samples alone; one that has told of
        # its classes before sends that again where only the row of all samples is asked for.
        fits = fits or descriptor.classes == 0 or classes == 0
    if not fits or descriptor.means.shape[1] != dims:
        raise BadPayload(
            f"the descriptor has {descriptor.classes} classes and {descriptor.means.shape[1]} dimensions, "
            f"{classes} and {dims} are due"
        )
    if descriptor.privacy != privacy:
        raise BadPayload(f"the descriptor was released with {descriptor.privacy}, {privacy} was asked for")
    if descriptor.sums is not None:
        _admit_sums(projector, privacy, descriptor.sums)
    _check_range("the descriptor", descriptor.means, descriptor.deviations)
    if (descriptor.counts > MAX_EXAMPLES).any():
        raise BadPayload("the descriptor counts more samples than a device can have")
    negative = (descriptor.counts < 0).any() or (descriptor.deviations < 0).any()
    if negative and descriptor.privacy.mode == "off":  # noise may take a small value below zero
        raise BadPayload("the descriptor has negative counts or deviations")


def _admit_sums(projector: Tensors, privacy: PrivacySettings, sums: NoisySums) -> None:
    if "radius" not in projector or sums.radius != float(projector["radius"]):
        raise BadPayload(f"latents were shortened to {sums.radius}, which is not the projector's radius")
    holds = epsilon_of(group(rho_of(sums.sigma), privacy.group_size), privacy.delta)
    if holds > privacy.epsilon * (1.0 + 1e-9):
        raise BadPayload(f"noise of {sums.sigma:g} gives epsilon {holds:g}, not {privacy.epsilon:g}")


def _check_range(what: str, *arrays: Vector) -> None:
    for array in arrays:
        if (np.abs(array) > MAX_VALUE).any():
            raise BadPayload(f"{what} has values above {MAX_VALUE:g}", "look at the device's data")


def _manifests(task: Message) -> list[Manifest]:
    """The manifests of the models in a task, the one to train first."""
    return [manifest_of(tensors) for name, tensors in tensors_of(task) if name != "projector"]
