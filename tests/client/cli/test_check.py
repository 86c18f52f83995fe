"""`fedclient check`: learner and data are tried on each other, and what fails is named with its place."""

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from fedclient.__main__ import main
from fedclient.agent.service import check
from fedclient.cli.check import MAX_CLASSES, text
from fedclient.config import ClientConfig, DataConfig, LearnerConfig, SelfCheck, WorkConfig
from fedclient.work.runtime import Runtime
from shoal.core.data.dataset import Dataset
from shoal.core.data.views import Views
from shoal.core.errors import DataFault, LearnerFault

pytestmark = pytest.mark.usefixtures("forked_workers")

BUILD = """
import torch
from torch import nn
def build():
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
"""


def tried(work: WorkConfig, learner: str, selfcheck: SelfCheck = "full") -> dict[str, Any]:
    """What a selfcheck of this learner finds."""
    assert work.learner.file is not None
    file = work.learner.file.with_name("mine.py")
    file.write_text(BUILD + learner)
    changed = replace(work, learner=LearnerConfig(file=file), selfcheck=selfcheck)
    return dict(Runtime.open(changed).info.findings)


def test_what_the_network_sees_and_what_came_of_it(work: WorkConfig, tmp_path: Path) -> None:
    """By a process of its own, and the device's folder is left alone."""
    settings = ClientConfig(state=tmp_path / "state", learner=work.learner, data=work.data)
    found = asyncio.run(check(settings)).findings
    with np.load(tmp_path / "train.npz") as data:
        counts = np.bincount(data["y"])
    assert found["samples"] == {"train": 40, "held_out": 10, "test": None}
    assert (found["shape"], found["dtype"], found["device"]) == ([4], "float32", "cpu")
    assert found["classes"] == {str(label): count for label, count in enumerate(counts.tolist())}
    assert (found["parameters"], found["bytes"]) == (67, 268)
    assert found["latent"] == [40, 8]
    assert found["trained_loss"] > 0.0
    assert not settings.state.exists()


def test_people_read_the_same(work: WorkConfig) -> None:
    found = tried(work, 'latent = "0"')
    lines = dict(line.split(":", 1) for line in text(found).splitlines())
    assert lines["samples"].strip() == "40 to train on, 10 held out, no test part"
    assert lines["each"].strip().startswith("shape (4,), float32, from -")
    assert lines["network"].strip() == "67 parameters, 268 bytes, on cpu"
    assert lines["latent"].strip() == "(40, 8)"
    assert lines["by default"].strip().startswith("50 samples are too few to be described")
    assert "by default" not in text({**found, "samples": {"train": 52, "held_out": 13, "test": None}})
    assert f"{found['classes']['2']} of class 2" in lines["classes"]
    many = {str(label): 1 for label in range(MAX_CLASSES + 5)}
    assert text({**found, "classes": many, "class_count": len(many)}).count(" of class ") == MAX_CLASSES
    assert ", and 5 more classes" in text({**found, "classes": many, "class_count": len(many)})


def test_probabilities_where_scores_are_expected_are_said(work: WorkConfig) -> None:
    softmax = "\nplain = build\ndef build():\n    return nn.Sequential(plain(), nn.Softmax(1))\n"
    assert "scores:     probabilities" in text(tried(work, softmax))
    assert "scores:" not in text(tried(work, ""))


def test_unlabelled_data_and_no_latent_are_said(work: WorkConfig, tmp_path: Path) -> None:
    np.savez(tmp_path / "train.npz", x=np.arange(28, dtype=np.uint8).reshape(7, 4))
    found = tried(work, "\n\ndef build():\n    return nn.LayerNorm(4)  # no linear layer\n")
    assert (found["classes"], found["loss"], found["trained_loss"]) == (None, None, None)
    assert found["range"] == pytest.approx([0.0, 27 / 255])
    assert "classes:    unlabeled" in text(found)
    assert "latent:     none; " in text(found)


