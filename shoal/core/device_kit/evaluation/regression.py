"""Regression: data whose label is a number, not a class.

The network's output is the prediction, (B,) or (B, 1). The loss is the mean squared error, unless the
learner has its own. What stands as accuracy, from 0 to 1, is the share of the targets' variance that the
model explains (R^2), and 0 for a model that is worse than their mean. A descriptor, which has a part for
each class, has one for each of four levels of the targets (`shoal.core.data.scale.levels`), so groups that
differ in how targets depend on samples are found; where the run has no scale, it describes the samples only.
"""

from torch import Tensor, nn

from shoal.core.device_kit.learner import shape_of
from shoal.core.device_kit.samples import Samples
from shoal.core.errors import DeviceFault, LearnerFault


def predictions(model: nn.Module, x: Tensor) -> Tensor:
    """model(x), (B,). Raises LearnerFault for another shape."""
    found: object = model(x)
    if isinstance(found, Tensor) and found.shape == (len(x), 1):
        return found[:, 0]
    if not isinstance(found, Tensor) or found.shape != (len(x),):
        raise LearnerFault(
            f"the network gives {shape_of(found)} for {len(x)} samples, not one number for each",
            f"build a network with one output: ({len(x)}, 1), or provide a loss() and an evaluate()",
        )
    return found


def squared_error(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """The mean squared error over the batch. y: (B,) float32."""
    return (predictions(model, x) - y).square().mean()


def explained(error: float, targets: Tensor) -> float:
    """R^2 from the mean squared error, at least 0; where all targets are equal, 1 without error, else 0."""
    spread = float(targets.double().var(correction=0))
    if spread == 0.0:
        return float(error == 0.0)
    return max(0.0, 1.0 - error / spread)


def refuse_targets(samples: Samples, what: str) -> None:
    """Raise DeviceFault where the labels are numbers and not classes."""
    if samples.targets is not None:
        raise DeviceFault(
            f"{what} needs classes, and the labels of these data are numbers",
            "use an algorithm with one model for each device, such as flux, feroma, ifca or fedavg, "
            "without DP-SGD",
        )
