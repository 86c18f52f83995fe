"""A descriptor on its way out of a device: by the bench's account, or past it where no guarantee is asked."""

from collections.abc import Callable, Sequence

from torch import nn

from fedcore.data.version import Numbers
from fedcore.errors import BadPayload
from fedcore.local.bench import Bench
from fedcore.local.describe import check_classes, describe, sums
from fedcore.local.learner import Learner
from fedcore.local.samples import Samples
from fedcore.parts import Descriptor, PrivacySettings
from fedcore.privacy.account import Order
from fedcore.privacy.modes import terms
from fedcore.privacy.moments import Moments
from fedcore.privacy.release import release
from fedcore.privacy.statement import OPEN
from fedcore.privacy.sums import ExactSums
from fedcore.tensors import digest
from fedcore.types import Tensors

Extract = Callable[[Learner, nn.Module, Sequence[Samples], Tensors, int, Numbers | None], Moments]
"""What `fedcore.local.describe` takes: learner, its network, the parts' samples, the projector, U, and which
samples are the same one."""
ALL = ("train", "held_out")
"""All that can be described, and so what a budget is about. A test part never is."""


def described(
    bench: Bench,
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
    leave without a guarantee; and what `fedcore.local.describe` raises.
    """
    samples = [bench.samples(part) for part in parts]
    data = bench.version(ALL, labels=False)
    if not privacy.calibrated:
        bench.account.unprotected(OPEN[privacy.mode], data)
        # The papers know nothing of repeated samples.
        distinct = bench.distinct(parts, labels=classes > 0) if privacy.mode == "off" else None
        found = moments(bench.learner, bench.load(encoder), samples, projector, classes, distinct)
        return release(found, privacy, digest(projector), bench.noise)
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
        bench.version(parts, labels=agreed.classes > 0),
    )

    def exact() -> ExactSums:
        distinct = bench.distinct(parts, labels=agreed.classes > 0)
        return sums(bench.learner, bench.load(encoder), samples, projector, agreed.classes, distinct)

    return bench.account.release(order, exact)
