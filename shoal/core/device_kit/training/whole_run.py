"""What a whole run will cost a device, computed before its first task from the terms that the server sent.

The server could lie about the terms. Nothing depends on them but what the owner sees beforehand: every
release is checked and paid for by itself, whatever was said before.
"""

from typing import Any

from shoal.core.algorithm.asks import Asks, WholeRun, asks_of, read_terms
from shoal.core.algorithm.training import settings_of_training
from shoal.core.device_kit.context import DeviceContext
from shoal.core.device_kit.training import private
from shoal.core.errors import BadPayload, DeviceFault, TooFewSamples
from shoal.core.exchange.messages import PrivateTraining
from shoal.core.privacy.cost import Cost, total
from shoal.core.privacy.terms import terms


def whole_run(text: str, context: DeviceContext) -> WholeRun:
    """What the run with these terms asks of this device. Without Opacus, DP-SGD is not counted; it is refused
    when it is asked for, as are descriptors of too few samples.

    Raises BadPayload and ConfigError for terms that this version cannot read.
    """
    card, parameters = read_terms(text)
    asks = asks_of(card, parameters)
    try:
        costs = [_times(asks.accuracies, Cost(asks.rho))]
        if asks.private:
            costs.append(_training(parameters, asks, len(context.part("train"))))
    except (OverflowError, ValueError):  # of as many rounds as no run has
        raise BadPayload("what the run would cost is beyond all numbers", "set fewer rounds") from None
    if asks.descriptor is not None:
        try:
            samples = sum(len(context.part(part)) for part in context.usable)
            costs.append(terms(asks.descriptor, samples, parameters.classes).cost)
        except TooFewSamples:
            pass
    return WholeRun(card.name, asks, total(costs))


def _times(count: int, cost: Cost) -> Cost:
    return Cost(count * cost.rho, tuple(count * each for each in cost.curve))


def _training(parameters: Any, asks: Asks, samples: int) -> Cost:
    asked = PrivateTraining(
        parameters.dp_clip, parameters.dp_noise, parameters.dp_epsilon, parameters.dp_delta, asks.lessons
    )
    settings = settings_of_training(parameters)
    try:
        return _times(asks.lessons, private.terms(asked, settings, samples).cost)
    except DeviceFault:
        return Cost()
