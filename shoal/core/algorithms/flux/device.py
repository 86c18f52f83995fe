"""The device half of FLUX: the standard one, and training from a mixture."""

from typing import TYPE_CHECKING

from shoal.core.algorithms.flux.messages import TrainMixture
from shoal.core.device_kit import standard
from shoal.core.errors import BadPayload
from shoal.core.exchange.messages import Message, Train
from shoal.core.exchange.tensors import weighted_mean
from shoal.core.types import Tensors

if TYPE_CHECKING:
    from shoal.core.device_kit.context import DeviceContext


def perform(message: Message, context: "DeviceContext") -> Message:
    if isinstance(message, TrainMixture):
        message = Train(mixture(message), message.settings, message.cluster, private=message.private)
    return standard.perform(message, context)


def mixture(message: TrainMixture) -> Tensors:
    """The model that the device starts from: the weighted mean of the clusters' models."""
    if len(message.models) != len(message.weights) or not message.models:
        raise BadPayload(f"{len(message.models)} models came with {len(message.weights)} weights")
    return weighted_mean(zip(message.models, message.weights, strict=True))
