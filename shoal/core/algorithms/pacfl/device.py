"""The device half of PACFL: the standard one, and the subspace of its samples."""

from typing import TYPE_CHECKING

import torch

from shoal.core.algorithms.pacfl.messages import Span, Spanned
from shoal.core.device_kit import standard
from shoal.core.device_kit.describe import ALL
from shoal.core.errors import BadPayload
from shoal.core.exchange.messages import Message

if TYPE_CHECKING:
    from shoal.core.device_kit.context import DeviceContext

MOST = 1 << 17
"""The largest number of values in one message."""


def perform(message: Message, context: "DeviceContext") -> Message:
    return _span(message, context) if isinstance(message, Span) else standard.perform(message, context)


def _span(message: Span, context: "DeviceContext") -> Spanned:
    samples = context.samples("train")
    rows = samples.x.flatten(1).float()
    if not 1 <= message.vectors <= MOST // rows.shape[1]:
        raise BadPayload(
            f"{message.vectors} singular vectors of {rows.shape[1]} values cannot be sent",
            f"ask for at least one, and for at most {MOST} values in all",
        )
    context.account.unprotected("singular vectors of samples as they are", context.version(ALL, labels=False))
    vectors = torch.linalg.svd(rows.double(), full_matrices=False).Vh[: message.vectors]
    return Spanned(tuple(vectors.flatten().tolist()), rows.shape[1], len(samples))
