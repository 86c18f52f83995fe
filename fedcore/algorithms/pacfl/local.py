"""The device half of PACFL: the standard one, and the subspace of its samples."""

from typing import TYPE_CHECKING

import torch

from fedcore.algorithms.pacfl.messages import Span, Spanned
from fedcore.errors import BadPayload
from fedcore.local import standard
from fedcore.local.releases import ALL
from fedcore.messages import Message

if TYPE_CHECKING:
    from fedcore.local.bench import Bench

MOST = 1 << 17
"""Numbers that a message can carry."""


def perform(message: Message, bench: "Bench") -> Message:
    return _span(message, bench) if isinstance(message, Span) else standard.perform(message, bench)


def _span(message: Span, bench: "Bench") -> Spanned:
    samples = bench.samples("train")
    rows = samples.x.flatten(1).float()
    if not 1 <= message.vectors <= MOST // rows.shape[1]:
        raise BadPayload(f"{message.vectors} singular vectors of {rows.shape[1]} values", "ask for fewer")
    bench.account.unprotected("singular vectors of samples as they are", bench.version(ALL, labels=False))
    vectors = torch.linalg.svd(rows.double(), full_matrices=False).Vh[: message.vectors]
    return Spanned(tuple(vectors.flatten().tolist()), rows.shape[1], len(samples))
