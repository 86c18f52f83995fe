import pytest
import torch

from shoal.core import models
from shoal.core.errors import ConfigError


def test_lists_the_modules_that_are_networks_and_nothing_else() -> None:
    assert models.names() == (
        "cnn1d",
        "lenet5",
        "mlp",
        "resnet9",
    )


@pytest.mark.parametrize("name", models.names())
def test_every_network_builds_with_its_defaults(name: str) -> None:
    assert any(parameter.requires_grad for parameter in models.build(name).parameters())


def test_an_unknown_name_gets_the_nearest_one() -> None:
    with pytest.raises(ConfigError, match='did you mean "lenet5"'):
        models.build("lenet")


def test_an_unknown_option_gets_the_nearest_one() -> None:
    with pytest.raises(ConfigError, match='did you mean "channels"'):
        models.build("lenet5", chanels=3)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("lenet5", {"channels": 0}),
        ("lenet5", {"size": 11}),
        ("lenet5", {"classes": "10"}),
        ("resnet9", {"size": 15}),
        ("mlp", {"inputs": 0}),
        ("mlp", {"hidden": (8, 0)}),
        ("mlp", {"hidden": 8}),
        ("mlp", {"classes": True}),
    ],
)
def test_a_value_that_cannot_be_names_its_option(name: str, options: dict[str, object]) -> None:
    (option,) = options
    with pytest.raises(ConfigError, match=option):
        models.build(name, **options)


def test_weights_come_from_torchs_generator() -> None:
    torch.manual_seed(42)
    first = models.build("lenet5").state_dict()
    torch.manual_seed(42)
    # The same draws, in the same order, as the plainest form of the network.
    plain: list[torch.nn.Module] = [torch.nn.Conv2d(1, 6, 5), torch.nn.Conv2d(6, 16, 5)]
    plain += [torch.nn.Linear(400, 120), torch.nn.Linear(120, 84), torch.nn.Linear(84, 10)]
    drawn = [tensor for layer in plain for tensor in layer.state_dict().values()]
    assert all(torch.equal(a, b) for a, b in zip(first.values(), drawn, strict=True))
