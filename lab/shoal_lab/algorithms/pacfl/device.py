"""The device half of PACFL: the standard one, and the subspace of its samples."""

from typing import TYPE_CHECKING

import torch

from shoal.core.device_kit import standard
from shoal.core.errors import BadPayload
from shoal.core.exchange.messages import Message
from shoal_lab.algorithms.pacfl.messages import Span, Spanned

if TYPE_CHECKING:
    from shoal.core.device_kit.context import DeviceContext

MAX_VALUES = 1 << 17
"""The largest number of values in one message."""


def perform(message: Message, context: "DeviceContext") -> Message:
    return _span(message, context) if isinstance(message, Span) else standard.perform(message, context)


def _span(message: Span, context: "DeviceContext") -> Spanned:
    samples = context.samples("train")
    rows = samples.x.flatten(1).float()
    groups = [rows]
    if message.by_class:
        present = sorted(set(samples.labels.tolist()))
        groups = [rows[samples.labels == label] for label in present]
    if not 1 <= message.vectors <= MAX_VALUES // (rows.shape[1] * len(groups)):
        raise BadPayload(
            f"{message.vectors} singular vectors of {rows.shape[1]} values cannot be sent for {len(groups)} "
            "groups of samples",
            f"ask for at least one, and for at most {MAX_VALUES} values in all",
        )
    context.unprotected("singular vectors of samples as they are")
    found = [torch.linalg.svd(own.double(), full_matrices=False).Vh[: message.vectors] for own in groups]
    return Spanned(tuple(torch.cat(found).flatten().tolist()), rows.shape[1], len(samples))
