"""A description of data, released as a privacy mode asks, whatever computes the latents."""

from collections.abc import Callable, Sequence

from shoal.core.data.version import Numbers
from shoal.core.errors import BadPayload
from shoal.core.exchange.parts import Descriptor, PrivacySettings
from shoal.core.exchange.tensors import digest
from shoal.core.inference.context import DataContext
from shoal.core.inference.moments import check_classes
from shoal.core.privacy.noise.chance import Entropy
from shoal.core.privacy.payment import description
from shoal.core.privacy.release import ExactMoments, release, release_sums
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
    if not privacy.calibrated:
        context.unprotected(OPEN[privacy.mode])
        # The papers do not consider repeated samples.
        distinct = context.distinct(parts, labels=classes > 0) if privacy.rules.exact else None
        return release(moments(distinct), privacy, digest(projector), context.noise)
    if "radius" not in projector:
        raise BadPayload(f"privacy mode {privacy.mode} needs a projector with a radius")
    check_classes(classes)
    agreed = terms(privacy, sum(len(context.part(part)) for part in parts), classes)
    hashed = digest(projector)

    def exact() -> ExactSums:
        return sums(agreed.classes, context.distinct(parts, labels=agreed.classes > 0))

    def noised(found: ExactSums, entropy: Entropy) -> Descriptor:
        return release_sums(found, privacy, agreed, hashed, entropy)

    asked = description(privacy, agreed, digest(encoder), hashed, context.version())
    return context.pay(asked, exact, noised)
