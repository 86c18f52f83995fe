import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from shoal.core.device_kit.learner import (
    MAX_DETAILS,
    Learner,
    builtin,
    initial_weights,
    load_weights,
    tensors_of,
)
from shoal.core.errors import BadPayload, ConfigError, LearnerFault
from shoal.core.exchange.tensors import digest, manifest_of, pack, unpack
from shoal.core.types import Tensors
from shoal.shell.learners import from_file, from_module

from .conftest import DEVICES

GOOD = """
from torch import nn

latent = "0"

def build():
    return nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 2))

def loss(model, x, y):
    return model(x).sum()
"""


def written(folder: Path, text: str, name: str = "learner.py") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_a_file_gives_what_it_defines_and_nothing_for_the_rest(tmp_path: Path) -> None:
    learner = from_file(written(tmp_path, GOOD))
    assert learner.name == "learner.py"
    assert isinstance(learner.build(), nn.Sequential)
    assert learner.latent == "0"
    assert callable(learner.loss)
    assert learner.train is None
    assert learner.evaluate is None


def test_a_file_may_import_its_neighbors(tmp_path: Path) -> None:
    written(tmp_path, "WIDTH = 7\n", "neighbor_of_learner.py")
    text = "from torch import nn\nfrom neighbor_of_learner import WIDTH\n"
    text += "def build(): return nn.Linear(WIDTH, 1)\n"
    built = from_file(written(tmp_path, text)).build()
    assert isinstance(built, nn.Linear)
    assert built.in_features == 7


def test_two_files_of_one_name_do_not_mix(tmp_path: Path) -> None:
    learners = []
    for width in (1, 2):
        folder = tmp_path / str(width)
        folder.mkdir()
        # A dataclass looks up its own module by name, and would find the other one.
        text = (
            "from __future__ import annotations\nfrom dataclasses import dataclass\nfrom torch import nn\n"
            f"@dataclass\nclass Size:\n    width: int = {width}\n"
            "def build(): return nn.Linear(Size().width, 1)\n"
        )
        learners.append(from_file(written(folder, text)))
    assert [learner.build().in_features for learner in learners] == [1, 2]


def test_a_file_that_is_not_there() -> None:
    with pytest.raises(ConfigError, match="no learner file"):
        from_file("/nowhere/learner.py")


def test_a_file_without_build(tmp_path: Path) -> None:
    with pytest.raises(LearnerFault, match=r"learner\.py has no build"):
        from_file(written(tmp_path, "x = 1\n"))


def test_a_part_that_is_no_function(tmp_path: Path) -> None:
    with pytest.raises(LearnerFault, match="evaluate is a int"):
        from_file(written(tmp_path, GOOD + "evaluate = 3\n"))


def test_a_file_that_fails_shows_the_authors_line_first(tmp_path: Path) -> None:
    with pytest.raises(LearnerFault, match="ZeroDivisionError") as caught:
        from_file(written(tmp_path, "def half():\n    return 1 / 0\nhalf()\n"))
    lines = caught.value.details.splitlines()
    assert lines[0].startswith("Traceback")
    assert "learner.py" in lines[1]
    assert lines[-1] == "ZeroDivisionError: division by zero"
    assert "shoal" not in caught.value.details
    assert caught.value.hint


def test_a_syntax_error_names_file_and_line(tmp_path: Path) -> None:
    with pytest.raises(LearnerFault, match="SyntaxError") as caught:
        from_file(written(tmp_path, "def build(:\n"))
    assert "learner.py" in caught.value.details
    assert "line 1" in caught.value.details


def test_a_file_cannot_end_the_process(tmp_path: Path) -> None:
    with pytest.raises(LearnerFault, match="SystemExit"):
        from_file(written(tmp_path, "import sys\nsys.exit(3)\n"))


def test_a_traceback_is_cut_to_its_end() -> None:
    def build() -> nn.Module:
        raise ValueError("x" * 10_000 + "the end")

    with pytest.raises(LearnerFault) as caught:
        Learner("long", build).module(0)
    assert len(caught.value.details) == MAX_DETAILS
    assert caught.value.details.endswith("the end\n")


def test_a_fault_of_the_call_itself_has_no_foreign_frames() -> None:
    with pytest.raises(LearnerFault, match="missing 1 required positional argument") as caught:
        Learner("greedy", lambda x: x).module(0)  # type: ignore[arg-type, misc]
    assert "shoal" not in caught.value.details


def test_a_module_by_name() -> None:
    learner = from_module("shoal.core.models.lenet5")
    assert learner.name == "shoal.core.models.lenet5"
    assert isinstance(learner.build(), nn.Module)


@pytest.mark.parametrize("name", ["no_such_module_here", "shoal.core.no_such_module_here"])
def test_a_module_that_is_not_there(name: str) -> None:
    with pytest.raises(ConfigError, match="no module"):
        from_module(name)


def test_a_module_whose_own_import_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(tmp_path, "import no_such_module_here\n", "learner_with_a_gap.py")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(LearnerFault, match="no_such_module_here") as caught:
        from_module("learner_with_a_gap")
    assert "learner_with_a_gap.py" in caught.value.details


def test_build_must_give_a_module() -> None:
    with pytest.raises(LearnerFault, match="returned a NoneType"):
        Learner("empty", lambda: None).module(0)  # type: ignore[arg-type, return-value]


