"""The device half of FLUX: the standard one, and training from a mixture."""

from typing import TYPE_CHECKING

from fedcore.algorithms.flux.messages import TrainMixture
from fedcore.errors import BadPayload
from fedcore.local import standard
from fedcore.messages import Message, Train
from fedcore.tensors import weighted_mean
from fedcore.types import Tensors

if TYPE_CHECKING:
    from fedcore.local.bench import Bench


def perform(message: Message, bench: "Bench") -> Message:
    if isinstance(message, TrainMixture):
        message = Train(mixture(message), message.settings, message.cluster, private=message.private)
    return standard.perform(message, bench)


def mixture(message: TrainMixture) -> Tensors:
    """Where the device starts from: the weighted mean of the clusters' models."""
    if len(message.models) != len(message.weights) or not message.models:
        raise BadPayload(f"{len(message.models)} models came with {len(message.weights)} weights")
    return weighted_mean(zip(message.models, message.weights, strict=True))
