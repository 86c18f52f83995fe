"""For algorithms that train in steps of their own, and not by descent on one loss."""

import torch
from torch import Tensor, nn

from shoal.core.device_kit.learner import Learner
from shoal.core.device_kit.training.train import weights_of
from shoal.core.errors import LearnerFault


def gradients(model: nn.Module, loss: Tensor) -> list[Tensor]:
    """Those of `loss` for `weights_of(model)`; zero where it does not depend on one."""
    found = torch.autograd.grad(loss, weights_of(model), allow_unused=True, materialize_grads=True)
    return list(found)


def refuse_own_training(learner: Learner, algorithm: str) -> None:
    """Raise LearnerFault where the learner brings a train(), of which such an algorithm has no use."""
    if learner.train is not None:
        raise LearnerFault(
            f"{algorithm} trains in its own steps, and {learner.name} has a train()",
            "remove it, and provide what it minimizes as loss()",
        )
