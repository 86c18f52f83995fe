import pytest
import torch

from shoal.core.models import lenet5


@pytest.mark.parametrize(
    ("channels", "size", "parameters", "width"),
    # 28x28: the paper's count (FLUX C.1.4). 32x32: 576 x 120 instead of 400 x 120 weights.
    [(3, 28, 62_006, 400), (1, 28, 61_706, 400), (3, 32, 62_006 + 176 * 120, 576), (1, 12, 15_626, 16)],
)
def test_parameters_and_latents_are_as_counted(channels: int, size: int, parameters: int, width: int) -> None:
    model = lenet5.build(channels, size, 10)
    images = torch.zeros(2, channels, size, size)
    assert sum(parameter.numel() for parameter in model.parameters()) == parameters
    assert model.latent(images).shape == (2, width)
    assert model(images).shape == (2, 10)


def test_the_latent_is_what_the_convolutions_give() -> None:
    model = lenet5.build(channels=1, size=28)
    with torch.no_grad():
        for parameter in model.features.parameters():
            parameter.zero_()
        model.features[3].bias.copy_(torch.arange(16.0) - 8)  # type: ignore[index]
    # Channel by channel, 25 pixels each: bias, cut at 0 by the ReLU.
    expected = (torch.arange(16.0) - 8).clamp(min=0).repeat_interleave(25)
    assert torch.equal(model.latent(torch.rand(1, 1, 28, 28))[0], expected)


def test_images_of_one_channel_need_no_channel_axis() -> None:
    model = lenet5.build(channels=1)
    images = torch.rand(3, 28, 28)
    assert torch.equal(model(images), model(images.unsqueeze(1)))
