"""What the answers of devices say about models, whatever algorithm asked for them."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from shoal.core.data.trimmed import trimmed_mean
from shoal.core.exchange.messages import Built, HeldOut, Message
from shoal.core.exchange.payload import fields_of
from shoal.core.server_kit.history.records import HELD_OUT, TRAIN
from shoal.core.types import DeviceId, Tensors


@dataclass(frozen=True)
class Figures:
    """What a device's answer says of the model that it used.

    part: of its data; "" where nothing was measured. examples: samples that were used. loss, accuracy: None
    if they did not leave the device. trained: whether the device trained: then the loss is of training, and
    the accuracy that of the model before it, on the held-out part.
    """

    part: str = ""
    examples: int = 0
    loss: float | None = None
    accuracy: float | None = None
    trained: bool = False


def figures_of(task: Message, answer: Message) -> Figures:
    """The figures in a device's answer to a task."""
    accuracy, loss = getattr(answer, "accuracy", None), getattr(answer, "loss", None)
    held_out: HeldOut | None = getattr(answer, "held_out", None)
    if getattr(answer, "private", None) is not None or getattr(answer, "rho", None) is not None:
        loss = None  # with a privacy guarantee it does not leave, and 0 is reported in its place
    measured = TRAIN if accuracy is None else str(getattr(task, "part", HELD_OUT))
    part = "" if loss is None and accuracy is None else measured
    accuracy = accuracy if held_out is None else held_out.accuracy
    return Figures(part, int(getattr(answer, "examples", 0)), loss, accuracy, trains(task))


def trains(message: Message) -> bool:
    """Whether models come back that the data have gone into."""
    types = {each for kinds, _ in fields_of(message.reply).values() for each in kinds}
    return message.reply is not Built and bool(types & {Tensors, tuple[Tensors, ...]})


def mean(figures: Iterable[Figures], name: str) -> float | None:
    """The trimmed mean "loss" or "accuracy", in which each device counts once; None if none reported it."""
    known = [value for each in figures if (value := getattr(each, name)) is not None]
    return float(trimmed_mean(np.array(known))) if known else None


def measured_on(figures: Mapping[DeviceId, Figures]) -> str:
    """The part of their data that devices measured on in a round; if some measured and others trained, the
    measured part."""
    parts = {each.part for each in figures.values()} - {""}
    return next(iter(sorted(parts - {TRAIN})), TRAIN if parts else "")
