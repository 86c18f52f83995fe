"""`shoal.simulate` and its result."""

import json
import traceback
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import shoal
from shoal.core.algorithm import find
from shoal.core.data.dataset import Dataset
from shoal.core.device_kit.tuning import tune
from shoal.core.errors import (
    BadPayload,
    ConfigError,
    DataFault,
    LearnerFault,
    NotFound,
    Refused,
    StorageFault,
)
from shoal.core.exchange.tensors import digest
from shoal.core.server_kit import placing
from shoal.result import NotKnown
from shoal.simulation.simulate import SimulationResult
from shoal.simulation.simulated import SimulatedDevices
from shoal_lab import datasets, fleets
from shoal_lab.experiment import Experiment
from shoal_lab.setting import fleet_of
from tests.api.wards import SMALL, Net, fleet, ward

FILE = """
from torch import nn
latent = "0"
def build():
    return nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2))
"""


@pytest.fixture(scope="module")
def result() -> SimulationResult:
    return shoal.simulate("flux", fleet(), model=Net, latent="hidden", rounds=6, **SMALL)


def test_a_result_has_clusters_accuracy_and_models(result: SimulationResult) -> None:
    assert set(result.clusters) == {"ward-0", "ward-1", "ward-2", "ward-3"}
    assert result.clusters["ward-0"] == result.clusters["ward-2"] != result.clusters["ward-1"]
    assert set(result.models) == set(result.clusters.values())
    assert result.accuracy.keys() == result.clusters.keys()
    assert result.accuracy.mean == pytest.approx(np.mean(list(result.accuracy.values())))
    assert result.accuracy.worst == min(result.accuracy.values())


def test_accuracy_is_that_of_the_cluster_s_module_on_the_test_part(result: SimulationResult) -> None:
    for name, holding in result.fleet.items():
        with torch.no_grad():
            found = result.module(result.clusters[name])(torch.from_numpy(holding.test.x)).argmax(1)
        assert float((found.numpy() == holding.test.y).mean()) == pytest.approx(result.accuracy[name])


def test_fine_tuning_is_measured_as_devices_do_it(result: SimulationResult) -> None:
    server = result.card.server()
    for name, holding in result.fleet.items():
        question = placing.own(server, result.state, name)
        assert question is not None
        found = tune(question, result.devices.context_of(name, question))
        module = result.module(result.clusters[name])
        if found.model is not None:
            module.load_state_dict({key: torch.from_numpy(array) for key, array in found.model.items()})
        with torch.no_grad():
            right = module(torch.from_numpy(holding.test.x)).argmax(1).numpy() == holding.test.y
        assert float(right.mean()) == pytest.approx(result.tuned[name])


def test_devices_with_a_model_of_their_own_have_nothing_to_fine_tune() -> None:
    found = shoal.simulate("apfl", fleet(), model=Net, latent="hidden", rounds=2, **SMALL)
    assert found.tuned == found.accuracy


def test_where_fine_tuning_fails_a_device_has_its_clusters_model() -> None:
    """Without a held-out part nothing can be decided."""
    wards = shoal.Fleet({f"ward-{number}": ward(number) for number in range(2)}, held_out=0.0)
    found = shoal.simulate("fedavg", wards, model=Net, rounds=2, **SMALL)
    assert found.tuned == found.accuracy


def test_the_history_has_every_round_with_what_was_measured(result: SimulationResult) -> None:
    assert [each.number for each in result.history] == list(range(1, len(result.history) + 1))
    trained = [each for each in result.history if each.trained]
    assert len(trained) == 6
    assert all(each.measured_on == "train" and each.loss is not None for each in trained)
    assert all(each.accuracy is not None and 0.0 <= each.accuracy <= 1.0 for each in trained), "none is blind"
    last = result.history[-1]
    assert (last.title, last.measured_on, last.devices) == ("final evaluation", "test", 4)
    assert last.accuracy == pytest.approx(result.accuracy.mean)
    assert sum(each.bytes_up for each in result.history) == sum(result.outcome.up.values())
    assert sum(each.bytes_down for each in result.history) == sum(result.outcome.down.values())
    assert trained[0].clusters == 1
    assert trained[-1].clusters == len(result.models)


