"""The owner's learner as networks that only predict."""

from collections.abc import Callable

from fedclient.config import ComputeConfig, LearnerConfig
from fedclient.faults import torch_required
from shoal.core.inference.network import Network


def maker(config: LearnerConfig, compute: ComputeConfig) -> Callable[[], Network]:
    """Makes a network of this learner, without weights of a run, each time it is called. Raises DeviceFault
    without PyTorch, LearnerFault."""
    with torch_required():
        from fedclient.work.runtime import open_learner, settle_torch
        from shoal.core.device_kit.context import choose_device
        from shoal.core.device_kit.network import TorchNetwork
    settle_torch(compute)
    learner, where = open_learner(config), choose_device(compute.device)
    return lambda: TorchNetwork(learner, learner.module(seed=0).to(where), where)
