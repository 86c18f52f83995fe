"""The device half of HACCS: the standard one, and histograms."""

from typing import TYPE_CHECKING

import torch

from shoal.core.device_kit import standard
from shoal.core.errors import BadPayload, DataFault
from shoal.core.exchange.messages import Message
from shoal_lab.algorithms.haccs.messages import Count, Counted

if TYPE_CHECKING:
    from shoal.core.device_kit.context import DeviceContext

MAX_VALUES = 1 << 17
"""The largest number of values in one message."""


def perform(message: Message, context: "DeviceContext") -> Message:
    return _count(message, context) if isinstance(message, Count) else standard.perform(message, context)


def _count(message: Count, context: "DeviceContext") -> Counted:
    if not (
        message.classes >= 1 and message.bins >= 0 and message.classes * max(message.bins, 1) <= MAX_VALUES
    ):
        raise BadPayload(
            f"a histogram of {message.classes} classes and {message.bins} bins cannot be made",
            "ask for fewer",
        )
    samples = context.samples("train")
    labels = samples.labels
    if samples.classes > message.classes:
        raise DataFault(
            f"the data have the label {samples.classes - 1}",
            f"this run has the classes 0 to {message.classes - 1}",
        )
    context.unprotected("histograms of the samples as they are")
    if not message.bins:
        counts = torch.bincount(labels, minlength=message.classes)
    else:
        inputs = samples.x.flatten(1).double()
        places = (inputs * message.bins).floor().clamp(0, message.bins - 1).long()
        cells = labels[:, None] * message.bins + places
        counts = torch.bincount(cells.flatten(), minlength=message.classes * message.bins)
    return Counted(tuple(counts.double().tolist()), len(samples))
