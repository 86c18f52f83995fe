"""The device half of HACCS: the standard one, and histograms."""

from typing import TYPE_CHECKING

import torch

from fedcore.algorithms.haccs.messages import Count, Counted
from fedcore.errors import BadPayload, DataFault
from fedcore.local import standard
from fedcore.local.releases import ALL
from fedcore.messages import Message

if TYPE_CHECKING:
    from fedcore.local.bench import Bench

MOST = 1 << 17
"""Numbers that a message can carry."""


def perform(message: Message, bench: "Bench") -> Message:
    return _count(message, bench) if isinstance(message, Count) else standard.perform(message, bench)


def _count(message: Count, bench: "Bench") -> Counted:
    if not (message.classes >= 1 and message.bins >= 0 and message.classes * max(message.bins, 1) <= MOST):
        raise BadPayload(f"a histogram of {message.classes} classes and {message.bins} bins", "ask for fewer")
    samples = bench.samples("train")
    labels = samples.labels
    if samples.classes > message.classes:
        raise DataFault(
            f"the data have the label {samples.classes - 1}",
            f"this run has the classes 0 to {message.classes - 1}",
        )
    bench.account.unprotected("histograms of the samples as they are", bench.version(ALL, labels=False))
    if not message.bins:
        counts = torch.bincount(labels, minlength=message.classes)
    else:
        inputs = samples.x.flatten(1).double()
        places = (inputs * message.bins).floor().clamp(0, message.bins - 1).long()
        cells = labels[:, None] * message.bins + places
        counts = torch.bincount(cells.flatten(), minlength=message.classes * message.bins)
    return Counted(tuple(counts.double().tolist()), len(samples))
