"""What `auto` means in an algorithm's parameters of training.

The numbers suit data of which nothing is known: AdamW takes steps of one size whatever the scale of the data
is, clipped gradients bear an outlier, and a device with few samples takes as many steps as it needs to learn
from them. They were chosen on digits, Fashion-MNIST and HAPT, and tried on other data; docs/results.md has
what came out. With DP-SGD the same words mean few steps over all samples, since noise is added in each step.
"""

from dataclasses import fields
from typing import Any

from shoal.core.algorithm.parameters import most_rounds
from shoal.core.algorithm.settings import AUTO
from shoal.core.exchange.messages import PrivateTraining, TrainingSettings

RATES = {"sgd": 0.05, "adam": 0.002, "adamw": 0.002}
DECAY, CLIP_NORM = 0.01, 1.0
DP_RATE, ALL = 0.6, 1_000_000
"""Of DP-SGD: the step size without momentum, and a batch of all samples of a device."""


def scales_inputs(parameters: Any) -> bool:
    """Whether a run with these parameters asks for the scale of its devices' inputs. Where weights have a
    guarantee, or only sums of them are seen, no mean of one device's inputs is asked for in the open."""
    return _inputs(parameters) == "scaled" and not _protects_weights(parameters)


def leaves_inputs_raw(parameters: Any) -> bool:
    """Whether it would ask, and does not because it protects weights."""
    return _inputs(parameters) == "scaled" and _protects_weights(parameters)


def counted_by(parameters: Any) -> str:
    """The run of `statistics` in whose scale the inputs count; "" for none.

    Example:
        >>> counted_by(find("fedavg")[0].configure(changes={"inputs": "stats"}))
        'stats'
    """
    found = _inputs(parameters)
    return "" if found in ("scaled", "raw") else found


def _inputs(parameters: Any) -> str:
    found: str = getattr(parameters, "inputs", "raw")
    return found


def _protects_weights(parameters: Any) -> bool:
    return bool(
        getattr(parameters, "private", False)
        or getattr(parameters, "secure_aggregation", False)
        or getattr(parameters, "aggregation", "") == "noised"
    )


def settings_of_training(parameters: Any) -> TrainingSettings:
    """The training settings among an algorithm's parameters, by name, with defaults for those that it lacks.

    Batches and epochs that are `auto` become 0, which leaves them to the device; see
    `shoal.core.device_kit.training.fit`.

    Example:
        >>> found = settings_of_training(find("fedavg")[0].configure())
        >>> found.optimizer, found.learning_rate, found.epochs
        ('adamw', 0.002, 0)
    """
    names = [item.name for item in fields(TrainingSettings) if hasattr(parameters, item.name)]
    given = {name: getattr(parameters, name) for name in names}
    rate, optimizer = given.get("learning_rate", AUTO), given.get("optimizer", "sgd")
    if getattr(parameters, "private", False):
        return TrainingSettings(**given | _private(given, rate))
    if optimizer == AUTO:
        optimizer = "adamw" if rate == AUTO else "sgd"
    found: dict[str, Any] = {name: 0 for name in ("epochs", "batch_size") if given.get(name) == AUTO}
    found |= {"optimizer": optimizer}
    if rate == AUTO:
        found |= {"learning_rate": RATES[optimizer], "clip_norm": CLIP_NORM}
    if given.get("weight_decay") == AUTO:
        found["weight_decay"] = DECAY if optimizer == "adamw" else 0.0
    return TrainingSettings(**given | found)


def private_training(parameters: Any, rounds: int = 0) -> PrivateTraining | None:
    """The DP-SGD settings among an algorithm's parameters, by name; None if they request no DP-SGD.

    The epsilon is for all `rounds` of training in the run; 0 stands for the parameter of that name. Raises
    BadPayload.
    """
    if not (epsilon := getattr(parameters, "dp_epsilon", 0.0)):
        return None
    return PrivateTraining(
        parameters.dp_clip, 0.0, epsilon, parameters.dp_delta, rounds or most_rounds(parameters)
    )


def _private(given: dict[str, Any], rate: float | str) -> dict[str, Any]:
    """DP-SGD: what is not given."""
    found: dict[str, Any] = {"optimizer": "sgd"}
    if rate == AUTO:
        found |= {"learning_rate": DP_RATE, "momentum": 0.0}
    for name, value in (("epochs", 1), ("batch_size", ALL), ("weight_decay", 0.0)):
        if given.get(name) == AUTO:
            found[name] = value
    return found
