"""`fedserver simulate`: on one's own files and network, over several seeds, and into a csv file."""

import csv
import importlib.util
import json
import shutil
import tarfile
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from click.testing import CliRunner, Result

from fedserver.__main__ import main
from shoal.core.errors import DataFault, Diverged
from shoal.simulation import plot
from shoal.simulation import simulate as simulation
from shoal.simulation.own_files import fleet_of
from shoal_lab.datasets import natural
from tests.api.wards import ward

LEARNER = """
from torch import nn

latent = "hidden"

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden = nn.Sequential(nn.Linear(4, 16), nn.ReLU())
        self.head = nn.Linear(16, 2)

    def forward(self, x):
        return self.head(self.hidden(x))

def build():
    return Net()
"""
FAST = ("--set", "learning_rate=0.1", "--set", "batch_size=8")


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """Four wards as npz files, one of them with a test part of its own, and a learner."""
    for number in range(4):
        x, y = ward(number)
        apart = {"x_test": x[50:], "y_test": y[50:]} if number == 0 else {}
        np.savez(tmp_path / f"ward-{number}.npz", x=x[:50], y=y[:50], **apart)
    (tmp_path / "learner.py").write_text(LEARNER)
    return tmp_path


def simulate(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["simulate", *arguments])


def test_own_files_and_an_own_network(files: Path) -> None:
    own = ("--data", str(files / "*.npz"), "--learner", str(files / "learner.py"))
    done = simulate(*own, "--rounds", "6", *FAST, "--json")
    assert done.exit_code == 0, done.stderr
    data = json.loads(done.stdout)["data"]
    assert [row["device"] for row in data["devices"]] == [f"ward-{number}" for number in range(4)]
    assert [row["samples"] for row in data["devices"]] == [50, 40, 40, 40]
    assert data["rounds"]["training"] == 6
    assert [each["measured_on"] for each in data["history"][:2]] == ["", "train"], "the inputs come first"
    assert "flux: 1 to 2 of 6 rounds of training are on clusters" in done.stderr
    assert "training round 2 of 6" in done.stderr
    assert "seconds left" in done.stderr
    assert "rounds of training" in data["summary"]
    assert "tuned" not in data["accuracy"]


def test_a_server_without_pytorch_is_told_what_to_install(
    files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "torch" else find(name))
    done = simulate("--data", str(files / "*.npz"))
    assert done.exit_code == 3
    assert "pip install torch scikit-learn kneed" in done.stderr


def test_fine_tuning_is_measured_where_it_is_asked_for(files: Path) -> None:
    own = ("--data", str(files / "*.npz"), "--learner", str(files / "learner.py"))
    done = simulate(*own, "--rounds", "2", *FAST, "--tuned", "--json")
    data = json.loads(done.stdout)["data"]
    assert data["accuracy"]["tuned"] == pytest.approx(np.mean([row["tuned"] for row in data["devices"]]))
    shown = simulate(*own, "--rounds", "2", *FAST, "--tuned").stdout
    assert f"models that their devices fine-tuned {100 * data['accuracy']['tuned']:.1f} %" in shown
    for given in (("--tuned",), ()):
        done = simulate("--dataset", "digits", "--clients", "2", "--samples", "40", "--rounds", "2", *given)
        assert ("%, tuned " in done.stdout) == bool(given)


def test_each_round_asks_the_share_of_the_devices_that_is_given(files: Path) -> None:
    own = ("--data", str(files / "*.npz"), "--learner", str(files / "learner.py"), "--rounds", "3", *FAST)
    done = simulate(*own, "--algorithm", "fedavg", "--participation", "0.25", "--json")
    assert done.exit_code == 0, done.stderr
    few = json.loads(done.stdout)["data"]["bytes"]["up"]
    every = json.loads(simulate(*own, "--algorithm", "fedavg", "--json").stdout)["data"]["bytes"]["up"]
    assert 0 < few < 0.3 * every


def test_options_that_say_how_to_make_devices_are_refused_for_own_ones(files: Path) -> None:
    done = simulate("--data", str(files / "*.npz"), "--data-dir", str(files), "--rounds", "2")
    assert done.exit_code == 3
    assert "--data-dir is not for your own devices" in done.stderr