WRONG = [
    ('latent = "hiden"', "latent: the network has no submodule 'hiden'"),
    ("def latent(model, x): return x.sum()", "latent: the latent of"),
    ("def latent(model, x): return 1 / 0", "the learner's latent failed: ZeroDivisionError"),
    ('latent = "0"\ndef loss(model, x, y): return model(x)', "loss(): loss() returned shape"),
    ("def loss(model, x, y): return model(x).sum() * float('nan')", "loss(): the loss of"),
    ("def build(): return nn.Linear(5, 3)", "the network refused a batch of shape"),
    (
        "def build(): return nn.Linear(5, 3)\ndef train(model, batches, settings): return 0.5",
        "the network refused a batch of shape",
    ),
]
WRONG_IN_FULL = [
    ("def train(model, batches, settings): return None", "train(): train() returned None"),
    ("def evaluate(model, samples): return 3.0, 1.0", "evaluate(): evaluate() returned the accuracy 3.0"),
    ("sizes = iter(range(3, 99))\ndef build(): return nn.Linear(4, next(sizes))", "weights of build(): "),
]


@pytest.mark.parametrize(("learner", "said"), WRONG)
@pytest.mark.parametrize("selfcheck", ["quick", "full"])
def test_a_slip_is_named_with_its_place(
    work: WorkConfig, learner: str, said: str, selfcheck: SelfCheck
) -> None:
    with pytest.raises(LearnerFault) as caught:
        tried(work, learner, selfcheck)
    assert f"mine.py: {said}" in caught.value.message
    assert caught.value.hint


def test_the_traceback_is_the_authors_own(work: WorkConfig) -> None:
    with pytest.raises(LearnerFault) as caught:
        tried(work, "def latent(model, x): return 1 / 0")
    assert caught.value.details.splitlines()[1].strip().startswith('File "')
    assert 'mine.py", line 6, in latent' in caught.value.details.splitlines()[1]


def test_the_name_that_was_meant_is_the_hint(work: WorkConfig) -> None:
    named = """
def build():
    network = nn.Module()
    network.hidden, network.forward = nn.Linear(4, 2), lambda x: network.hidden(x)
    return network
latent = "hiden"
"""
    with pytest.raises(LearnerFault) as caught:
        tried(work, named)
    assert caught.value.hint == 'did you mean "hidden"?'


@pytest.mark.parametrize(("learner", "said"), WRONG_IN_FULL)
def test_a_slip_that_a_full_trial_alone_finds(work: WorkConfig, learner: str, said: str) -> None:
    with pytest.raises(LearnerFault) as caught:
        tried(work, learner)
    assert f"mine.py: {said}" in caught.value.message
    assert tried(work, learner, "quick") == {}


def test_a_label_that_the_network_has_no_output_for(work: WorkConfig, tmp_path: Path) -> None:
    """Wherever it stands: not only in the samples that are tried."""
    labels = np.zeros(200, int)
    labels[-5:] = 3
    np.savez(tmp_path / "train.npz", x=np.zeros((200, 4), np.float32), y=labels)
    with pytest.raises(DataFault, match="the label 3, and the network knows 3 classes"):
        tried(work, "", "quick")


@pytest.mark.parametrize("selfcheck", ["quick", "full"])
@pytest.mark.parametrize("part", ["held out", "test"])
def test_a_label_that_only_the_end_of_a_run_would_meet(
    work: WorkConfig, tmp_path: Path, part: str, selfcheck: SelfCheck
) -> None:
    """In a part that is measured and not trained on."""
    x, labels = np.zeros((200, 4), np.float32), np.arange(200) % 3
    if part == "test":
        np.savez(tmp_path / "train.npz", x=x, y=labels, x_test=x, y_test=np.full(200, 12))
    else:
        labels[Views.of(Dataset(np.arange(200)[:, None], labels)).held_out.x[0]] = 12
        np.savez(tmp_path / "train.npz", x=x, y=labels)
    for learner in ("", "def train(model, batches, settings): return 0.5"):
        with pytest.raises(DataFault, match="the label 12, and the network knows 3 classes"):
            tried(work, learner, selfcheck)


def test_a_trial_leaves_the_chance_of_the_process_alone(work: WorkConfig) -> None:
    import torch

    torch.manual_seed(1)
    expected = torch.rand(3).tolist()
    torch.manual_seed(1)
    tried(work, "def loss(model, x, y): return (model(x) * torch.rand(3)).mean()", "quick")
    assert torch.rand(3).tolist() == expected


