"""In which shape a network takes samples: each network below takes exactly one of the usual ones."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from shoal.core.device_kit.learner import Learner, authors
from shoal.core.device_kit.shapes import TRIED, applied, diagnose, refused, setting
from shoal.core.errors import LearnerFault, WrongShape


def images(channels: int = 1) -> nn.Module:
    """For images of any size."""
    pooled = nn.Sequential(nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(8, 3))
    return nn.Sequential(nn.Conv2d(channels, 2, 3), nn.BatchNorm2d(2), *pooled)


def readings(channels: int) -> nn.Module:
    return nn.Sequential(nn.Conv1d(channels, 2, 3), nn.AdaptiveAvgPool1d(2), nn.Flatten(), nn.Linear(4, 3))


def words() -> nn.Module:
    return nn.Sequential(nn.Embedding(9, 2), nn.Flatten(), nn.Linear(12, 3))


class Counting(nn.Module):
    """Counts its calls in a buffer, as batch norm does, also in evaluation mode."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        with torch.no_grad():
            self.layer.weight += torch.rand(())
        found: Tensor = self.layer(x)
        return found


F32 = np.float32


@pytest.mark.parametrize(
    ("network", "x", "layout", "now", "said", "hint"),
    [
        (images(), np.zeros((1, 1, 9, 9), F32), "as they are", (1, 9, 9), "", ""),
        (
            images(), np.zeros((1, 9, 9), np.uint8), "with a channel in front", (1, 9, 9),
            "samples of shape (9, 9) are given to the network with a channel in front, (1, 9, 9)",
            "Images need a channel: set data.shape: [1, 9, 9]",
        ),
        (
            images(3), np.zeros((1, 9, 8, 3), F32), "with the last axis first", (3, 9, 8),
            "samples of shape (9, 8, 3) are given to the network with the last axis first, (3, 9, 8)",
            "the network takes them with the last axis first, [3, 9, 8]: save x.transpose(0, 3, 1, 2)",
        ),
        (
            images(), np.zeros((1, 81), F32), "as square images of one channel", (1, 9, 9),
            "samples of shape (81,) are given to the network as square images of one channel, (1, 9, 9)",
            "the network takes them as square images of one channel: set data.shape: [1, 9, 9]",
        ),
        (
            nn.Linear(72, 3), np.zeros((1, 9, 8), F32), "flattened", (72,),
            "samples of shape (9, 8) are given to the network flattened, (72,)",
            "the network takes them flattened: set data.shape: [72]",
        ),
        (
            readings(1), np.zeros((1, 9), F32), "with a channel in front", (1, 9),
            "samples of shape (9,) are given to the network with a channel in front, (1, 9)",
            "the network takes them with a channel in front: set data.shape: [1, 9]",
        ),
        (
            readings(2), np.zeros((1, 9, 2), F32), "with the last axis first", (2, 9),
            "samples of shape (9, 2) are given to the network with the last axis first, (2, 9)",
            "the network takes them with the last axis first, [2, 9]: save x.transpose(0, 2, 1)",
        ),
        (
            words(), np.zeros((1, 6), F32), "as whole numbers", (6,),
            "samples of shape (6,) are given to the network as whole numbers",
            "the network takes them as whole numbers: give them as int64, "
            "by a function of yours (data.module)",
        ),
        (
            nn.Linear(6, 3), np.zeros((1, 6), np.int64), "as float32", (6,),
            "samples of shape (6,) are given to the network as float32",
            "the network takes them as float32: give them as float32, by a function of yours (data.module)",
        ),
    ],
)  # fmt: skip
def test_the_layout_that_works_is_found_and_said(
    network: nn.Module, x: np.ndarray, layout: str, now: tuple[int, ...], said: str, hint: str
) -> None:
    found = diagnose(network, network, x)
    assert found.layout is not None
    assert (found.layout.name, found.layout.shape(x.shape[1:])) == (layout, now)
    assert applied(found.layout, x.shape[1:]) == said
    if not hint:
        return
    assert setting(found.layout, x.shape[1:]) == hint
    batch = torch.from_numpy(np.repeat(x, 3, 0))
    batch = batch.float() if x.dtype == np.uint8 else batch
    with pytest.raises(WrongShape) as caught, authors("network", network, batch):
        network(batch)
    assert caught.value.message == f"the network refused a batch of shape {tuple(batch.shape)}"
    assert caught.value.hint == hint