@pytest.mark.parametrize("dataset", natural.NAMES)
@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--shift", "dirichlet"),
        ("--shift", "px"),  # also the usual one
        ("--level", "3"),
        ("--mode", "trDA"),
        ("--copies", "2"),
        ("--unseen", "0.5"),
        ("--samples", "10"),
        ("--public", "0.1"),
        ("--model", "mlp"),
        ("--label", "y"),
    ],
)
def test_devices_that_differ_by_nature_are_not_made_to(dataset: str, option: str, value: str) -> None:
    done = simulate("--dataset", dataset, option, value, "--rounds", "1")
    assert done.exit_code == 3
    assert f"{option} is not for {dataset}, whose devices differ by nature" in done.stderr
    assert f"hint: leave {option} or --dataset out" in done.stderr


def test_devices_are_folders_or_archives_of_pictures(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    for device, classes in {"north": ("cat", "dog"), "south": ("dog", "eel"), "west": ("cat", "eel")}.items():
        for name in classes:
            (tmp_path / device / name).mkdir(parents=True)
            for number in range(5):
                made = np.full((8, 8), 10 * ord(name[0]) % 256, np.uint8)
                image.fromarray(made).save(tmp_path / device / name / f"{number}.png")
    with tarfile.open(tmp_path / "west.tar.gz", "w:gz") as archive:
        archive.add(tmp_path / "west", ".")
    shutil.rmtree(tmp_path / "west")
    found = fleet_of(str(tmp_path / "*"), None, 0.2)
    assert list(found) == ["north", "south", "west"]
    assert found.classes == 3
    numbers = {name: np.unique(holding.stage(0).y) for name, holding in found.items()}
    assert {name: each.tolist() for name, each in numbers.items()} == {
        "north": [0, 1],
        "south": [1, 2],
        "west": [0, 2],
    }
    assert found.class_names == ("cat", "dog", "eel")


def test_a_plot_has_a_line_for_each_cluster_and_each_round_that_was_measured(files: Path) -> None:
    pytest.importorskip("matplotlib")
    own = ("--data", str(files / "*.npz"), "--learner", str(files / "learner.py"), "--rounds", "6", *FAST)
    done = simulate(*own, "--plot", str(files / "out.svg"), "--json")
    assert done.exit_code == 0, done.stderr
    history = json.loads(done.stdout)["data"]["history"]
    drawn = plot.accuracies({42: history})
    last = history[-1]
    assert last["measured_on"] == "test"
    assert len(last["accuracies"]) == last["clusters"] > 0
    for key, accuracy in last["accuracies"].items():
        assert drawn[key][-1] == (last["number"], pytest.approx(100 * accuracy))
    texts = {each.text for each in ElementTree.parse(files / "out.svg").iter() if each.tag.endswith("text")}
    assert not texts  # matplotlib draws letters as paths, so that the picture looks the same everywhere
    comments = (files / "out.svg").read_text()
    for shown in (*drawn, "accuracy, %", "loss in training", "round"):
        assert f"<!-- {shown} -->" in comments
    trained = [(each["number"], each["loss"]) for each in history if each["measured_on"] == "train"]
    assert plot.losses({42: history}) == {plot.MEAN: trained}


def test_a_plot_over_seeds_has_a_line_for_each(tmp_path: Path) -> None:
    def run(*figures: tuple[int, float | None, float | None]) -> list[dict[str, Any]]:
        return [
            {
                "number": number,
                "accuracy": accuracy,
                "accuracies": {} if accuracy is None else {"c0": accuracy, "c1": accuracy},
                "loss": loss,
                "measured_on": "train" if accuracy is None else "held_out",
            }
            for number, accuracy, loss in figures
        ]

    first, second = run((1, None, 2.0), (2, 0.5, None)), run((1, None, 3.0), (2, 0.25, None))
    assert plot.accuracies({1: first, 2: second}) == {"seed 1": [(2, 50.0)], "seed 2": [(2, 25.0)]}
    assert plot.losses({1: first, 2: second}) == {"seed 1": [(1, 2.0)], "seed 2": [(1, 3.0)]}
    assert plot.accuracies({1: first}) == {"c0": [(2, 50.0)], "c1": [(2, 50.0)], plot.MEAN: [(2, 50.0)]}
    assert plot.accuracies({1: run((1, None, None))}) == plot.losses({1: run((1, None, None))}) == {}
    pytest.importorskip("matplotlib")
    nothing, two = {1: run((1, None, None))}, {1: first, 2: second}
    for name, runs, begins in (
        ("a.png", two, b"\x89PNG"),
        ("a.PDF", two, b"%PDF"),
        ("a.svg", nothing, b"<?xml"),
    ):
        plot.draw(tmp_path / name, "flux", runs)
        assert (tmp_path / name).read_bytes().startswith(begins)


def test_several_seeds_give_a_mean_and_a_deviation_and_a_csv_file(files: Path) -> None:
    table = files / "out.csv"
    done = simulate(
        "--data", str(files / "*.npz"), "--algorithm", "fedavg", "--rounds", "2", "--seed", "1,2",
        "--csv", str(table), "--json", *FAST,
    )  # fmt: skip
    assert done.exit_code == 0, done.stderr
    data = json.loads(done.stdout)["data"]
    means = [data["seeds"][seed]["accuracy"]["mean"] for seed in ("1", "2")]
    assert data["accuracy"]["mean"]["mean"] == pytest.approx(100 * np.mean(means))
    assert data["accuracy"]["mean"]["deviation"] == pytest.approx(100 * np.std(means, ddof=1))
    with table.open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["seed"], row["device"]) for row in rows][:2] == [("1", "ward-0"), ("1", "ward-1")]
    assert len(rows) == 8