def test_the_verb_ends_with_the_right_code(work: WorkConfig, tmp_path: Path) -> None:
    settings = tmp_path / "device.yaml"
    settings.write_text("learner: {file: mine.py}\ndata: {npz: train.npz}\n")
    command = ["check", "--config", str(settings), "--json"]
    for learner, code in (('latent = "0"', 0), ('latent = "hiden"', 8)):
        (tmp_path / "mine.py").write_text(BUILD + learner)
        ended = CliRunner().invoke(main, command)
        envelope = json.loads(ended.stdout.splitlines()[-1])
        assert ended.exit_code == code, ended.output
        assert (envelope["status"] == "ok") == (code == 0)
    (tmp_path / "mine.py").write_text(BUILD)
    np.savez(tmp_path / "train.npz", x=np.ones((1, 4), np.float32), y=np.zeros(1, np.int64))
    ended = CliRunner().invoke(main, command)
    assert ended.exit_code == 5
    assert "error[too-few-samples]: one sample is no data" in ended.output


IMAGES = """
from torch import nn
def build():
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(2 * 26 * 26, 3))
"""


@pytest.mark.parametrize("labels", [True, False])
def test_images_without_a_channel_are_named(tmp_path: Path, labels: bool) -> None:
    (tmp_path / "learner.py").write_text(IMAGES)
    arrays = {"x": np.ones((100, 28, 28), np.uint8)} | ({"y": np.arange(100) % 3} if labels else {})
    np.savez(tmp_path / "train.npz", **arrays)
    settings = tmp_path / "device.yaml"
    settings.write_text("learner: {file: learner.py}\ndata: {npz: train.npz}\n")
    ended = CliRunner().invoke(main, ["check", "-c", str(settings)])
    assert ended.exit_code == LearnerFault.exit_code
    assert "the network refused a batch of shape (64, 28, 28)\n" in ended.stderr
    assert "hint: Images need a channel: set data.shape: [1, 28, 28]\n" in ended.stderr
    assert "Traceback" not in ended.stderr


def checked(folder: Path, learner: str, **arrays: Any) -> str:
    """What `fedclient check` says of these arrays, on standard error."""
    (folder / "learner.py").write_text(learner)
    np.savez(folder / "train.npz", **arrays)
    settings = folder / "device.yaml"
    settings.write_text("learner: {file: learner.py}\ndata: {npz: train.npz}\n")
    return CliRunner().invoke(main, ["check", "-c", str(settings)]).stderr


def test_a_package_that_the_learner_lacks_is_named(tmp_path: Path) -> None:
    slip = "import no_such_package.part\n"
    said = checked(tmp_path, slip + BUILD, x=np.ones((20, 4)), y=np.arange(20) % 3)
    assert "error[learner-failed]: " in said
    assert "hint: install no_such_package where the learner runs, or do not import it\n" in said


def test_what_a_run_by_default_needs_is_said_before_there_is_one(tmp_path: Path) -> None:
    (tmp_path / "learner.py").write_text(BUILD)
    settings = tmp_path / "device.yaml"
    settings.write_text("learner: {file: learner.py}\ndata: {npz: train.npz}\n")
    np.savez(tmp_path / "train.npz", x=np.ones((64, 4)), y=np.arange(64) % 3)
    ended = CliRunner().invoke(main, ["check", "-c", str(settings)])
    assert ended.exit_code == 0, ended.output
    assert "by default: 64 samples are too few to be described" in ended.stdout


def test_other_layouts_are_named_with_what_to_write(tmp_path: Path) -> None:
    y = np.arange(20) % 3
    said = checked(tmp_path, IMAGES.replace("Conv2d(1", "Conv2d(3"), x=np.ones((20, 28, 28, 3)), y=y)
    assert (
        "the network takes them with the last axis first, [3, 28, 28]: save x.transpose(0, 3, 1, 2)" in said
    )
    said = checked(tmp_path, BUILD, x=np.ones((20, 2, 2)), y=y)
    assert "hint: the network takes them flattened: set data.shape: [4]" in said


FORWARD = """
from torch import nn
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(3, 2, 3)
    def forward(self, x):
        return self.first(x).mean((2, 3))
def build():
    return Net()
"""


