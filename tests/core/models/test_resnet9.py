import pytest
import torch

from shoal.core.models import resnet9


def test_parameters_are_as_the_paper_counts_them() -> None:
    """FLUX C.1.4: 6,775,140 for CIFAR-100."""
    model = resnet9.build(channels=3, size=32, classes=100)
    assert sum(parameter.numel() for parameter in model.parameters()) == 6_775_140


@pytest.mark.parametrize(("size", "width"), [(28, 512), (32, 2048), (64, 8192)])
def test_latents_are_as_wide_as_known(size: int, width: int) -> None:
    model = resnet9.build(channels=3, size=size, classes=5).eval()
    with torch.no_grad():
        images = torch.zeros(1, 3, size, size)
        assert model.latent(images).shape == (1, width)
        assert model(images).shape == (1, 5)


def test_batch_norm_travels_with_the_weights() -> None:
    names = list(resnet9.build().state_dict())
    assert sum(name.endswith("running_mean") for name in names) == 8
    assert sum(name.endswith("num_batches_tracked") for name in names) == 8


def test_a_residual_adds_its_input() -> None:
    residual = resnet9.Residual(torch.nn.ReLU())
    assert residual(torch.tensor([-1.0, 2.0])).tolist() == [-1.0, 4.0]
