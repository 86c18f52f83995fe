"""A description of data, released as a privacy mode asks, whatever computes the latents."""

from collections.abc import Callable, Sequence

from shoal.core.data.version import Numbers
from shoal.core.errors import BadPayload
from shoal.core.exchange.parts import Descriptor, PrivacySettings
from shoal.core.exchange.tensors import digest
from shoal.core.inference.context import DataContext
from shoal.core.inference.moments import check_classes
from shoal.core.privacy.accountant import Order
from shoal.core.privacy.release import ExactMoments, release
from shoal.core.privacy.report import OPEN
from shoal.core.privacy.sums import ExactSums
from shoal.core.privacy.terms import terms
from shoal.core.types import Tensors


def released(
    context: DataContext,
    encoder: Tensors,
    projector: Tensors,
    parts: Sequence[str],
    classes: int,
    privacy: PrivacySettings,
    moments: Callable[[Numbers | None], ExactMoments],
    sums: Callable[[int, Numbers], ExactSums],
) -> Descriptor:
    """The descriptor of these parts by `encoder`. classes: U, or 0.

    moments: takes the moments where no guarantee is asked; its argument says which samples are identical, or
    is None where that does not matter. sums: takes the sums of a calibrated mode, of this many classes.

    Raises Refused where the samples are too few, the owner's budget has no room, or the owner lets nothing
    leave without a guarantee; and what `moments` and `sums` raise.
    """
    data = context.version()
    if not privacy.calibrated:
        context.account.unprotected(OPEN[privacy.mode], data)
        # The papers do not consider repeated samples.
        distinct = context.distinct(parts, labels=classes > 0) if privacy.rules.exact else None
        return release(moments(distinct), privacy, digest(projector), context.noise)
    if "radius" not in projector:
        raise BadPayload(f"privacy mode {privacy.mode} needs a projector with a radius")
    check_classes(classes)
    agreed = terms(privacy, sum(len(context.part(part)) for part in parts), classes)
    purpose = f"data described, with {agreed.classes} classes" if agreed.classes else "data described"
    order = Order(purpose, privacy, agreed, digest(encoder), digest(projector), data)

    def exact() -> ExactSums:
        return sums(agreed.classes, context.distinct(parts, labels=agreed.classes > 0))

    return context.account.release(order, exact)