def test_where_no_layout_works_the_authors_line_is_named(tmp_path: Path) -> None:
    said = checked(tmp_path, FORWARD, x=np.ones((20, 9, 9)), y=np.arange(20) % 2)
    assert (
        "the network refused a batch of shape (16, 9, 9), also with a channel in front, with the last" in said
    )
    assert "to have 3 channels, but got 1 channels instead" in said
    assert "(learner.py, line 8, in forward: return self.first(x).mean((2, 3)))" in said
    assert "hint: its first layer takes 3 channels" in said
    frames = [line for line in said.splitlines() if line.strip().startswith("File ")]
    assert len(frames) == 1
    assert 'learner.py", line 8' in frames[0]


@pytest.mark.parametrize(("first", "said"), [(1, "[1, 2, 3]"), (2, "[1, 2, 3]")])
def test_labels_that_begin_at_1_are_told_from_a_network_that_is_too_small(
    tmp_path: Path, first: int, said: str
) -> None:
    """A device may lack some classes; that none is 0, and one is too high by one, is what counts."""
    labels = first + np.arange(20) % (4 - first)
    found = checked(tmp_path, BUILD, x=np.ones((20, 4)), y=labels)
    assert f"the labels go from {first} to 3, and the network knows 3 classes, from 0 on" in found
    assert f"if they begin at 1, list them, on every device the same: data.classes: {said}" in found
    settings = tmp_path / "device.yaml"
    settings.write_text(f"learner: {{file: learner.py}}\ndata: {{npz: train.npz, classes: {said}}}\n")
    ended = CliRunner().invoke(main, ["check", "-c", str(settings), "--json"])
    assert ended.exit_code == 0
    classes = json.loads(ended.stdout)["data"]["classes"]
    assert sorted(classes) == [str(label) for label in range(first - 1, 3)]


def test_words_are_numbered_by_the_settings_as_they_are_written(tmp_path: Path) -> None:
    """YAML reads no and yes as something else."""
    labels = np.array(["no", "yes", "1"] * 6)
    found = checked(tmp_path, BUILD, x=np.ones((18, 4)), y=labels)
    assert "is 'no', and not a number" in found
    settings = tmp_path / "device.yaml"
    settings.write_text("learner: {file: learner.py}\ndata: {npz: train.npz, classes: [no, yes, 1]}\n")
    ended = CliRunner().invoke(main, ["check", "-c", str(settings)])
    assert ended.exit_code == 0, ended.stderr
    assert " of class 0 (no), " in ended.stdout
    assert " of class 2 (1)\n" in ended.stdout


@pytest.mark.parametrize("shape", [(4,), (2, 3), (1, 5, 5)])
def test_samples_of_the_wrong_size_are_named_without_a_traceback(
    tmp_path: Path, shape: tuple[int, ...]
) -> None:
    """With the built-in network, which has no line to fix."""
    np.savez(tmp_path / "train.npz", x=np.ones((20, *shape), np.float32), y=np.arange(20) % 3)
    settings = tmp_path / "device.yaml"
    settings.write_text(
        "learner: {builtin: mlp, options: {inputs: 64, classes: 3}}\ndata: {npz: train.npz}\n"
    )
    ended = CliRunner().invoke(main, ["check", "-c", str(settings)])
    assert ended.exit_code == LearnerFault.exit_code
    assert "the network refused a batch of shape" in ended.stderr
    assert "its first layer takes 64 values" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert "traceback" not in ended.stderr


@pytest.mark.parametrize(
    ("inputs", "otherwise"),
    [(5, "add the columns that are missing"), (2, "name the columns with data.columns")],
)
def test_a_table_of_another_width_than_a_builtin_network_is_told_its_option(
    work: WorkConfig, tmp_path: Path, inputs: int, otherwise: str
) -> None:
    (tmp_path / "table.csv").write_text("a,b,c,y\n" + "1,2,3,0\n4,5,6,1\n" * 20)
    data = DataConfig(csv=tmp_path / "table.csv", label="y")
    mlp = LearnerConfig(builtin="mlp", options={"inputs": inputs, "hidden": (4,), "classes": 2})
    with pytest.raises(DataFault, match=f"has 3 columns, the network takes {inputs}") as caught:
        Runtime.open(replace(work, learner=mlp, data=data, selfcheck="full"))
    assert caught.value.hint == f"set learner.options, inputs: 3, if all of them are features; or {otherwise}"


def test_help_offers_only_what_check_uses() -> None:
    found = CliRunner().invoke(main, ["check", "--help"]).stdout
    assert "--config" in found
    assert "--server" not in found
    assert "--device" not in found
