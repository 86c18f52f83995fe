"""How long a device trains in a round, and in which batches, where that is left to it."""

from dataclasses import replace

from shoal.core.exchange.messages import TrainingSettings

PASSES, STEPS = 5, 40
"""Epochs of a round, and the fewest steps that they have to make."""
PARTS, SMALLEST, LARGEST = 20, 8, 64
"""Batches of an epoch, as long as a batch has 8 to 64 samples."""


def fitted(settings: TrainingSettings, samples: int) -> TrainingSettings:
    """The settings for a device with this many samples: numbers instead of 0.

    Example:
        >>> found = fitted(TrainingSettings(epochs=0, batch_size=0), 100)
        >>> found.batch_size, found.epochs
        (8, 5)
    """
    size = settings.batch_size or min(max(samples // PARTS, SMALLEST), LARGEST)
    batches = -(-samples // size)
    return replace(settings, batch_size=size, epochs=settings.epochs or max(PASSES, -(-STEPS // batches)))
