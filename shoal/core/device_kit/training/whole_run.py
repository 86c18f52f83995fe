"""What a whole run will cost a device, computed before its first task from the terms that the server sent.

The server could lie about the terms. Nothing depends on them but what is reserved, and what the owner sees
beforehand: every release is checked and paid for by itself, whatever was said before.
"""

from shoal.core.device_kit.context import DeviceContext
from shoal.core.device_kit.training import private
from shoal.core.errors import BadPayload, DeviceFault, TooFewSamples
from shoal.core.exchange.messages import PrivateTraining, TrainingSettings
from shoal.core.privacy.asks import Asks, RunTerms, WholeRun
from shoal.core.privacy.cost import Cost, total
from shoal.core.privacy.payment import description
from shoal.core.privacy.terms import terms


def whole_run(run: RunTerms, context: DeviceContext) -> WholeRun:
    """What the run with these terms asks of this device. Without Opacus, DP-SGD is not counted; it is refused
    when it is asked for, as are descriptors of too few samples.

    Raises BadPayload where the cost is no number.
    """
    asks, described = run.asks, None
    try:
        costs = [_times(asks.accuracies, Cost(asks.rho))]
        if asks.training is not None:
            costs.append(_training(asks, asks.training, len(context.part("train"))))
    except (OverflowError, ValueError):  # of as many rounds as no run has
        raise BadPayload("what the run would cost is beyond all numbers", "set fewer rounds") from None
    if asks.descriptor is not None:
        try:
            samples = sum(len(context.part(part)) for part in context.usable)
            agreed = terms(asks.descriptor, samples, asks.classes)
            costs.append(agreed.cost)
            if asks.described_by:
                encoder, projector = asks.described_by
                described = description(asks.descriptor, agreed, encoder, projector, "")
        except TooFewSamples:
            pass
    return WholeRun(run.algorithm, asks, total(costs), described)


def _times(count: int, cost: Cost) -> Cost:
    return Cost(count * cost.rho, tuple(count * each for each in cost.curve))


def _training(asks: Asks, asked: PrivateTraining, samples: int) -> Cost:
    settings = TrainingSettings(epochs=asks.epochs, batch_size=asks.batch_size)
    try:
        return _times(asks.lessons, private.terms(asked, settings, samples).cost)
    except DeviceFault:
        return Cost()