def test_how_many_rounds_are_on_clusters_is_said_before_and_after(result: SimulationResult) -> None:
    lines: list[str] = []
    again = shoal.simulate(
        "flux", fleet(), model=Net, latent="hidden", rounds=6, progress=lines.append, **SMALL
    )
    assert lines[0] == (
        "flux: 1 to 2 of 6 rounds of training are on clusters; give at least rounds=15 for 3 of them"
    )
    assert any(line.startswith("training round 2 of 6") and "left" in line for line in lines)
    clustered = sum(each.trained and each.clusters > 1 for each in again.history)
    assert 1 <= clustered <= 3
    assert f"6 rounds of training, {clustered} of them on clusters" in result.summary()


@pytest.mark.parametrize("name", ["flux", "feroma", "flhc"])
@pytest.mark.parametrize("rounds", [1, 2, 5, 20])
def test_the_rounds_on_clusters_are_within_the_rounds(name: str, rounds: int) -> None:
    card, _ = find(name)
    assert card.clustered_rounds is not None
    least, most = card.clustered_rounds(card.configure("default", {"rounds": rounds}))
    assert 0 <= least <= most <= rounds


def test_a_newcomer_is_placed_without_labels_by_the_models(result: SimulationResult) -> None:
    """What it gets is at least as good for it as the model of its own group, and need not be that one."""

    def accuracy(cluster: str, x: np.ndarray, y: np.ndarray) -> float:
        with torch.no_grad():
            return float((result.module(cluster)(torch.from_numpy(x)).argmax(1).numpy() == y).mean())

    for number in (6, 7):
        x, y = ward(number)
        placed = result.place(x)
        assert placed.cluster is not None
        assert accuracy(placed.cluster, x, y) >= accuracy(result.clusters[f"ward-{number % 2}"], x, y)
        assert placed.reason == "chosen on this device by mutual information and likelihood"
        assert not placed.abstained
        assert 0.0 < placed.confidence <= 1.0
    with pytest.raises(BadPayload, match=r"has shape \(3,\), and the fleet's \(4,\)"):
        result.place(np.zeros((5, 3)))


def test_a_newcomer_with_one_sample_predicts_with_several_models() -> None:
    """What is measured of a newcomer is what all of them say together."""
    result = shoal.simulate("ifca", fleet(), model=Net, rounds=2, clusters=2, **SMALL)
    assert isinstance(result, SimulationResult)
    sample, test = ward(6)[0][:1], result.fleet["ward-0"].test
    shares = result.place(sample).mixture
    assert set(shares) == set(result.models)
    assert sum(shares.values()) == pytest.approx(1.0)
    with torch.no_grad():
        scores = {key: result.module(key)(torch.from_numpy(test.x)) for key in shares}
    said = sum(share * torch.softmax(scores[key], 1).numpy() for key, share in shares.items())
    placed = result.devices.placed(result.card.server(), result.state, "newcomer", Dataset(sample))
    assert placed.mixture == shares
    found = result.devices.accuracy("ward-0", placed.task, newcomer=True)
    assert found == pytest.approx(float((said.argmax(axis=1) == test.y).mean()))


def test_by_a_descriptor_a_stranger_is_not_placed() -> None:
    result = shoal.simulate(
        "flux", fleet(), model=Net, latent="hidden", rounds=6, placing="likelihood", **SMALL
    )
    for number in (6, 7):
        placed = result.place(ward(number)[0])
        assert placed.cluster == result.clusters[f"ward-{number % 2}"]
        assert placed.distance < placed.runner_up_distance
    stranger = result.place(ward(6)[0] * 40.0)
    assert stranger.abstained
    assert stranger.cluster is None
    assert stranger.reason
    assert stranger.nearest in result.models


def test_an_algorithm_that_needs_labels_to_place_abstains_without_them() -> None:
    result = shoal.simulate("ifca", fleet(), model=Net, rounds=2, clusters=2, placing="paper", **SMALL)
    assert "label" in result.place(ward(6)[0]).reason
    assert result.place(*ward(6)).cluster in result.models


def test_the_same_seed_gives_the_same_models_as_the_lab_s_experiment(result: SimulationResult) -> None:
    experiment = Experiment(clients=4, rounds=3, threads=1, device="cpu", changes=SMALL)
    made = fleet_of(experiment)[0]
    lab = shoal.simulate("flux", made, rounds=3, device="cpu", **SMALL)
    own = shoal.simulate(
        "flux", fleets.px(datasets.digits(), level=5, devices=4), rounds=3, device="cpu", **SMALL
    )
    assert {key: digest(model) for key, model in own.models.items()} == {
        key: digest(model) for key, model in lab.models.items()
    }
    again = shoal.simulate("flux", fleet(), model=Net, latent="hidden", rounds=6, **SMALL)
    assert {key: digest(model) for key, model in again.models.items()} == {
        key: digest(model) for key, model in result.models.items()
    }
    other = shoal.simulate("flux", fleet(), model=Net, latent="hidden", rounds=6, seed=1, **SMALL)
    assert digest(next(iter(other.models.values()))) != digest(next(iter(result.models.values())))


