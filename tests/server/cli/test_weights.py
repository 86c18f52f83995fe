"""Models in safetensors files, and where a run's first weights come from."""

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from fedserver.cli.models.weights import initial_weights
from fedserver.config import LearnerConfig, RunConfig
from shoal.core.errors import ConfigError
from shoal.core.exchange.tensors import digest
from shoal.shell.weights import load, save
from tests.server.toys import MODEL

MLP = {"inputs": 4, "hidden": (3,), "classes": 2}


def test_a_model_comes_back_in_its_own_order(tmp_path: Path) -> None:
    """safetensors sorts by type and name: MODEL's order is another."""
    path = tmp_path / "model.safetensors"
    save(MODEL, path, {"run": "toy"})
    found = load(path)
    assert list(found) == list(MODEL)
    assert digest(found) == digest(MODEL)


def test_a_file_of_another_program_is_read_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    save_file({"b": np.ones(2, np.float32), "a": np.zeros(1, np.float32)}, path)
    assert set(load(path)) == {"a", "b"}


@pytest.mark.parametrize("content", [b"", b"not safetensors at all", b"\xff" * 64])
def test_what_is_no_safetensors_file_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match="cannot be read as safetensors"):
        load(path)
    with pytest.raises(ConfigError, match="cannot be read as safetensors"):
        load(tmp_path / "none")


def test_a_file_that_is_there_stays_when_writing_fails(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    save(MODEL, path, {})
    with pytest.raises(Exception, match="object"):
        save({"w": np.array([object()])}, path, {})
    assert digest(load(path)) == digest(MODEL)
    assert [each.name for each in tmp_path.iterdir()] == ["model.safetensors"]


def test_where_the_first_weights_come_from(tmp_path: Path) -> None:
    learner = LearnerConfig(builtin="mlp", options=MLP)
    assert initial_weights(RunConfig(algorithm="fedavg")) is None
    made = initial_weights(RunConfig(algorithm="fedavg", learner=learner))
    again = initial_weights(RunConfig(algorithm="fedavg", learner=learner))
    other = initial_weights(RunConfig(algorithm="fedavg", learner=LearnerConfig("mlp", None, MLP, 1)))
    assert made is not None
    assert again is not None
    assert other is not None
    assert digest(made) == digest(again) != digest(other)
    path = tmp_path / "foreign.safetensors"
    save_file({name: array + 1 for name, array in made.items()}, path)
    found = initial_weights(RunConfig(algorithm="fedavg", learner=learner, initial_weights=path))
    assert found is not None
    assert list(found) == list(made)
    assert digest(found) == digest({name: array + 1 for name, array in made.items()})
    save_file({"w": np.zeros(1, np.float32)}, path)
    with pytest.raises(ConfigError, match="does not have the tensors of the learner"):
        initial_weights(RunConfig(algorithm="fedavg", learner=learner, initial_weights=path))


def test_a_learner_file_of_the_author(tmp_path: Path) -> None:
    path = tmp_path / "learner.py"
    path.write_text("from torch import nn\n\ndef build():\n    return nn.Linear(3, 2)\n")
    found = initial_weights(RunConfig(algorithm="fedavg", learner=LearnerConfig(file=path)))
    assert found is not None
    assert {name: array.shape for name, array in found.items()} == {"weight": (2, 3), "bias": (2,)}
