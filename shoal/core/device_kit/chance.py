"""Torch's chance for one piece of work, which leaves no trace in the rest of the process."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Inside, torch's global generators start from `seed`; afterwards they go on as if nothing had happened.

    device: a GPU whose generator is meant too; the processor's always is.
    """
    gpus = [torch.cuda.current_device()] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=gpus):
        torch.default_generator.manual_seed(seed)
        if gpus:
            torch.cuda.manual_seed(seed)
        yield
