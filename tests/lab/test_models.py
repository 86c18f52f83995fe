"""The networks of FedRC and CORNFLQS, counted as published, and what goes through them."""

import pytest
import torch
from torch import nn

from shoal.core.errors import ConfigError
from shoal_lab.models import leafcnn, medcnn, mobilenetv2, resnet18
from shoal_lab.models._normalize import Normalize


@pytest.mark.parametrize(
    ("model", "parameters"),
    [
        (resnet18.build(3, 64, 1000), 11_689_512),  # torchvision's resnet18
        (mobilenetv2.build(3, 64, 1000), 3_504_872),  # torchvision's mobilenet_v2
        # 5 x 5 x 32 + 32, 5 x 5 x 32 x 64 + 64, 1,024 x 2,048 + 2,048, 2,048 x 10 + 10
        (leafcnn.build(1, 28, 10), 832 + 51_264 + 2_099_200 + 20_490),
        # 9 x 16 + 16, 9 x 16 x 32 + 32, 32 x 14 x 14 x 128 + 128, 128 x 4 + 4
        (medcnn.build(1, 28, 4), 160 + 4_640 + 802_944 + 516),
    ],
    ids=["resnet18", "mobilenetv2", "leafcnn", "medcnn"],
)
def test_parameters_are_as_counted(model: nn.Module, parameters: int) -> None:
    assert sum(each.numel() for each in model.parameters()) == parameters


@pytest.mark.parametrize(
    ("build", "channels", "size", "width"),
    [
        (resnet18.build, 3, 32, 512),
        (resnet18.build, 1, 64, 512),
        (mobilenetv2.build, 3, 32, 1280),
        (mobilenetv2.build, 1, 28, 1280),
        (leafcnn.build, 1, 28, 1024),
        (leafcnn.build, 3, 32, 1600),
        (medcnn.build, 1, 28, 6272),
    ],
)
def test_latents_and_scores_have_the_widths_that_their_pages_say(
    build: object, channels: int, size: int, width: int
) -> None:
    model = build(channels=channels, size=size, classes=7).eval()  # type: ignore[operator]
    images = torch.rand(2, channels, size, size)
    with torch.no_grad():
        assert model.latent(images).shape == (2, width)
        assert model(images).shape == (2, 7)


def test_small_images_keep_enough_pixels_for_the_last_stage() -> None:
    small, large = (mobilenetv2.build(3, size).features[:-1].eval() for size in (32, 64))  # type: ignore[index]
    assert small(torch.rand(1, 3, 32, 32)).shape[2:] == (4, 4)
    assert large(torch.rand(1, 3, 64, 64)).shape[2:] == (2, 2)
    with pytest.raises(ConfigError, match="stem is 'big'"):
        resnet18.build(stem="big")


def test_images_are_normalized_first() -> None:
    assert Normalize(0.5, 0.25)(torch.tensor([0.5, 1.0])).tolist() == [0.0, 2.0]
    plain, normal = (leafcnn.build(**options) for options in ({}, {"mean": 0.1307, "deviation": 0.3081}))
    normal.load_state_dict(plain.state_dict())
    images = torch.rand(2, 1, 28, 28)
    assert torch.allclose(normal(images), plain((images - 0.1307) / 0.3081), atol=1e-6)
    with pytest.raises(ConfigError, match="deviation is 0"):
        leafcnn.build(deviation=0.0)
