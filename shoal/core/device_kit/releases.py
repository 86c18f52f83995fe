"""A descriptor on its way out of a device: by the bench's account, or past it where no guarantee is asked."""

from collections.abc import Callable, Sequence

from torch import nn

from shoal.core.data.version import Numbers
from shoal.core.device_kit.context import DeviceContext
from shoal.core.device_kit.describe import check_classes, describe, sums
from shoal.core.device_kit.learner import Learner
from shoal.core.device_kit.samples import Samples
from shoal.core.errors import BadPayload
from shoal.core.exchange.parts import Descriptor, PrivacySettings
from shoal.core.exchange.tensors import digest
from shoal.core.privacy.accountant import Order
from shoal.core.privacy.release import ExactMoments, release
from shoal.core.privacy.report import OPEN
from shoal.core.privacy.sums import ExactSums
from shoal.core.privacy.terms import terms
from shoal.core.types import Tensors

Extract = Callable[[Learner, nn.Module, Sequence[Samples], Tensors, int, Numbers | None], ExactMoments]
"""What `shoal.core.device_kit.describe` takes: learner, its network, the parts' samples, the projector, U,
and which samples are the same one."""
ALL = ("train", "held_out")
"""All that can be described, and so what a budget is about. A test part never is."""


def described(
    context: DeviceContext,
    encoder: Tensors,
    projector: Tensors,
    parts: Sequence[str],
    classes: int,
    privacy: PrivacySettings,
    moments: Extract = describe,
) -> Descriptor:
    """The descriptor of these parts by `encoder`, released as `privacy` asks. classes: U, or 0.

    moments: how they are taken where no guarantee is asked.

    Raises Refused where the samples are too few, the owner's budget has no room, or the owner lets nothing
    leave without a guarantee; and what `shoal.core.device_kit.describe` raises.
    """
    samples = [context.samples(part) for part in parts]
    data = context.version(ALL, labels=False)
    if not privacy.calibrated:
        context.account.unprotected(OPEN[privacy.mode], data)
        # The papers know nothing of repeated samples.
        distinct = context.distinct(parts, labels=classes > 0) if privacy.rules.exact else None
        found = moments(context.learner, context.load(encoder), samples, projector, classes, distinct)
        return release(found, privacy, digest(projector), context.noise)
    if "radius" not in projector:
        raise BadPayload(f"privacy mode {privacy.mode} needs a projector with a radius")
    check_classes(classes)
    agreed = terms(privacy, sum(map(len, samples)), classes)
    purpose = f"data described, with {agreed.classes} classes" if agreed.classes else "data described"
    order = Order(
        purpose,
        privacy,
        agreed,
        digest(encoder),
        digest(projector),
        data,
        context.version(parts, labels=agreed.classes > 0),
    )

    def exact() -> ExactSums:
        distinct = context.distinct(parts, labels=agreed.classes > 0)
        return sums(context.learner, context.load(encoder), samples, projector, agreed.classes, distinct)

    return context.account.release(order, exact)
