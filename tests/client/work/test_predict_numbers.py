"""Regression on a device: its file is read as numbers, and predictions are written as numbers."""

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from fedclient.config import ClientConfig, DataConfig, LearnerConfig, PrivacyConfig
from fedclient.work.data import load
from fedclient.work.predict import classify
from shoal.core.data.scale import DEVIATION, MEAN
from shoal.core.errors import ConfigError, DataFault

NETWORK = LearnerConfig(builtin="mlp", options={"inputs": 2, "hidden": (), "classes": 1})


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """price = 3 a - b."""
    a, b = np.array([0.5, -1.0, 2.0, 0.0]), np.array([1.0, 0.0, -1.0, 0.5])
    rows = np.column_stack([a, b, 3 * a - b])
    np.savetxt(tmp_path / "homes.csv", rows, delimiter=",", header="a,b,price", comments="")
    return tmp_path / "homes.csv"


def settings(table: Path, regression: bool = True) -> ClientConfig:
    data = DataConfig(csv=table, label="price", regression=regression, held_out=0.0)
    return ClientConfig(state=table.parent, learner=NETWORK, data=data, privacy=PrivacyConfig())


def test_labels_are_numbers_where_the_settings_say_so(table: Path) -> None:
    data = settings(table).data
    assert data is not None
    assert load(data).train.y.tolist() == [0.5, -3.0, 7.0, -0.5]  # type: ignore[union-attr]
    with pytest.raises(DataFault, match="the label in line 2, column 'price'"):
        load(DataConfig(csv=table, label="price"))
    with pytest.raises(ConfigError, match="folders of images are classes"):
        DataConfig(images=table, regression=True)


@pytest.mark.parametrize("out", ["found.csv", "found.npz"])
def test_numbers_are_predicted_and_written(table: Path, out: str) -> None:
    model = {"head.weight": np.array([[3.0, -1.0]], np.float32), "head.bias": np.zeros(1, np.float32)}
    save_file(model, table.parent / "model.safetensors")
    path = table.parent / out
    found = classify(settings(table), table, table.parent / "model.safetensors", path)
    assert found.values is not None
    assert found.values.tolist() == pytest.approx([0.5, -3.0, 7.0, -0.5], abs=1e-6)
    if out.endswith(".npz"):
        assert np.load(path)["values"].tolist() == found.values.tolist()
    else:
        lines = path.read_text().splitlines()
        assert lines[0] == "row,value"
        assert [float(line.split(",")[1]) for line in lines[1:]] == pytest.approx(found.values.tolist())


def test_a_model_that_carries_a_scale_predicts(table: Path) -> None:
    """Its file has the tensors of the scale in the order of their names, and a network has one of its own."""
    model = {
        "head.weight": np.array([[3.0, -1.0]], np.float32),
        "head.bias": np.zeros(1, np.float32),
        MEAN: np.array([1.0, 0.0], np.float32),
        DEVIATION: np.array([2.0, 1.0], np.float32),
    }
    save_file(model, table.parent / "model.safetensors")
    found = classify(settings(table), table, table.parent / "model.safetensors", None)
    assert found.values is not None
    assert found.values.tolist() == pytest.approx([-1.75, -3.0, 2.5, -2.0], abs=1e-6)