def test_a_seed_that_is_named_twice_is_one_run(files: Path) -> None:
    done = CliRunner().invoke(
        main,
        [
            "simulate",
            "--data",
            str(files / "*.npz"),
            "--algorithm",
            "fedavg",
            "--rounds",
            "1",
            "--seed",
            "1,1",
        ],
    )
    assert done.exit_code == 0, done.stderr
    assert "deviation" not in done.stdout


def test_ctrl_c_leaves_the_seeds_that_are_done(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = simulation.simulate

    def interrupted(*given: Any, **named: Any) -> Any:
        if named["seed"] == 2:
            raise KeyboardInterrupt
        return real(*given, **named)

    monkeypatch.setattr(simulation, "simulate", interrupted)
    own = ("--data", str(files / "*.npz"), "--algorithm", "fedavg", "--rounds", "1", *FAST)
    done = simulate(*own, "--seed", "1,2,3", "--csv", str(files / "out.csv"), "--json")
    answer = json.loads(done.stdout)
    assert (done.exit_code, answer["error"]["hint"]) == (130, "the rest: --seed 2,3")
    assert list(answer["data"]["seeds"]) == ["1"]
    assert "fedavg, seeds 1: mean" in done.stderr
    assert answer["data"]["accuracy"]["mean"]["deviation"] is None
    assert "+-" not in done.stderr
    assert {row["seed"] for row in csv.DictReader((files / "out.csv").open())} == {"1"}
    nothing = simulate(*own, "--seed", "2,3")
    assert (nothing.exit_code, nothing.stderr) == (130, "\nerror[interrupted]: interrupted\n")


def test_a_seed_that_fails_leaves_the_others(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = simulation.simulate

    def failing(*given: Any, **named: Any) -> Any:
        if named["seed"] == 2:
            raise Diverged("training diverged", "leave learning_rate to auto")
        return real(*given, **named)

    monkeypatch.setattr(simulation, "simulate", failing)
    own = ("--data", str(files / "*.npz"), "--algorithm", "fedavg", "--rounds", "1", *FAST, "--json")
    done = simulate(*own, "--seed", "1,2,3")
    answer = json.loads(done.stdout)
    assert (list(answer["data"]["seeds"]), answer["error"]["message"]) == (["1", "3"], "training diverged")
    assert done.exit_code == Diverged.exit_code
    assert "seed 2 failed, and the others go on: training diverged" in done.stderr
    first = json.loads(simulate(*own, "--seed", "2,3").stdout)
    assert (first["status"], first["data"]) == ("error", {}), "settings that cannot be right end it at once"


def test_an_experiment_over_seeds_has_the_history_of_each() -> None:
    done = simulate("--algorithm", "fedavg", "--clients", "2", "--rounds", "2", "--seed", "1,2", "--json")
    data = json.loads(done.stdout)["data"]
    assert set(data["accuracy"]) == {"known", "test", "own", "worst", "deviation", "f1", "auc"}
    assert [each["trained"] for each in data["seeds"]["1"]["history"]] == [False, True, True, False]


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_columns_in_another_order_are_refused_and_not_taken_for_other_features(
    tmp_path: Path, kind: str
) -> None:
    pandas = pytest.importorskip("pandas")
    x, y = ward(0)
    for name, order in (("a", "pqrs"), ("b", "psrq")):
        table = pandas.DataFrame(x, columns=list("pqrs"))[list(order)].assign(ill=y)
        path = tmp_path / f"{name}.{kind}"
        table.to_parquet(path) if kind == "parquet" else table.to_csv(path, index=False)
    with pytest.raises(DataFault, match=rf"b.{kind} has the column 's' where .*a.{kind} has 'q'"):
        fleet_of(str(tmp_path / f"*.{kind}"), "ill", 0.2)


def test_csv_files_and_a_folder_for_each_device(tmp_path: Path) -> None:
    for number in range(2):
        x, y = ward(number)
        folder = tmp_path / f"site-{number}"
        folder.mkdir()
        header = "a,b,c,d,ill"
        np.savetxt(folder / "data.csv", np.column_stack([x, y]), delimiter=",", header=header, comments="")
    found = fleet_of(str(tmp_path / "*" / "data.csv"), "ill", 0.2)
    assert [Path(name).parent.name for name in found] == ["site-0", "site-1"]
    assert (found.shape, found.classes) == ((4,), 2)


def test_no_device_is_lost_whatever_the_files_are_called(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("site.1", "site.2")]
    for number, folder in enumerate(folders):
        folder.mkdir()
        x, y = ward(number)
        np.savez(folder / "a.npz", x=x, y=y)
        table = np.column_stack([x, y])
        np.savetxt(folder / "a.csv", table, delimiter=",", header="a,b,c,d,ill", comments="")
    found = fleet_of(str(folders[0] / "*"), "ill", 0.2)
    assert list(found) == [str(folders[0] / "a.csv"), str(folders[0] / "a.npz")]
    assert list(fleet_of(str(tmp_path / "*" / "a.npz"), None, 0.2)) == [str(each / "a") for each in folders]


def test_folders_of_pictures_may_have_dots_in_their_names(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    for name in ("2024.1", "2024.2"):
        for kind in ("cat", "dog"):
            (tmp_path / name / kind).mkdir(parents=True)
            for number in range(3):
                made = np.full((8, 8), 60 * number, np.uint8)
                image.fromarray(made).save(tmp_path / name / kind / f"{number}.png")
    assert list(fleet_of(str(tmp_path / "*"), None, 0.2)) == ["2024.1", "2024.2"]


def test_labels_may_be_words_in_a_table(tmp_path: Path) -> None:
    for number in range(2):
        x, y = ward(number)
        rows = [f"{a},{b},{('well', 'ill')[label]}" for (a, b, *_), label in zip(x, y, strict=True)]
        (tmp_path / f"ward-{number}.csv").write_text("\n".join(["a,b,state", *rows]))
    own = ("--data", str(tmp_path / "*.csv"), "--label", "state", "--rounds", "1", "--algorithm", "fedavg")
    shown = simulate(*own)
    assert shown.exit_code == 0, shown.stderr
    assert "classes ill, well are numbered from 0" in shown.stdout
    refused = simulate(*own, "--regression")
    assert refused.exit_code == 8
    assert "column 'state': 'well' is not a number" in refused.stderr or "'ill' is not" in refused.stderr


IMAGES = """
from torch import nn
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(CHANNELS, 2, 3)
        self.last = nn.Linear(2, 3)
    def forward(self, x):
        return self.last(self.first(x).mean((2, 3)))
def build():
    return Net()
"""


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """Two devices with images without a channel, and labels from 1."""
    chance = np.random.default_rng(0)
    for number in range(2):
        x, y = chance.integers(0, 256, (30, 9, 9)).astype(np.uint8), 1 + np.arange(30) % 3
        np.savez(tmp_path / f"device-{number}.npz", x=x, y=y)
    return tmp_path


def test_images_without_a_channel_and_labels_from_1_are_used_and_said(pictures: Path) -> None:
    (pictures / "learner.py").write_text(IMAGES.replace("CHANNELS", "1"))
    own = ("--data", str(pictures / "*.npz"), "--learner", str(pictures / "learner.py"), "--rounds", "1")
    said = (
        "samples of shape (9, 9) are given to the network with a channel in front, (1, 9, 9)",
        "classes 1 to 3 are numbered from 0",
    )
    shown = simulate(*own, "--algorithm", "fedavg")
    assert shown.exit_code == 0, shown.stderr
    for sentence in said:
        assert sentence in shown.stdout.splitlines()
        assert sentence in shown.stderr.splitlines()
    data = json.loads(simulate(*own, "--algorithm", "fedavg", "--json").stdout)["data"]
    assert data["remarks"][:2] == list(said)
    assert data["class_names"] == ["1", "2", "3"]


def test_where_no_layout_works_the_learners_own_line_is_shown(pictures: Path) -> None:
    (pictures / "learner.py").write_text(IMAGES.replace("CHANNELS", "3"))
    own = ("--data", str(pictures / "*.npz"), "--learner", str(pictures / "learner.py"), "--rounds", "1")
    shown = simulate(*own, "--algorithm", "fedavg")
    assert shown.exit_code == 8
    frames = [line.strip() for line in shown.stderr.splitlines() if line.strip().startswith("File ")]
    assert frames == [f'File "{pictures / "learner.py"}", line 9, in forward']
    assert "the network refused samples of shape (9, 9), also with a channel in front" in shown.stderr
    assert "(learner.py, line 9, in forward: return self.last(" in shown.stderr
    assert "hint: its first layer takes 3 channels" in shown.stderr


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("--data", "{}/none-*.npz"), "no file is named like"),
        (("--learner", "{}/learner.py"), "--learner is for your own devices"),
        (("--data", "{}/*.csv"), "name its column of classes: --label COLUMN"),
        (("--data", "{}/*.npz", "--learner", "{}/learner.py", "--model", "mlp"), "give one of them"),
        (("--data", "{}/*.npz", "--set", "round=3"), 'did you mean "rounds"'),
        (("--data", "{}/*.npy"), "is a single array, not an npz file"),
        (("--plot", "{}/out.gif"), "name it .svg, .png or .pdf"),
        (("--data", "{}/*.npz", "--seed", "1;2"), "is not a list of whole numbers"),
    ],
)
def test_what_is_wrong_is_said_with_a_hint(files: Path, arguments: tuple[str, ...], text: str) -> None:
    (files / "a.csv").write_text("a,b\n1,2\n")
    np.save(files / "b.npy", np.zeros((3, 4)))
    done = simulate(*(argument.format(files) for argument in arguments))
    assert done.exit_code in (3, 8)
    assert text in done.stderr


def test_what_the_program_can_find_out_itself_is_said(files: Path) -> None:
    numbers = np.random.default_rng(0).integers(25, 300, 700)
    (files / "a.csv").write_text("age,bmi,progress\n" + "\n".join(f"{n % 50},{n % 7},{n}" for n in numbers))
    asked = simulate("--data", f"{files}/a.csv")
    assert asked.stderr.rstrip().endswith("it has progress, bmi, age")
    shown = simulate("--data", f"{files}/a.csv", "--label", "progress", "--rounds", "1")
    assert "if they are numbers to predict" in shown.stdout
    explained = simulate("--data", f"{files}/a.csv", "--label", "progress", "--regression", "--rounds", "1")
    assert "held-out variance explained" in explained.stderr
    assert "accuracy" not in explained.stdout
    unquoted = simulate("--data", "a.npz", "b.npz", "c.npz")
    assert (unquoted.exit_code, "quote a pattern" in unquoted.stderr) == (2, True)
    (files / "cams" / "attic" / "day").mkdir(parents=True)
    (files / "cams" / "attic" / "day" / "1.png").touch()
    (files / "cams" / "2.png").touch()
    assert f"--data '{files}/cams/*'" in simulate("--data", f"{files}/cams").stderr
