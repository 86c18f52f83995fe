"""What a whole run will cost a device, computed before its first task from the terms that the server sent.

The server could lie about the terms. Nothing depends on them but what the owner is told beforehand: every
release is checked and paid for by itself, whatever was said before.
"""

from typing import Any

from shoal.core.algorithm.asks import Asks, WholeRun, asks_of, read_terms
from shoal.core.device_kit.context import DeviceContext
from shoal.core.device_kit.training import private
from shoal.core.errors import DeviceFault, TooFewSamples
from shoal.core.exchange.messages import PrivateTraining, TrainingSettings
from shoal.core.privacy.cost import Cost, total
from shoal.core.privacy.terms import terms


def whole_run(text: str, context: DeviceContext) -> WholeRun:
    """What the run with these terms asks of this device. Without Opacus, DP-SGD is not counted; it is refused
    when it is asked for, as are descriptors of too few samples.

    Raises BadPayload and ConfigError for terms that this version cannot read.
    """
    card, parameters = read_terms(text)
    asks = asks_of(card, parameters)
    costs = [Cost(asks.rho)] * asks.accuracies if asks.rho else []
    if asks.private:
        costs += _training(parameters, asks, len(context.part("train")))
    if asks.descriptor is not None:
        try:
            samples = sum(len(context.part(part)) for part in context.usable)
            costs.append(terms(asks.descriptor, samples, parameters.classes).cost)
        except TooFewSamples:
            pass
    return WholeRun(card.name, asks, total(costs))


def _training(parameters: Any, asks: Asks, samples: int) -> list[Cost]:
    asked = PrivateTraining(
        parameters.dp_clip, parameters.dp_noise, parameters.dp_epsilon, parameters.dp_delta, asks.lessons
    )
    settings = TrainingSettings(epochs=parameters.epochs, batch_size=parameters.batch_size)
    try:
        return [private.terms(asked, settings, samples).cost] * asks.lessons
    except DeviceFault:
        return []