def test_a_built_in_is_checked_at_once() -> None:
    assert isinstance(builtin("lenet5", {"channels": 3}).build(), nn.Module)
    with pytest.raises(ConfigError, match="size"):
        builtin("lenet5", {"size": 1})
    with pytest.raises(ConfigError, match="did you mean"):
        builtin("lenet6")


def test_a_module_depends_on_the_seed_alone_and_leaves_torch_alone() -> None:
    learner = builtin("mlp", {"inputs": 2, "hidden": (2,)})
    torch.manual_seed(42)
    expected = learner.build().state_dict()
    torch.manual_seed(7)
    before = torch.get_rng_state()
    first, other = learner.module(42).state_dict(), learner.module(43).state_dict()
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(first[name], expected[name]) for name in expected)
    assert not any(torch.equal(first[name], other[name]) for name in expected)


def packed_views(tensors: Tensors) -> Tensors:
    """What a device gets: read-only views of one run of bytes."""
    return unpack(manifest_of(tensors), memoryview(b"".join(pack(tensors))))


def test_a_mask_of_infinity_in_the_state_of_a_network_is_named_before_anything_is_trained() -> None:
    """Training would say that it has diverged, and to lower the rate, which helps no one."""

    def build(persistent: bool) -> nn.Module:
        layer = nn.Linear(2, 2)
        layer.register_buffer("mask", torch.full((2,), -torch.inf), persistent=persistent)
        return nn.Sequential(layer)

    with pytest.raises(LearnerFault, match=r"'0\.mask' .* infinity .*'mask', ..., persistent=False"):
        initial_weights(Learner("masked", lambda: build(True)), 0)
    assert list(initial_weights(Learner("masked", lambda: build(False)), 0)) == ["0.weight", "0.bias"]


def test_initial_weights_are_those_of_torch_with_that_seed() -> None:
    learner = builtin("lenet5", {"channels": 3})
    torch.manual_seed(42)
    expected = learner.build().state_dict()
    weights = initial_weights(learner, 42)
    assert list(weights) == list(expected)
    for name, tensor in expected.items():
        assert np.array_equal(weights[name], tensor.numpy())


@pytest.mark.parametrize("device", DEVICES)
def test_weights_survive_the_way_there_and_back(device: str) -> None:
    learner = builtin("resnet9", {"size": 16, "classes": 2})
    weights = dict(initial_weights(learner, 1))
    weights["features.0.1.num_batches_tracked"] = np.array(7)
    weights["features.0.1.running_mean"] = np.arange(64, dtype=np.float32)
    model = learner.module(2).to(device)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load_weights(model, packed_views(weights))
    back = tensors_of(model)
    assert list(back) == list(weights)
    for name in weights:
        assert back[name].dtype == weights[name].dtype
        assert back[name].shape == weights[name].shape
        assert np.array_equal(back[name], weights[name])
    assert back["features.0.1.num_batches_tracked"].shape == ()
    assert back["features.0.1.num_batches_tracked"].dtype == np.int64


def test_weights_are_copies_in_both_directions() -> None:
    model = nn.Linear(2, 2)
    before = tensors_of(model)
    given = {name: np.ones_like(array) for name, array in before.items()}
    load_weights(model, given)
    given["weight"][:] = 5.0
    assert not np.array_equal(before["weight"], tensors_of(model)["weight"])
    assert tensors_of(model)["weight"].tolist() == [[1.0, 1.0], [1.0, 1.0]]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda w: w.pop("bias"), "lacks tensor 'bias'"),
        (lambda w: w.update(extra=np.zeros(1)), "unknown tensor 'extra'"),
        (lambda w: w.update(bias=np.zeros(3, np.float32)), "tensor 'bias'"),
        (lambda w: w.update(bias=np.zeros(2)), "tensor 'bias'.*float64"),
    ],
)
def test_other_weights_are_refused_and_nothing_is_loaded(change: object, message: str) -> None:
    model = nn.Linear(2, 2)
    before = tensors_of(model)
    other = {name: array + 1 for name, array in before.items()}
    change(other)  # type: ignore[operator]
    with pytest.raises(BadPayload, match=message):
        load_weights(model, other)
    assert all(np.array_equal(before[name], array) for name, array in tensors_of(model).items())


def test_a_type_that_cannot_travel_is_the_authors_to_hint() -> None:
    with pytest.raises(LearnerFault, match="bfloat16") as caught:
        initial_weights(Learner("half", lambda: nn.Linear(1, 1).bfloat16()), 0)
    assert "float32" in caught.value.hint


def test_state_that_is_no_tensor_cannot_travel() -> None:
    class Noted(nn.Linear):
        def get_extra_state(self) -> dict[str, int]:
            return {"note": 1}

        def set_extra_state(self, state: object) -> None: ...

    with pytest.raises(LearnerFault, match="_extra_state"):
        initial_weights(Learner("noted", lambda: Noted(1, 1)), 0)


def test_networks_that_are_built_at_the_same_time_are_those_of_their_seed() -> None:
    learner = builtin("mlp", {"inputs": 64, "hidden": [64, 64], "classes": 10})
    with ThreadPoolExecutor(8) as threads:
        found = {digest(model) for model in threads.map(lambda _: initial_weights(learner, 5), range(200))}
    assert found == {digest(initial_weights(learner, 5))}