def test_one_thread_computes_unless_more_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several make small steps a hundred times as slow on a machine that does something else as well."""
    seen: list[int] = []
    perform = SimulatedDevices.calls

    def calls(devices: SimulatedDevices) -> Any:
        seen.append(torch.get_num_threads())
        return perform(devices)

    monkeypatch.setattr(SimulatedDevices, "calls", calls)
    torch.set_num_threads(2)
    for threads in ({}, {"threads": 3}, {"threads": 0}):
        shoal.simulate("fedavg", fleet(), model=Net, rounds=1, **threads)
        assert torch.get_num_threads() == 2
    assert seen == [1, 3, 2]


def test_a_comparison_is_on_the_same_fleet_and_seed(result: SimulationResult) -> None:
    compared = result.compare("fedavg")
    assert list(compared) == ["flux", "fedavg"]
    assert compared["flux"] is result
    alone = shoal.simulate("fedavg", fleet(), model=Net, latent="hidden", rounds=6, **SMALL)
    assert digest(compared["fedavg"].models["global"]) == digest(alone.models["global"])
    found = compared.gains("fedavg")
    homes = {
        cluster: [ward for ward, own in result.clusters.items() if own == cluster]
        for cluster in sorted(set(result.clusters.values()))
    }
    assert [row["cluster"] for row in found] == list(homes)
    for row in found:
        each = [
            compared["flux"].accuracy[ward] - compared["fedavg"].accuracy[ward]
            for ward in homes[row["cluster"]]
        ]
        assert row["devices"] == len(each)
        assert row["gain"] == pytest.approx(np.mean(each))
        error = np.std(each, ddof=1) / np.sqrt(len(each)) if len(each) > 1 else None
        assert row["error"] == pytest.approx(error)
    every = [compared["flux"].accuracy[ward] - compared["fedavg"].accuracy[ward] for ward in result.clusters]
    sure = 3 * np.std(every, ddof=1) / np.sqrt(len(every))
    assert f"(± {100 * sure:.1f}) points over one model for all" in repr(compared)
    assert all(row["gain"] == 0.0 for row in compared.gains("flux"))
    with pytest.raises(NotFound, match="was not compared"):
        compared.gains("ifca")
    assert "fedavg" in repr(compared)
    assert compared._repr_html_().count("<tr>") == 3


def test_devices_that_no_round_has_asked_are_named() -> None:
    third = shoal.simulate("fedavg", fleet(6), model=Net, rounds=1, participation=0.34, seed=43)
    without = set(third.fleet) - set(third.clusters)
    assert without
    (said,) = [remark for remark in third.remarks if "have no cluster" in remark]
    assert said.startswith(f"{len(without)} of 6 devices have no cluster")
    assert said in repr(third)
    whole = shoal.simulate("fedavg", fleet(6), model=Net, rounds=1, seed=43)
    assert not any("have no cluster" in remark for remark in whole.remarks)


def test_a_comparison_asks_as_many_devices_in_each_round() -> None:
    """Otherwise one model for all would learn from all devices, and the run from half of them."""
    half = shoal.simulate("fedprox", fleet(4), model=Net, rounds=2, participation=0.5)
    compared = half.compare("fedavg", "local")
    trained = [{each.devices for each in found.history if each.trained} for found in compared.values()]
    assert trained == [{2}, {2}, set()]


def test_a_comparison_is_plotted(result: SimulationResult) -> None:
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    axes = result.compare("fedavg").plot()
    assert [label.get_text() for label in axes.get_yticklabels()] == ["fedavg", "flux"]


def test_the_common_model_that_a_newcomer_may_get_is_a_module_too(result: SimulationResult) -> None:
    """Of a run that has a model for each cluster, it is their mean, weighted by their devices."""
    assert "global" not in result.models
    counts = Counter(result.clusters.values())
    for name, found in result.module("global").state_dict().items():
        mean = sum(count * result.models[key][name] for key, count in counts.items()) / len(result.clusters)
        np.testing.assert_allclose(found.numpy(), mean, rtol=1e-5, atol=1e-6)
    for wrong in ("c9", None):
        with pytest.raises(NotFound, match=f"there is no cluster {wrong!r}"):
            result.weights(wrong)  # type: ignore[arg-type]


def test_each_device_by_itself_and_all_data_in_one_place(result: SimulationResult) -> None:
    """They are what FedAvg makes of a fleet of one device, and of a fleet of one that has all data."""
    compared = result.compare()
    assert list(compared) == ["flux", "fedavg", "local", "pooled"]
    wards, given = fleet(), {"model": Net, "latent": "hidden", "rounds": 6, **SMALL}
    alone = shoal.simulate("fedavg", shoal.Fleet.of({"ward-2": wards["ward-2"]}, wards.classes), **given)  # type: ignore[arg-type]
    assert compared["local"].accuracy["ward-2"] == alone.accuracy["ward-2"]
    assert digest(compared["local"].models["ward-2"]) == digest(alone.models["global"])
    assert set(compared["local"].clusters.values()) == set(wards)
    model = compared["pooled"].module("global", model=Net)
    for name, accuracy in compared["pooled"].accuracy.items():
        test = wards[name].test
        with torch.no_grad():
            right = model(torch.from_numpy(test.x)).argmax(1).numpy() == test.y
        assert float(right.mean()) == pytest.approx(accuracy)
    for name, cluster in (("local", "ward-2"), ("pooled", "global")):
        held = compared[name].module(cluster)
        assert torch.equal(held.head.weight, torch.from_numpy(compared[name].models[cluster]["head.weight"]))
        for ask in (compared[name].compare, lambda name=name: compared[name].place(ward(7)[0])):
            with pytest.raises(NotKnown, match="ask the result that was compared"):
                ask()
    assert "over each device by itself (local)" in repr(compared)
    assert repr(compared).splitlines()[0] == str(result.verdict)


def test_a_result_as_a_frame_as_text_as_html_and_in_a_folder(
    result: SimulationResult, tmp_path: Path
) -> None:
    assert repr(result).splitlines()[0] == str(result.verdict)
    assert repr(result).splitlines()[1] == result.summary()
    assert repr(result).splitlines()[2].split()[:2] == ["ward-0", result.clusters["ward-0"]]
    assert "<td>ward-3</td>" in result._repr_html_()
    result.save(tmp_path / "out")
    onnxruntime = pytest.importorskip("onnxruntime", reason="ONNX Runtime is not installed")
    x = result.fleet["ward-0"].test.x
    session = onnxruntime.InferenceSession(tmp_path / "out" / "c0.onnx")
    with torch.no_grad():
        wanted = result.module("c0")(torch.from_numpy(x)).numpy()
    assert session.run(["scores"], {"x": x})[0] == pytest.approx(wanted, abs=1e-4)
    (tmp_path / "file").touch()
    with pytest.raises(StorageFault):
        result.save(tmp_path / "file")
    found = json.loads((tmp_path / "out" / "result.json").read_text())
    assert found["accuracy"]["mean"] == result.accuracy.mean
    assert len(found["history"]) == len(result.history)
    with pytest.raises(NotFound, match="there is no cluster 'c9'"):
        result.module("c9")


def test_saving_over_an_older_result_leaves_none_of_its_models(
    result: SimulationResult, tmp_path: Path
) -> None:
    result.save(tmp_path)
    saved = json.loads((tmp_path / "result.json").read_text())
    (tmp_path / "result.json").write_text(json.dumps({**saved, "models": [*saved["models"], "c7"]}))
    for name in ("c7.safetensors", "c7.onnx", "own.onnx"):
        (tmp_path / name).touch()
    result.save(tmp_path)
    assert not list(tmp_path.glob("c7.*"))
    assert (tmp_path / "own.onnx").exists(), "a file that no result wrote stays"


def test_a_newcomer_may_be_a_data_set_of_torch(result: SimulationResult) -> None:
    test = result.fleet["ward-0"].test
    pairs = [(x, int(y)) for x, y in zip(test.x, test.y, strict=True)]
    assert repr(result.place(pairs)) == repr(result.place(test.x, test.y))


def test_a_network_that_needs_arguments_is_named_as_such(result: SimulationResult) -> None:
    class Wide(Net):
        def __init__(self, hidden: int) -> None:
            super().__init__()

    with pytest.raises(LearnerFault, match="called without arguments"):
        shoal.simulate("fedavg", result.fleet, model=Wide, rounds=1)


def test_a_result_that_was_saved_is_there_the_next_morning(result: SimulationResult, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime", reason="ONNX Runtime is not installed")
    result.save(tmp_path / "out")
    found = shoal.Result.load(tmp_path / "out")
    assert repr(found) == repr(result)
    assert (found.accuracy, found.clusters) == (result.accuracy, result.clusters)
    assert found.verdict == result.verdict
    assert list(found.history) == list(result.history)
    x = result.fleet["ward-0"].test.x
    for cluster, model in result.models.items():
        assert list(found.models[cluster]) == list(model), "in the order of the network"
        assert all(np.array_equal(found.models[cluster][name], tensor) for name, tensor in model.items())
        with torch.no_grad():
            wanted = result.module(cluster)(torch.from_numpy(x)).numpy()
            assert np.array_equal(found.module(cluster, Net)(torch.from_numpy(x)).numpy(), wanted)
        assert found.session(cluster).run(["scores"], {"x": x})[0] == pytest.approx(wanted, abs=1e-4)
    found.save(tmp_path / "again")
    first, again = (tmp_path / name / "result.json" for name in ("out", "again"))
    assert json.loads(again.read_text()) == json.loads(first.read_text())
    with pytest.raises(NotKnown, match="saved result cannot place"):
        found.place(x)
    with pytest.raises(ConfigError, match="name the folder"):
        shoal.Result.load(tmp_path)
    (tmp_path / "result.json").write_text('{"algorithm": "flux"}')
    with pytest.raises(ConfigError, match="not what was saved"):
        shoal.Result.load(tmp_path)


def test_a_session_says_nothing_of_what_only_training_uses(capfd: pytest.CaptureFixture[str]) -> None:
    def normed() -> nn.Module:
        return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 2))

    session = shoal.simulate("fedavg", fleet(2), model=normed, rounds=1, progress=False).session("global")
    assert session.run(["scores"], {"x": ward(0)[0]})[0].shape == (60, 2)
    assert capfd.readouterr().err == ""


def test_a_result_as_a_frame(result: SimulationResult) -> None:
    pandas = pytest.importorskip("pandas")
    frame = result.to_frame()
    assert list(frame["device"]) == list(result.clusters)
    assert list(pandas.DataFrame(result.history)["number"]) == [each.number for each in result.history]


def test_a_model_may_be_a_factory_a_learner_a_file_or_a_name(tmp_path: Path) -> None:
    path = tmp_path / "learner.py"
    path.write_text(FILE)
    for model in (lambda: Net(), shoal.Learner("net", Net), path, str(path), "mlp", None):
        assert shoal.simulate("fedavg", fleet(2), model=model, rounds=1).accuracy.mean >= 0.0


def test_a_module_brings_the_weights_that_a_run_starts_from() -> None:
    """Nothing has to be set for it, no seed changes them, and the module itself stays as it was."""
    module = Net()
    with torch.no_grad():
        for weight in module.parameters():
            weight.fill_(0.25)
    idle: dict[str, Any] = {"rounds": 1, "learning_rate": 1e-30, "optimizer": "sgd"}
    for seed in (42, 43):
        found = shoal.simulate("fedavg", fleet(2), model=module, latent="hidden", seed=seed, **idle)
        assert all((found.models["global"][name] == 0.25).all() for name in module.state_dict())
    drawn = Net()
    first, again = (
        shoal.simulate("ifca", fleet(2), model=drawn, clusters=3, **idle).models for _ in range(2)
    )
    kept = [np.array_equal(each["head.weight"], drawn.head.weight.detach()) for each in first.values()]
    assert kept == [True, False, False], "one has the weights, and the others begin apart from it"
    assert len({digest(each) for each in first.values()}) == 3
    assert [digest(each) for each in first.values()] == [digest(each) for each in again.values()]
    trained = shoal.simulate("fedavg", fleet(2), model=module, rounds=2)
    assert not (trained.models["global"]["head.weight"] == 0.25).all()
    assert (module.head.weight == 0.25).all()
    apart = shoal.simulate("fedavg", fleet(2), model=module, rounds=2, workers=2)
    assert digest(apart.models["global"]) == digest(trained.models["global"])


@pytest.mark.parametrize(
    ("changes", "error", "text"),
    [
        ({"model": 7}, ConfigError, "model is a int"),
        ({"regression": True}, ConfigError, r"shoal.Fleet.devices, regression=True."),
        ({"model": "mpl"}, ConfigError, 'no network .mpl. .did you mean "mlp"'),
        ({"model": "missing.py"}, ConfigError, "no learner file"),
        ({"model": lambda: 3}, LearnerFault, "returned a int"),
        ({"model": Net, "options": {"hidden": [3]}}, ConfigError, "options are of a built-in network"),
        ({"model": Net, "latent": "hiden"}, LearnerFault, "^the network has no submodule 'hiden'"),
        ({"round": 3}, ConfigError, 'fedavg has no parameter .round. .did you mean "rounds"'),
        ({"rounds": "many"}, ConfigError, "fedavg: parameter rounds cannot be .many."),
        ({"preset": "papers"}, ConfigError, "has no preset 'papers'"),
        ({"threads": -1}, ConfigError, "threads cannot be -1"),
        ({"seed": None}, ConfigError, "seed is None .give a whole number"),
        (
            {"model_seed": 1 << 70},
            ConfigError,
            "model_seed is 1180.* 2 to the power of 63",
        ),
    ],
)
def test_wrong_arguments_are_named(changes: dict, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        shoal.simulate("fedavg", fleet(2), **changes)


def test_numbers_may_be_numpys() -> None:
    """As those are over which people loop."""
    one, same = (
        shoal.simulate("fedavg", fleet(2), model=Net, seed=number(43), rounds=number(1))
        for number in (int, np.int64)
    )
    assert digest(one.models["global"]) == digest(same.models["global"])


def test_an_unknown_algorithm_and_an_untold_number_of_clusters() -> None:
    with pytest.raises(ConfigError, match=r"no algorithm 'fluxx' \(did you mean"):
        shoal.simulate("fluxx", fleet(2))
    with pytest.raises(ConfigError, match="has to be given the number of clusters"):
        shoal.simulate("flux-prior", fleet(2), model=Net, latent="hidden")


def test_the_algorithms_are_listed_with_a_line_each() -> None:
    found = shoal.algorithms()
    assert {"fedavg", "flux", "flux-soft", "ifca"} <= set(found)
    assert all(line and "\n" not in line for line in found.values())


def test_a_network_that_does_not_fit_the_data_ends_the_simulation_with_the_learner_s_own_error() -> None:
    def build() -> nn.Module:
        return nn.Sequential(nn.Linear(3, 2))

    with pytest.raises(LearnerFault, match="shapes cannot be multiplied") as caught:
        shoal.simulate("fedavg", fleet(), model=build, rounds=1)
    assert caught.value.hint == "its first layer takes 3 values, and a sample has 4"
    assert caught.value.details == ""  # no line of the author's


def test_a_slip_in_the_model_is_shown_by_its_own_line_and_device() -> None:
    class Slip(Net):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x) + self.ofset  # type: ignore[operator]

    with pytest.raises(
        LearnerFault, match=r"ward-\d: the learner's network or loss\(\) failed: AttributeError"
    ) as caught:
        shoal.simulate("fedavg", fleet(2), model=Slip, rounds=1)
    assert caught.value.hint.startswith("fix test_simulate.py, line ")
    assert "in forward: return super().forward(x) + self.ofset" in caught.value.hint
    assert caught.value.__cause__ is None
    files = {frame.filename for frame in traceback.extract_tb(caught.value.__traceback__)}
    assert {Path(file).name for file in files} == {"test_simulate.py", "errors.py"}


# -- layouts of samples, and names of classes -----------------------------------------------------------


def pictures(*shape: int, kind: Any = np.uint8) -> dict[str, Any]:
    """Two devices with 30 samples of this shape, of classes that have names."""
    chance = np.random.default_rng(0)
    y = np.array(["cat", "dog", "eel"])[np.arange(30) % 3]
    return {f"d{number}": (chance.integers(0, 200, (30, *shape)).astype(kind), y) for number in range(2)}


class Pictures(nn.Module):
    """A network for images as users write it, with a submodule `seen`."""

    def __init__(self, channels: int = 1) -> None:
        super().__init__()
        self.seen = nn.Sequential(nn.Conv2d(channels, 2, 3), nn.AdaptiveAvgPool2d(2), nn.Flatten())
        self.head = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.seen(x))


def test_a_run_that_fails_on_all_devices_says_what_helps() -> None:
    unmeasured = shoal.Fleet({f"d{number}": ward(number) for number in range(2)}, held_out=0.0)
    with pytest.raises(Refused, match=r"d0, d1: the held_out part .* is empty .* do not set held_out to 0"):
        shoal.simulate("flux", unmeasured, model=Net, latent="hidden", rounds=1)


def test_images_without_a_channel_get_one_and_it_is_said() -> None:
    lines: list[str] = []
    found = shoal.simulate("fedavg", pictures(9, 9), model=Pictures, rounds=1, progress=lines.append)
    said = "samples of shape (9, 9) are given to the network with a channel in front, (1, 9, 9)"
    assert found.remarks == (said, "classes cat, dog, eel are numbered from 0")
    assert lines[:2] == list(found.remarks)
    assert repr(found).splitlines()[-2:] == list(found.remarks)
    assert said in found._repr_html_()
    assert found.to_dict()["remarks"] == list(found.remarks)
    given = {name: (x[:, None], y) for name, (x, y) in pictures(9, 9).items()}
    same = shoal.simulate("fedavg", given, model=Pictures, rounds=1)
    assert same.remarks == found.remarks[1:]
    assert digest(same.models["global"]) == digest(found.models["global"])
    assert same.accuracy == found.accuracy


def test_a_device_with_few_test_samples_is_named() -> None:
    x, y = np.random.default_rng(0).normal(size=(40, 4)), np.arange(40) % 2
    found = shoal.simulate("fedavg", {"many": (x, y), "few": (x[:8], y[:8])}, rounds=1)
    assert found.remarks == ("an accuracy on so few test samples says little: few (2)",)
    assert shoal.simulate("fedavg", {"few": (x[:8], y[:8])}, rounds=1).remarks == ()


def test_a_softmax_at_the_end_of_a_network_is_said() -> None:
    def ends_with(*layers: nn.Module) -> tuple[str, ...]:
        def build() -> nn.Module:
            return nn.Sequential(nn.Linear(4, 2), *layers)

        return shoal.simulate("fedavg", fleet(), model=build, rounds=1).remarks

    assert ends_with(nn.LogSoftmax(1)) == ends_with() == ()
    (said,) = ends_with(nn.Softmax(1))
    assert "softmax" in said


def test_a_newcomer_shows_its_images_as_the_fleet_does_or_as_the_network_takes_them() -> None:
    found = shoal.simulate("flux", pictures(9, 9), model=Pictures, latent="seen", rounds=3, batch_size=8)
    x = pictures(9, 9)["d0"][0][:5]
    assert found.place(x) == found.place(x[:, None])
    with pytest.raises(BadPayload, match=r"has shape \(8, 9\), and the fleet's \(9, 9\)"):
        found.place(x[:, 1:])
    assert found.compare("fedavg")["fedavg"].remarks == found.remarks


@pytest.mark.parametrize(
    ("shape", "model", "said"),
    [
        ((9, 7, 3), lambda: Pictures(3), "with the last axis first, (3, 9, 7)"),
        ((81,), Pictures, "as square images of one channel, (1, 9, 9)"),
        ((9, 9), lambda: nn.Linear(81, 3), "flattened, (81,)"),
    ],
)
def test_other_layouts_are_found_and_said(shape: tuple[int, ...], model: Any, said: str) -> None:
    found = shoal.simulate("fedavg", pictures(*shape), model=model, rounds=1)
    assert found.remarks[0] == f"samples of shape {shape} are given to the network {said}"


def test_tokens_stay_whole_numbers_where_the_network_embeds_them() -> None:
    def words() -> nn.Module:
        return nn.Sequential(nn.Embedding(200, 4), nn.Flatten(), nn.Linear(24, 3))

    found = shoal.simulate("fedavg", pictures(6, kind=np.int64), model=words, rounds=1)
    assert found.remarks[0] == "samples of shape (6,) are given to the network as whole numbers"
    broken = pictures(6, kind=np.float32)
    broken["d1"][0][3, 3] += 0.5
    with pytest.raises(DataFault, match="takes whole numbers, and some samples have fractions"):
        shoal.simulate("fedavg", broken, model=words, rounds=1)
    few = pictures(6, kind=np.int64)
    for x, _ in few.values():
        x += 200
    said = r"IndexError: index out of range .* .its first layer takes whole numbers from 0 to 199"
    with pytest.raises(LearnerFault, match=said):
        shoal.simulate("fedavg", few, model=words, rounds=1)


def test_where_no_layout_works_it_is_said_before_anything_is_trained() -> None:
    lines: list[str] = []
    with pytest.raises(
        LearnerFault, match=r"refused samples of shape \(9, 9\), also with a channel"
    ) as caught:
        shoal.simulate("fedavg", pictures(9, 9), model=lambda: Pictures(3), rounds=1, progress=lines.append)
    assert "to have 3 channels, but got 1 channels" in caught.value.message
    assert "(test_simulate.py, line " in caught.value.message
    assert "in forward: return self.head(self.seen(x)))" in caught.value.message
    assert caught.value.hint == "its first layer takes 3 channels"
    assert lines == []


def test_a_network_with_too_few_outputs_is_named() -> None:
    with pytest.raises(
        DataFault, match=r"gives 2 scores, and the fleet has 3 classes .end the network with 3"
    ):
        shoal.simulate("fedavg", pictures(4), model=lambda: nn.Linear(4, 2), rounds=1)


@pytest.mark.parametrize(
    ("fleet", "named", "said", "layers"),
    [
        (pictures(9, 9), None, "are taken for gray images; for readings, name model cnn1d", {(64, 81)}),
        (pictures(28, 28), None, "are taken for gray images; for readings", {(6, 1, 5, 5)}),
        (pictures(28, 28, 3), None, "with the last axis first, (3, 28, 28)", {(6, 3, 5, 5)}),
        (pictures(6, 20, kind=np.float32), None, "windows of 20 readings of 6 sensors", {(16, 6, 5)}),
        (pictures(6, 9, kind=np.float32), None, "windows of 9 readings of 6 sensors", {(32, 54)}),
        (pictures(28, 28), "cnn1d", "", {(16, 28, 5)}),
        (pictures(28, 28), "lenet5", "", {(6, 1, 5, 5)}),
        (pictures(784), "lenet5", "as square images of one channel", {(6, 1, 5, 5)}),
        (pictures(9, 9), "mlp", "", {(128, 81)}),
        (pictures(20), "cnn1d", "with a channel in front", {(16, 1, 5)}),
    ],
)
def test_without_a_network_it_is_said_what_samples_are_taken_for(
    fleet: Any, named: Any, said: str, layers: Any
) -> None:
    found = shoal.simulate("fedavg", fleet, model=named, rounds=1)
    first = found.remarks[0]
    assert said in first
    assert said or first.startswith("classes")
    assert {next(iter(found.models["global"].values())).shape} == layers


def test_a_network_for_images_needs_images() -> None:
    with pytest.raises(ConfigError, match=r"the network takes images, and a sample has 20 values .name mlp"):
        shoal.simulate("fedavg", pictures(20), model="lenet5")


def test_the_names_of_the_classes_travel_with_the_result(tmp_path: Path) -> None:
    found = shoal.simulate("fedavg", pictures(4), rounds=1)
    assert found.class_names == found.fleet.class_names == ("cat", "dog", "eel")
    found.save(tmp_path)
    assert json.loads((tmp_path / "result.json").read_text())["class_names"] == ["cat", "dog", "eel"]
    from safetensors import safe_open

    with safe_open(tmp_path / "global.safetensors", "numpy") as file:
        assert json.loads(file.metadata()["classes"]) == ["cat", "dog", "eel"]
    numbered = shoal.simulate("fedavg", fleet(2), model=Net, rounds=1)
    assert numbered.class_names is None
    assert numbered.to_dict()["class_names"] is None


def test_a_newcomer_s_labels_are_the_fleet_s() -> None:
    named = {name: (x, np.where(y, "well", "ill")) for name, (x, y) in ((f"w{n}", ward(n)) for n in range(4))}
    found = shoal.simulate("ifca", named, model=Net, rounds=2, clusters=2, placing="paper", **SMALL)
    x, y = ward(6)
    assert found.place(x, np.where(y, "well", "ill")).cluster in found.models
    with pytest.raises(
        DataFault, match=r"newcomer: the label of row 0 .from 0. is 'dead', which is not among"
    ):
        found.place(x, ["dead"] * len(x))
    assert "labels" in found.place(x).reason


def test_groups_that_measure_in_other_units_each_learn_and_newcomers_find_theirs() -> None:
    rows = np.random.default_rng(7)

    def table(n: int, unit: float) -> tuple[np.ndarray, np.ndarray]:
        x = rows.normal(10.0, 2.0, (n, 6))
        return (x * unit).astype(np.float32), (x[:, 0] + x[:, 1] > x[:, 2] + x[:, 3]).astype(np.int64)

    wards = {f"ward-{i}": (*table(40, 1 + 24 * (i % 2)), *table(100, 1 + 24 * (i % 2))) for i in range(6)}
    found = shoal.simulate("flux", wards, seed=3)
    assert found.clusters["ward-0"] == found.clusters["ward-2"] != found.clusters["ward-1"]
    assert min(found.accuracy.values()) > 0.85
    for name in ("ward-0", "ward-1"):
        assert found.place(wards[name][2]).cluster == found.clusters[name]
