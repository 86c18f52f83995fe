"""Our optimizers take the steps of PyTorch's, bit for bit."""

import pytest
import torch
from torch import nn

from shoal.core.device_kit.training.optimizers import SGD, Adam, Optimizer


class TwoParts(nn.Module):
    """Its second part is used, and gets gradients, only while `both` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 3)
        self.both = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.first(x)
        return self.second(found) if self.both else found


class Each:
    """PyTorch's optimizer for each part of a network."""

    def __init__(self, network: nn.Module) -> None:
        parts = [part.parameters() for part in network.children()]
        self.parts = [torch.optim.SGD(weights, lr=0.1, momentum=0.9, fused=True) for weights in parts]

    def zero_grad(self, set_to_none: bool = True) -> None:
        for part in self.parts:
            part.zero_grad(set_to_none)

    def step(self) -> None:
        for part in self.parts:
            part.step()


def made() -> TwoParts:
    with torch.random.fork_rng():
        torch.manual_seed(5)
        return TwoParts()


def steps(network: TwoParts, optimizer: Optimizer, both: list[bool]) -> list[torch.Tensor]:
    """The weights after some steps on the same batches."""
    chance = torch.Generator().manual_seed(7)
    for network.both in both:
        optimizer.zero_grad()
        network(torch.randn(6, 4, generator=chance)).square().mean().backward()
        optimizer.step()
    return [weight.detach() for weight in network.parameters()]


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("decay", [0.0, 0.01])
def test_it_is_the_sgd_of_pytorch(momentum: float, decay: float) -> None:
    ours, theirs, both = made(), made(), [True] * 5
    reference = torch.optim.SGD(
        theirs.parameters(), lr=0.1, momentum=momentum, weight_decay=decay, fused=True
    )
    found = steps(ours, SGD(ours.parameters(), 0.1, momentum, decay), both)
    for one, other in zip(found, steps(theirs, reference, both), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("decoupled", [False, True])
@pytest.mark.parametrize("decay", [0.0, 0.01])
def test_it_is_the_adam_of_pytorch(decoupled: bool, decay: float) -> None:
    """A part whose gradients begin later counts its own steps."""
    ours, theirs, both = made(), made(), [False, True, True, False, True]
    kind = torch.optim.AdamW if decoupled else torch.optim.Adam
    reference = kind(theirs.parameters(), lr=0.1, weight_decay=decay, fused=True)
    found = steps(ours, Adam(ours.parameters(), 0.1, decay, decoupled=decoupled), both)
    for one, other in zip(found, steps(theirs, reference, both), strict=True):
        assert torch.equal(one, other)


def test_a_weight_without_a_gradient_stays_and_one_that_gets_its_first_later_begins_then() -> None:
    """As if each part had an optimizer of its own, which knows nothing of the steps of the other."""
    ours, theirs, both = made(), made(), [False, False, True, True]
    found = steps(ours, SGD(ours.parameters(), 0.1, 0.9, 0.0), both)

    expected = steps(theirs, Each(theirs), both)
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one, other)
    never = made()
    for one, other in zip(
        steps(never, SGD(never.parameters(), 0.1, 0.9, 0.0), [False])[2:],
        made().second.parameters(),
        strict=True,
    ):
        assert torch.equal(one, other)


def test_gradients_are_dropped() -> None:
    network = made()
    optimizer = SGD(network.parameters(), 0.1, 0.9, 0.0)
    network(torch.ones(2, 4)).sum().backward()
    assert [weight.grad is None for weight in network.parameters()] == [False, False, True, True]
    optimizer.zero_grad()
    assert all(weight.grad is None for weight in network.parameters())
