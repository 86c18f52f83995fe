"""Training of which only some tensors change, or leave in fewer bytes."""

from collections.abc import Callable, Iterator, Set
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np
from torch import nn

from shoal.core.device_kit.learner import manifest_of_network
from shoal.core.errors import BadPayload, LearnerFault
from shoal.core.exchange.encoding.messages import TrainedEncoded, TrainEncoded
from shoal.core.exchange.encoding.updates import Merged, encoded, numbers_of
from shoal.core.exchange.messages import Train, Trained
from shoal.core.exchange.tensors import manifest_of
from shoal.core.types import Array, Tensors

if TYPE_CHECKING:
    from shoal.core.device_kit.context import DeviceContext

CARRIED = "encoding.carried"
"""What the encoding of one round lost, in the memory of the next one."""


def train(
    message: TrainEncoded, context: "DeviceContext", plainly: Callable[[Train, "DeviceContext"], Trained]
) -> TrainedEncoded:
    """The answer to a task. plainly: trains a whole model.

    Raises BadPayload if the tensors are not this network's, or are asked for with a guarantee, LearnerFault
    if none of them could train.
    """
    if message.private is not None:  # what is carried may have none, and the ledger would name other bytes
        raise BadPayload("weights with a guarantee leave as they are, in no encoding", "set encoding=full")
    whole: Tensors = message.model
    if message.frozen is not None:
        whole = Merged(manifest_of_network(context.model), message.model, message.frozen)
    with only(context.model, set(message.model)):
        trained = plainly(message.plain(whole), context)
    own = {name: trained.model[name] for name in message.model}
    carried = _carried(context.memory, numbers_of(manifest_of(own)))
    update, left = encoded(own, message.model, message.encoding, carried)
    if left is not None:
        context.remember({**(context.memory or {}), CARRIED: left})
    return TrainedEncoded(
        update, trained.examples, trained.loss, trained.descriptor, held_out=trained.held_out
    )


@contextmanager
def only(model: nn.Module, names: Set[str]) -> Iterator[None]:
    """Within the block, no weights but these train. What the author has frozen stays so."""
    frozen = [
        weight for name, weight in model.named_parameters() if weight.requires_grad and name not in names
    ]
    if not any(weight.requires_grad and name in names for name, weight in model.named_parameters()):
        raise LearnerFault(
            "none of the tensors that this run trains are weights that train",
            "look at the run's parameter trainable, and at requires_grad in build()",
        )
    for weight in frozen:
        weight.requires_grad_(False)
    try:
        yield
    finally:
        for weight in frozen:
            weight.requires_grad_(True)


def _carried(memory: Tensors | None, numbers: int) -> Array | None:
    """What the last round left, if it is of a model of this size: the memory may be of an earlier one."""
    found = (memory or {}).get(CARRIED)
    if found is None or found.shape != (numbers,) or not np.isfinite(found).all():
        return None
    return found
