import torch

from shoal.core.models import mlp


def test_parameters_are_those_of_its_layers() -> None:
    model = mlp.build(inputs=4, hidden=(3, 2), classes=5)
    assert sum(parameter.numel() for parameter in model.parameters()) == (4 * 3 + 3) + (3 * 2 + 2) + (
        2 * 5 + 5
    )


def test_the_latent_is_the_last_hidden_layer_of_the_flattened_input() -> None:
    model = mlp.build(inputs=4, hidden=(3,), classes=2)
    x = torch.arange(8.0).reshape(2, 2, 2)
    layer = model.features[1]  # type: ignore[index]
    assert torch.equal(model.latent(x), torch.relu(layer(x.flatten(1))))


def test_without_hidden_layers_the_latent_is_the_input() -> None:
    model = mlp.build(inputs=4, hidden=(), classes=2)
    x = torch.arange(8.0).reshape(2, 2, 2)
    assert torch.equal(model.latent(x), x.flatten(1))
    assert model(x).shape == (2, 2)
