"""FLUX's own message: the start of a round in FLUX-soft."""

from dataclasses import dataclass
from typing import ClassVar

from shoal.core.exchange.messages import Message, PrivateTraining, Trained, TrainingSettings
from shoal.core.types import Tensors


@dataclass(frozen=True, eq=False)
class TrainMixture(Message):
    """Train from the weighted mean of `models`. weights: one for each model; they sum to 1. private: as in
    `Train`.

    The mean is taken on the device: the clusters' models are the same for all devices, so the server stores
    and sends one blob for each cluster instead of one for each device.
    """

    kind: ClassVar[str] = "flux_train_mixture"
    reply: ClassVar[type[Message]] = Trained
    models: tuple[Tensors, ...]
    weights: tuple[float, ...]
    settings: TrainingSettings
    cluster: str = ""
    private: PrivateTraining | None = None
