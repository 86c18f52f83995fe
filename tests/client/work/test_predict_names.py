"""Predictions have the names of the classes where the settings list them."""

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from safetensors.numpy import save_file

from fedclient.__main__ import main

SETTINGS = """
learner: {{builtin: mlp, options: {{inputs: 2, hidden: [], classes: 3}}}}
data: {{csv: data.csv, label: kind{classes}}}
"""


@pytest.fixture
def device(tmp_path: Path) -> Path:
    """The larger of two values says the class: the third one, for which there are no samples, never wins."""
    model = {
        "head.weight": np.array([[1, 0], [0, 1], [0, 0]], np.float32),
        "head.bias": np.zeros(3, np.float32),
    }
    save_file(model, tmp_path / "model.safetensors")
    (tmp_path / "data.csv").write_text('a,b,kind\n2,1,"cat, gray"\n1,3,dog\n3,1,dog\n')
    return tmp_path


def predicted(device: Path, classes: str, out: str, *more: str) -> str:
    """What is printed."""
    (device / "device.yaml").write_text(SETTINGS.format(classes=classes))
    command = ["predict", "--config", "device.yaml", "--model", "model.safetensors", "--out", out, *more]
    command = [str(device / each) if (device / each).suffix and "." in each else each for each in command]
    done = CliRunner().invoke(main, command)
    assert done.exit_code == 0, done.output
    return done.stdout


NAMES = ', classes: ["cat, gray", dog, eel]'


def test_classes_are_named_on_the_screen_and_in_files(device: Path) -> None:
    shown = predicted(device, NAMES, "found.csv")
    assert "3 samples: 2 of class cat, gray, 1 of class dog" in shown
    assert "accuracy on labeled samples, which it may have been trained on: 0.6667" in shown
    lines = (device / "found.csv").read_text().splitlines()
    assert lines[0] == "row,class,name,p0,p1,p2"
    assert [line.split(",p")[0].rsplit(",", 3)[0] for line in lines[1:]] == [
        '0,0,"cat, gray"',
        "1,1,dog",
        '2,0,"cat, gray"',
    ]
    data = json.loads(predicted(device, NAMES, "found.npz", "--json"))["data"]
    assert (data["classes"], data["class_names"]) == ({"0": 2, "1": 1}, ["cat, gray", "dog", "eel"])
    found = np.load(device / "found.npz")
    assert found["names"][found["classes"]].tolist() == ["cat, gray", "dog", "cat, gray"]


def test_without_names_classes_are_numbers(device: Path) -> None:
    (device / "data.csv").write_text("a,b,kind\n2,1,0\n1,3,1\n")
    assert "2 samples: 1 of class 0, 1 of class 1" in predicted(device, "", "found.csv")
    assert (device / "found.csv").read_text().splitlines()[0] == "row,class,p0,p1,p2"
    assert set(np.load(device / "found.npz").files if predicted(device, "", "found.npz") else ()) == {
        "classes",
        "probabilities",
    }