def test_an_image_without_a_channel_is_not_taken_for_a_batch_of_one() -> None:
    """PyTorch's layers for images take (1, 9, 9) as one image of one channel, without a batch."""
    found = diagnose(images(), images(), np.zeros((1, 9, 9), F32))
    assert [each.layout.name for each in found.refusals] == ["as they are"]


def test_a_network_that_is_tried_stays_as_it_was() -> None:
    network = Counting().train()
    before = {name: value.clone() for name, value in network.state_dict().items()}
    torch.manual_seed(3)
    expected = torch.rand(2).tolist()
    torch.manual_seed(3)
    assert diagnose(network, network, np.zeros((1, 2, 2), F32)).layout is not None
    assert torch.rand(2).tolist() == expected
    assert network.training
    assert network.layer.training
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())


def test_where_nothing_works_the_network_and_what_was_tried_are_quoted() -> None:
    class Mine(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Conv2d(3, 2, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x).mean((2, 3))  # this line

    network = Mine()
    found = diagnose(network, network, np.zeros((1, 9, 9), F32))
    assert found.layout is None
    assert found.is_about_shape
    said, hint = refused(found)
    assert said.startswith(
        ", also with a channel in front, with the last axis first or flattened: RuntimeError"
    )
    assert f"expected input[{TRIED}, 1, 9, 9] to have 3 channels, but got 1 channels" in said
    assert said.endswith("in forward: return self.layer(x).mean((2, 3))  # this line)")
    assert hint == "its first layer takes 3 channels"
    with pytest.raises(WrongShape) as caught, authors("network", network, torch.zeros(4, 9, 9)):
        network(torch.zeros(4, 9, 9))
    assert caught.value.message == f"the network refused a batch of shape (4, 9, 9){said}"
    assert caught.value.details.count("File ") == 1
    assert "test_shapes.py" in caught.value.details


def test_a_slip_that_no_layout_changes_is_no_matter_of_shape() -> None:
    class Slip(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.no_such_method()  # type: ignore[no-any-return, operator]

    assert not diagnose(Slip(), Slip(), np.zeros((1, 9, 9), F32)).is_about_shape
    x = torch.zeros(2, 9, 9)
    with pytest.raises(LearnerFault, match="network failed: Attr") as caught, authors("network", Slip(), x):
        Slip()(x)
    assert not isinstance(caught.value, WrongShape)
    assert caught.value.hint.startswith("fix test_shapes.py, line ")
    assert "in forward: return x.no_such_method()" in caught.value.hint


def test_lazy_layers_are_named_before_they_fail() -> None:
    with pytest.raises(LearnerFault, match="lazy layers, which have no weights yet") as caught:
        Learner("mine", lambda: nn.Sequential(nn.Flatten(), nn.LazyLinear(3))).module(0)
    assert "model(torch.zeros(1, ...))" in caught.value.hint

    def run_once() -> nn.Module:
        network = nn.Sequential(nn.Flatten(), nn.LazyLinear(3))
        network(torch.zeros(1, 4))
        return network

    assert Learner("mine", run_once).module(0).state_dict()["1.weight"].shape == (3, 4)


def test_state_that_is_no_tensor_is_left_as_it_is() -> None:
    class Noted(nn.Linear):
        def get_extra_state(self) -> dict[str, int]:
            return {"note": 1}

        def set_extra_state(self, state: object) -> None: ...

    network = Noted(4, 3)
    found = diagnose(network, network, np.zeros((1, 2, 2), F32))
    assert found.layout is not None
    assert found.layout.name == "flattened"


def test_a_package_that_is_missing_is_named() -> None:
    def build() -> nn.Module:
        import no_such_package_here.deep  # type: ignore[import-not-found]

        return no_such_package_here.deep  # type: ignore[no-any-return]

    with pytest.raises(LearnerFault) as caught:
        Learner("mine", build).module(0)
    assert caught.value.hint == "install no_such_package_here where the learner runs, or do not import it"


def test_an_error_between_torch_s_own_layers_shows_none_of_them() -> None:
    network = nn.Sequential(nn.Linear(4, 3), nn.Linear(2, 1))
    with pytest.raises(LearnerFault, match="shapes cannot be multiplied") as caught, authors("network"):
        network(torch.zeros(2, 4))
    assert caught.value.details.count("File ") == 1  # the call in this file
    assert "site-packages" not in caught.value.details
